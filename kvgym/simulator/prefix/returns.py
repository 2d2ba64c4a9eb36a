"""The gaps between turns of sessions that a worker has seen, and the compiled rules that decide by them.

A gap begins when a turn of a session finishes, and is known when the next turn arrives. What a finished turn waits for
is visible in its output: a call of a tool, or an answer to a person, after which a next turn may never come.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.prefix.cache import PrefixCache
from kvgym.simulator.prefix.pins import begin_pin
from kvgym.simulator.prefix.rules import CLAIRVOYANT, ENDS, FIXED, FOREVER
from kvgym.simulator.tables import GAP_CLASSES, RETURN_KINDS, UNKNOWN

SHORTEST = 2.0**-4
"""Upper end of the first class of gaps, seconds; each further one is twice as long, the last has longer ones, too."""


@jit_inline
def kind_of(turn: Any) -> int:
    """Return what a turn waits for, an index of :data:`~kvgym.workloads.table.GAP_KINDS`; 0 if the table lacks it."""
    return int(min(max(turn.next_kind, 0), RETURN_KINDS - 1))


@jit
def class_of(gap: float) -> int:
    """Return the class of a gap."""
    if gap <= SHORTEST:
        return 0
    return int(min(math.ceil(math.log2(gap / SHORTEST)), GAP_CLASSES - 1))


@jit
def count_return(pool: Any, turns: Any, requests: Any, i: int) -> None:
    """Count the gap before request ``i``, which arrives now.

    Args:
        pool: POOL record of its worker.
        turns: TURN (n,).
        requests: REQUEST (n,).
        i: the request.
    """
    previous = turns[turns[i].row].previous
    if previous == UNKNOWN:
        return
    gap = requests[i].arrival_time - requests[turns[previous].arrival].finish_time
    if gap >= 0.0:  # not NaN: in the open loop a turn may arrive before the one before it has finished
        kind = kind_of(turns[previous])
        pool.gaps[kind * GAP_CLASSES + class_of(gap)] += 1
        pool.gap_counts[kind] += 1
        pool.gap_totals[kind] += gap


@jit_inline
def gap_after(turn: Any, workload: Any, closed: bool, end: float) -> float:
    """Return the true time from the end of a turn to the arrival of the next one, seconds; inf if none follows.

    Args:
        turn: TURN record.
        workload: WORKLOAD (n,).
        closed: whether it arrives some time after that end; otherwise its arrival time is fixed.
        end: that end, seconds.
    """
    if turn.next == UNKNOWN:
        return np.inf
    return turn.next_think if closed else max(workload[turn.next].arrival_time - end, 0.0)


@jit
def best_time(pool: Any, w: Any, units: int, first: float, kind: int, end: float) -> float:
    """Return the time to live with the best expected value by the gaps seen so far, seconds; 0 = none is worth it.

    Its KV is found if the next turn arrives in time. Until then it takes the place of other KV. The price of a place is
    the time that a place of the cache lasts, ``units`` divided by the drops per second: the others are worth as much as
    this KV, found once in that time.

    Args:
        pool: POOL record.
        w: WORKER record.
        units: units of the worker's memory.
        first: time to live until a gap of this kind has been seen, seconds.
        kind: what the turn waits for.
        end: now, seconds.
    """
    if pool.gap_counts[kind] == 0:
        return first
    turns = max(pool.turn_counts[kind], pool.gap_counts[kind])
    price = w.total_dropped_units / (units * end) if end > 0.0 else 0.0
    best, seconds, back, held, edge = 0.0, 0.0, 0, 0.0, SHORTEST
    for k in range(GAP_CLASSES):
        here = pool.gaps[kind * GAP_CLASSES + k]
        back += here
        held += here * edge
        value = back - (held + (turns - back) * edge) * price
        if value > best:
            best, seconds = value, edge
        edge *= 2.0
    return seconds


@jit
def keep_finished(
    c: PrefixCache, p: Any, w: Any, turns: Any, workload: Any, closed: bool, i: int, end: float
) -> float:
    """Count the end of request ``i``, which has given up its units, and pin these as long as the cache rule says.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        w: WORKER record.
        turns: TURN (n,), empty if the requests have no sessions.
        workload: WORKLOAD (n,).
        closed: see :func:`gap_after`.
        i: the request.
        end: now, seconds.

    Returns:
        Until when they are kept, seconds: ``end`` if they are not, at most ``FOREVER`` later.
    """
    kind, seconds = 0, 0.0
    if turns.shape[0] > 0:
        kind = kind_of(turns[turns[i].row])
        c.pool.turn_counts[kind] += 1
    if p.cache_rule == FIXED:
        seconds = p.rule_params[kind]
    elif p.cache_rule == ENDS:
        seconds = 0.0 if turns[turns[i].row].next == UNKNOWN else p.rule_params[kind]
    elif p.cache_rule == CLAIRVOYANT:
        gap = gap_after(turns[turns[i].row], workload, closed, end)
        seconds = (
            FOREVER - gap - 2.0 * end if gap < np.inf else 0.0
        )  # the later it returns, the earlier the deadline
    elif p.cache_rule > 0:
        seconds = best_time(c.pool, w, p.kv_capacity // p.prefix_unit, p.rule_params[0], kind, end)
    if seconds > 0.0:
        begin_pin(c, i, end + seconds)
    return end + min(max(seconds, 0.0), FOREVER)
