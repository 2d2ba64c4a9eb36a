"""Sessions: which request is the next turn of which session, and when it arrives.

In the open loop every request arrives at its recorded time. In the closed loop (``System.sessions = "closed"``) only
first turns of sessions do. A later turn arrives when the turn before it has finished and its think time has passed. In
an agent graph (:mod:`kvgym.workloads.graphs`) a request may have other parents as well, and arrives when the last of
them has finished and its think time has passed; children with equal times arrive in order of their rows.

Request ids are numbers of arrivals in both. The tables that hold hidden properties of requests, ``workload`` and
``prefix``, are by request id. In the closed loop, a row of the workload therefore gets its place in them when it is the
next to arrive: all arrivals with known times are in a heap, and the first of them is always at the place
``tracker.next_arrival``. If no time is known, that place has the arrival time inf. So the rest of the engine needs no
distinction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.heaps import ranked_pop, ranked_push
from kvgym.compiling.kernel import jit
from kvgym.compiling.records import sparse_zeros
from kvgym.errors import WorkloadError
from kvgym.simulator.tables import UNKNOWN, WORKLOAD
from kvgym.workloads.graphs import turns_before
from kvgym.workloads.table import RequestTable

SESSION = np.dtype(
    [
        ("next_think", "f8"),  # s from its end to the next turn, NaN: none follows, or no need true_length
        ("session_id", "i4"),
        ("turn", "i4"),
        ("previous", "i4"),  # request of the turn before, UNKNOWN for the first
        ("gap_kind", "i4"),  # what the time before it was, an index of GAP_KINDS; UNKNOWN without the need
        ("next_kind", "i4"),  # what follows its end, 0 also if no turn does; UNKNOWN before its end
        ("next_prompt", "i4"),  # prompt of the next turn, 0: none; UNKNOWN without the need true_length
    ],
    align=True,
)
"""What the need ``session`` exposes of a request that has arrived."""

TURN = np.dtype(
    [
        ("next_think", "f8"),
        ("chain", "i8"),  # of its PREFIX
        ("held", "i8"),
        ("length", "i4"),
        ("session_id", "i4"),
        ("turn", "i4"),
        ("gap_kind", "i4"),
        ("next_kind", "i4"),
        ("next_prompt", "i4"),
        ("previous", "i4"),  # row of the turn before, UNKNOWN for the first
        ("next", "i4"),  # row of the turn that follows, UNKNOWN for the last
        ("arrival", "i4"),  # number of its arrival, which is the id of the request
        ("row", "i4"),  # and the other way round: row of the arrival of this number
        ("first_child", "i4"),  # position in ``children`` of the first row that waits for it
        ("num_children", "i4"),  # and their number; UNKNOWN in chains, where only ``next`` waits for it
        ("pending", "i4"),  # rows that it waits for that have not ended
        ("think", "f8"),  # s from the last of their ends to its arrival
    ],
    align=True,
)
"""A row of the workload as a turn of its session; hidden from policies."""


class Sessions(NamedTuple):
    """The tables of sessions: n requests, s sessions, E pairs of a parent and its child.

    Attributes:
        turns: TURN (n,), empty where neither the closed loop nor the need ``session`` asks for sessions.
        sessions: SESSION (n,), by request id; empty without the need ``session``.
        script: WORKLOAD (n,), the rows of the workload; empty in the open loop.
        due: float64 (n,), arrival time of each row once it is known, seconds, and the last end of its parents before;
            empty in the open loop.
        scheduled: int32 (1 + n,), heap of the rows with known times that have not arrived; empty in the open loop. It
            has 1 + s rows where each row has one parent at most.
        children: int32 (E,), rows that wait for the end of each row, by row; empty without an agent graph.
        workload: WORKLOAD (n,), by request id.
        prefix: PREFIX (n,), by request id; empty without a prefix cache.
    """

    turns: Any
    sessions: Any
    script: Any
    due: Any
    scheduled: Any
    children: Any
    workload: Any
    prefix: Any


def check_closed(table: RequestTable) -> None:
    """Check that requests have what the closed loop of sessions needs.

    Raises:
        WorkloadError: they have no sessions, or no think times.
    """
    for name in ("session_id", "think_time"):
        if getattr(table, name) is None:
            raise WorkloadError(
                f"sessions = closed, but the requests have no {name}; choose a workload with session_id, turn and "
                "think_time (prefixes with turns and gaps, agent traces), or set sessions to open"
            )


def neighbours(session_id: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the turns before and after each row in its session, UNKNOWN if there is none, (n,)."""
    before, after = np.full((2, len(session_id)), UNKNOWN)
    later, earlier = turns_before(session_id)
    before[later], after[earlier] = earlier, later
    return before, after


