"""Entry point of the compiled core for a worker with batches that a real engine runs, not the simulator.

:class:`~kvgym.integrations.vllm.mirror.Mirror` keeps the tables of such a worker, which has neither a prefix cache nor
sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit_inline, kernel
from kvgym.compiling.pointers import address_of
from kvgym.compiling.references import by_address
from kvgym.compiling.tables import Table, declared, opener
from kvgym.simulator.apply_decision import free_memory
from kvgym.simulator.batch import close_up, complete, leave_batch
from kvgym.simulator.boundary import Run, depart, next_boundary, withdraw
from kvgym.simulator.engine import carry_out, clear_decision
from kvgym.simulator.loop import (
    ROW_LENGTH,
    open_batch_time,
    open_memory,
    open_params,
    open_plain,
    open_policy,
)
from kvgym.simulator.policy_interface import decision_of, view_of
from kvgym.simulator.queue import queue_remove
from kvgym.simulator.tables import DECIDE, FINISHED, OK, RUN, UNKNOWN, WAITING

DECIDES, PLANS, STEPS, ARRIVES, ENDS, ABORTS, CORRECTS = range(7)
"""What :func:`operate` does: let the policy decide and plan its decision, plan one that is in the tables, execute it,
queue those that have arrived, remove a request that has finished, or one that was taken away, or move the end of the
last batch.
"""

PLAN = np.dtype(
    [
        ("budget", "i8"),  # most tokens of an iteration
        ("chunks", "i8"),  # whether prompts may be processed in part
        ("tokens", "i8"),  # of the batch
        ("members", "i8"),  # requests in the batch
        ("num_admit", "i8"),  # requests that start
        ("num_put_back", "i8"),  # requests behind these in the list of admitted ones, which do not start
        ("num_evict", "i8"),
        ("num_limited", "i8"),  # requests that run in part or not at all
        ("act", "i8"),  # RUN or WAIT
    ],
    align=True,
)
"""What an engine carries out of a decision."""


class Live(NamedTuple):
    """The tables of a plan, for n requests and A slots.

    Attributes:
        plan: limits of the engine, and what :func:`make_plan` counts, dtype PLAN.
        most_output: most output tokens of each request; one that has them gets no more, int32 (n,).
        given: tokens of running requests, then of starting ones, int32 (2A,).
        limited: requests that run in part or not at all, int32 (2A,).
        limits: their tokens, int32 (2A,).
    """

    plan: Annotated[Any, Table(PLAN)]
    most_output: Annotated[Any, Table("i4", "num_requests")]
    given: Annotated[Any, Table("i4", "members")]
    limited: Annotated[Any, Table("i4", "members")]
    limits: Annotated[Any, Table("i4", "members")]


open_plan: Callable[[Any], Live] = opener(
    Live,
    "def open_plan(where):",
    "Open the tables of the plan.",
    [
        table.opening(f"where[{ROW_LENGTH + 2 * k}]", f"where[{ROW_LENGTH + 2 * k + 1}]")
        for k, table in enumerate(declared(Live).values())
    ],
)


def live_row(row: NDArray[np.int64], live: Live) -> NDArray[np.int64]:
    """Return the row of addresses for :func:`operate`, int64 (k,); the caller keeps all tables alive.

    Args:
        row: of the worker, see :func:`~kvgym.simulator.loop.worker_row`.
        live: tables of the plan.
    """
    return np.array(
        [*row, *(number for array in live for number in (address_of(array), array.size))], np.int64
    )


@jit_inline
def end(run: Run, i: int) -> None:
    """Remove a running request that has finished."""
    w, k = run.w, 0
    while run.active[k].request_id != i:
        k += 1
    slot = run.active[k]
    w.num_prefilling -= 1 if slot.num_prefill_left > 0 else 0
    free_memory(run, slot)
    complete(w, run.requests, run.finished, slot, w.clock)
    close_up(run.active, run.targets, k + 1, w.num_active, 1)
    w.num_active -= 1


@jit_inline
def abort(run: Run, i: int) -> None:
    """Remove a request that runs or waits; the policy finds it among those that were taken away."""
    w, r = run.w, run.requests[i]
    withdraw(w, run.queued, i)
    depart(w, r)
    if r.status == WAITING:
        queue_remove(w, run.requests, i)
    else:
        leave_batch(run, i)
    r.status = FINISHED


@jit_inline
def correct(run: Run, late: float) -> None:
    """Move the end of the last batch by some seconds, and the tokens it delivered."""
    was = run.w.last_batch_end
    run.w.last_batch_end = was + late
    for k in range(run.w.num_active):
        slot = run.active[k]
        if slot.last_token_time == was:
            slot.last_token_time = was + late
            if slot.num_output_tokens == 1:
                run.requests[slot.request_id].first_token_time = was + late


@jit_inline
def is_in_range(run: Run) -> bool:
    """Return whether the slots and requests that the decision names exist."""
    d = run.decision
    if not (0 <= d.num_evict <= run.evict.shape[0] and 0 <= d.num_admit <= run.admit.shape[0]):
        return False
    outside = 0
    for j in range(d.num_evict):
        outside += 0 if 0 <= run.evict[j] < run.w.num_active else 1
    for j in range(d.num_admit):
        outside += 0 if 0 <= run.admit[j] < run.requests.shape[0] else 1
    return outside == 0


@jit_inline
def whole(prefill_left: int) -> int:
    """Return the tokens of an iteration in which a request runs in full."""
    return prefill_left if prefill_left > 0 else 1


@jit_inline
def fitting(wanted: int, room: int, chunks: int) -> int:
    """Return the tokens that a request gets of those that are left in the budget."""
    tokens = min(max(room, 0), wanted)
    return tokens if chunks != 0 or tokens == wanted else 0


@jit_inline
def make_plan(run: Run, live: Live) -> None:
    """Plan the decision as the engine carries it out, and change the decision accordingly.

    What exceeds the token budget waits for the next iteration, in the order of running and then of starting requests. A
    request that would start without tokens waits. One that has all its output tokens gets none. A decision that names
    what does not exist is not changed: its execution will be refused.
    """
    d, p, count = run.decision, live.plan, run.w.num_active
    p.tokens, p.members, p.num_limited, p.num_put_back = 0, 0, 0, 0
    p.num_admit, p.num_evict, p.act = d.num_admit, d.num_evict, d.act
    if not is_in_range(run):
        return
    given, runs, explicit = live.given, d.act == RUN, d.explicit != 0
    for k in range(count):
        given[k] = 0
    for j in range(d.num_evict):
        given[run.evict[j]] = UNKNOWN
    room, total = p.budget, count + d.num_admit
    for k in range(total):
        if k < count:
            slot = run.active[k]
            i, left, chosen = slot.request_id, slot.num_prefill_left, slot.planned
            stays = given[k] != UNKNOWN
            wants = runs and stays and slot.num_output_tokens < live.most_output[i]
        else:
            i, chosen = run.admit[k - count], run.admit_tokens[k - count]
            left, wants, stays = run.requests[i].num_prefill_left, runs, True
        wanted = 0
        if wants:
            wanted = chosen if explicit and chosen != UNKNOWN else whole(left)
        tokens = fitting(wanted, room, p.chunks)
        room -= wanted
        given[k] = tokens
        p.tokens += tokens
        p.members += 1 if tokens > 0 else 0
        if stays and tokens < whole(left):
            live.limited[p.num_limited], live.limits[p.num_limited] = i, tokens
            p.num_limited += 1
    if p.num_limited > 0:
        d.explicit = 1
        for k in range(count):
            run.active[k].planned = given[k]
    if d.explicit != 0:
        kept = 0
        for j in range(d.num_admit):
            i, tokens = run.admit[j], given[count + j]
            if tokens > 0:
                run.admit[kept], run.admit_tokens[kept] = i, tokens
                kept += 1
            else:
                given[count + p.num_put_back] = i  # at most j: these tokens have been read
                p.num_put_back += 1
        d.num_admit = kept
        for j in range(p.num_put_back):
            run.admit[kept + j] = given[count + j]
        p.num_admit = kept


@kernel(types.int64(types.int64[::1], types.int64, types.int64, types.float64), "simulator")
def operate(where: Any, what: int, i: int, late: float) -> int:
    """Do one thing with the tables of a worker.

    Args:
        where: the row of :func:`live_row`.
        what: one of :data:`DECIDES` … :data:`CORRECTS`.
        i: the request that has finished or was taken away.
        late: seconds by which the last batch ended later than predicted.

    Returns:
        As :func:`~kvgym.simulator.loop.step_worker`.
    """
    run = open_plain(where)
    if what == ENDS:
        end(run, i)
        return OK
    if what == ABORTS:
        abort(run, i)
        return OK
    if what == CORRECTS:
        correct(run, late)
        return OK
    batch_time, params = open_batch_time(where), open_params(where)
    if what == DECIDES:
        clear_decision(run)
        view, decision = by_address(view_of(run, batch_time, params)), by_address(decision_of(run))
        open_policy(where)(view, decision, by_address(open_memory(where)))
    if what in (DECIDES, PLANS):
        make_plan(run, open_plan(where))
        return OK
    if what == STEPS:
        status = carry_out(run, batch_time, params)
        if status != OK:
            return int(status)
    status = next_boundary(run)
    if status == DECIDE:
        clear_decision(run)
    return int(status)