def empty_sessions(
    table: RequestTable, prefix: NDArray[Any] | None, *, closed: bool, exposed: bool
) -> dict[str, NDArray[Any]]:
    """Return the tables of sessions at the beginning of a run, by the names of the fields of :class:`Sessions`.

    Args:
        table: the requests.
        prefix: PREFIX (n,), by row of the table; None without a prefix cache.
        closed: whether later turns arrive when the turns before them have finished.
        exposed: whether policies observe sessions. If they do not, there are tables for the closed loop alone.

    Raises:
        WorkloadError: the closed loop needs columns that the requests do not have.
    """
    n = len(table)
    if not closed and not exposed:
        return {}
    if closed:
        check_closed(table)
    tables: dict[str, NDArray[Any]] = {
        "turns": sparse_zeros((n,), TURN),
        "sessions": sparse_zeros((n if exposed else 0,), SESSION),
        "script": table.to_records() if closed else sparse_zeros((0,), WORKLOAD),
        "due": table.arrival_time.copy() if closed else np.zeros(0),
        "scheduled": np.zeros(0, np.int32),
        "children": np.zeros(0, np.int32),
    }
    turns = tables["turns"]
    if len(turns):
        assert table.session_id is not None
        assert table.turn is not None
        before, after = neighbours(table.session_id)
        follows = after != UNKNOWN
        turns["session_id"], turns["turn"], turns["previous"], turns["next"] = (
            table.session_id,
            table.turn,
            before,
            after,
        )
        turns["row"] = np.arange(n)
        turns["next_think"] = np.nan
        if table.think_time is not None:
            turns["next_think"][follows] = table.think_time[after[follows]]
        turns["next_prompt"][follows] = table.prompt_len[after[follows]]
        turns["gap_kind"] = turns["next_kind"] = UNKNOWN
        if table.gap_kind is not None:
            turns["gap_kind"], turns["next_kind"] = table.gap_kind, 0
            turns["next_kind"][follows] = table.gap_kind[after[follows]]
        if prefix is not None and len(prefix):
            for name in ("chain", "held", "length"):
                turns[name] = prefix[name]
        if closed:
            link_rows(table, tables)
    return tables


def link_rows(table: RequestTable, tables: dict[str, NDArray[Any]]) -> None:
    """Fill in what waits for what in the closed loop, and schedule the rows that wait for nothing."""
    turns, n = tables["turns"], len(table)
    first, room = np.flatnonzero(turns["previous"] == UNKNOWN), np.zeros(0)
    turns["num_children"] = UNKNOWN
    if table.parents is not None:
        parent, child = table.parents.edges
        order = np.argsort(parent, kind="stable")  # children stay in order of rows
        tables["children"] = child[order].astype(np.int32)
        turns["num_children"] = np.bincount(parent, minlength=n)
        turns["first_child"] = np.cumsum(turns["num_children"]) - turns["num_children"]
        turns["pending"] = np.bincount(child, minlength=n)
        turns["think"] = table.think_time
        tables["due"][turns["pending"] > 0] = 0.0
        first = np.flatnonzero(turns["pending"] == 0)
        room = np.zeros(n - len(first))
    # Sorted by arrival and row, so a heap.
    tables["scheduled"] = np.concatenate([[len(first)], first, room]).astype(np.int32)


# ------------------------------------------------------------ in a run


@jit
def expose_turn(p: Any, turns: Any, sessions: Any, i: int) -> None:
    """Record which row arrives as request ``i``, and copy what policies may observe of its session."""
    row = turns[i].row
    turn = turns[row]
    turn.arrival = i
    if sessions.shape[0] > 0:
        s = sessions[i]
        s.session_id, s.turn = turn.session_id, turn.turn
        s.previous = turns[turn.previous].arrival if turn.previous != UNKNOWN else UNKNOWN
        s.gap_kind = turn.gap_kind if p.reveal_class == 1 else UNKNOWN
        s.next_kind = UNKNOWN
        s.next_prompt = turn.next_prompt if p.reveal_output == 1 else UNKNOWN
        s.next_think = turn.next_think if p.reveal_output == 1 else np.nan


@jit
def expect_next(s: Sessions, k: int, n: int) -> None:
    """Put the row that arrives next to place ``k`` = ``tracker.next_arrival``, if it is known; ``n`` rows in all."""
    if k == n:
        return
    if s.scheduled[0] == 0:
        s.workload[k].arrival_time = np.inf
        return
    row = s.scheduled[1]
    s.workload[k] = s.script[row]
    s.workload[k].arrival_time = s.due[row]
    s.turns[k].row = row
    if s.prefix.shape[0] > 0:
        p, turn = s.prefix[k], s.turns[row]
        p.chain, p.held, p.length = turn.chain, turn.held, turn.length


@jit
def pass_arrival(s: Sessions, k: int, n: int) -> None:
    """Take the row that has arrived from the heap; the next request is ``k``."""
    ranked_pop(s.scheduled, 0, s.due, 0)
    expect_next(s, k, n)


@jit
def end_turn(s: Sessions, p: Any, i: int, end: float, k: int) -> None:
    """Expose what follows request ``i``, which has finished; in the closed loop schedule what has waited for it alone.

    Args:
        s: the tables of sessions.
        p: PROBLEM record.
        i: the request.
        end: time, seconds.
        k: number of the next arrival.
    """
    turn = s.turns[s.turns[i].row]
    if s.sessions.shape[0] > 0 and p.reveal_class == 1:
        s.sessions[i].next_kind = turn.next_kind
    following = turn.next if turn.num_children == UNKNOWN else UNKNOWN
    if s.script.shape[0] == 0 or (following == UNKNOWN and turn.num_children <= 0):
        return
    if following != UNKNOWN:
        s.due[following] = end + turn.next_think
        ranked_push(s.scheduled, 0, s.due, 0, following)
    for j in range(turn.first_child, turn.first_child + turn.num_children):
        row = s.children[j]
        child = s.turns[row]
        s.due[row] = max(s.due[row], end)
        child.pending -= 1
        if child.pending == 0:
            s.due[row] += child.think
            ranked_push(s.scheduled, 0, s.due, 0, row)
    expect_next(s, k, p.num_requests)
