"""Pins: units of the prefix cache that a finished request goes on holding for a time to live.

The units of a finished request stay in the cache, but running requests and those that wait take their memory, the
longest unused first. A pin keeps them for the request that comes next in the same conversation: its memory stays in
use, so that policies leave it alone. It is given back

- at its deadline, or when a request starts that finds the units;
- when running requests do not fit into the next iteration, when a decision does not fit, and when requests wait
  beside an empty worker. Of several pins, the one with the earliest deadline goes first.

So a pin never evicts a running request, stops a worker or refuses a decision. The units then stay in the cache like
those of a request that has just finished. The cache rule of the system decides how long, see
:mod:`kvgym.simulator.cache_rules`, or the agent of ``kvgym/Cache-v0``.
"""

from __future__ import annotations

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.blocks import allocated, written_tokens
from kvgym.simulator.boundary import Run, cache_of, has_cache
from kvgym.simulator.cache_rules import FIXED
from kvgym.simulator.prefix_cache import give_up, remove_cached
from kvgym.simulator.tables import UNKNOWN


@jit_inline
def count_pinned(run: Run, units: int) -> None:
    """Count units that a pin has taken from the list of cached ones (negative: given back) as memory in use."""
    tokens = units * run.problem.prefix_unit
    run.w.kv_allocated += tokens
    run.w.kv_shared -= tokens
    run.w.kv_cached = run.pool.num_cached * run.problem.prefix_unit


@jit
def begin_pin(run: Run, i: int, deadline: float) -> None:
    """Let request ``i``, which has finished at this boundary, hold the units that it has given up.

    Args:
        run: the tables.
        i: the request.
        deadline: seconds; inf = none.
    """
    pool, p, taken = run.pool, run.prefix[i], 0
    if p.left == 0:
        return
    for place in range(p.held, p.held + p.left):
        u = run.units[run.held[place]]
        if u.holders == 0:
            remove_cached(cache_of(run), run.held[place])
            taken += 1
        u.holders += 1
    p.num_units, p.deadline = p.left, deadline
    run.units[run.held[p.held + p.left - 1]].pin = i
    before = pool.last_pin
    while before != UNKNOWN and run.prefix[before].deadline > deadline:
        before = run.prefix[before].before[0]
    after = pool.first_pin if before == UNKNOWN else run.prefix[before].after[0]
    p.before[0], p.after[0] = before, after
    if before == UNKNOWN:
        pool.first_pin = i
    else:
        run.prefix[before].after[0] = i
    if after == UNKNOWN:
        pool.last_pin = i
    else:
        run.prefix[after].before[0] = i
    count_pinned(run, taken)


@jit
def end_pin(run: Run, i: int) -> int:
    """Let the pinned request ``i`` give up its units; return the memory that becomes free, tokens."""
    pool, p = run.pool, run.prefix[i]
    before, after = p.before[0], p.after[0]
    if before == UNKNOWN:
        pool.first_pin = after
    else:
        run.prefix[before].after[0] = after
    if after == UNKNOWN:
        pool.last_pin = before
    else:
        run.prefix[after].before[0] = before
    last = run.units[run.held[p.held + p.num_units - 1]]
    if last.pin == i:
        last.pin = UNKNOWN
    count = p.num_units
    freed = count - give_up(cache_of(run), i)
    count_pinned(run, -freed)
    return freed * run.problem.prefix_unit


@jit_inline
def end_pin_found_by(run: Run, i: int) -> None:
    """End the pin that the starting request ``i`` has waited for: its hit ends with the pinned units."""
    p = run.prefix[i]
    if p.num_units > 0:
        found = run.units[run.held[p.held + p.num_units - 1]].pin
        if found != UNKNOWN:
            end_pin(run, found)


@jit
def need_of_running(run: Run) -> int:
    """Return the memory that the next iteration needs, pins included, if all active requests run in full, tokens."""
    p, w = run.problem, run.w
    need = w.kv_allocated + p.block_size * w.num_full  # if all decode one token
    for k in range(w.num_active if w.num_prefilling > 0 else 0):
        slot = run.active[k]
        left = slot.num_prefill_left
        if left > 0:
            need += allocated(p, slot.num_kv_tokens + written_tokens(p, left, left))
            need -= allocated(p, slot.num_kv_tokens + 1)
    return int(need)


@jit
def give_way(run: Run) -> None:
    """End the pins that are due, and those that running or waiting requests need."""
    w, pool = run.w, run.pool
    waits = w.num_active == 0 and w.num_waiting > 0
    need = need_of_running(run)
    while pool.first_pin != UNKNOWN and (
        waits or need > run.problem.kv_capacity or run.prefix[pool.first_pin].deadline <= w.clock
    ):
        need -= end_pin(run, pool.first_pin)


@jit
def time_to_live(run: Run, i: int, end: float) -> float:
    """Return how long the units of request ``i``, which ends now, stay pinned by the cache rule, seconds.

    Args:
        run: the tables.
        i: the request.
        end: now, seconds.
    """
    p = run.problem
    if p.cache_rule == FIXED:
        return float(p.rule_params[0])
    return 0.0


@jit_inline
def keep_finished(run: Run, i: int, end: float) -> None:
    """Pin the units that request ``i`` has just given up, as long as the cache rule says."""
    if has_cache(run) and run.problem.cache_rule > 0:
        seconds = time_to_live(run, i, end)
        if seconds > 0.0:
            begin_pin(run, i, end + seconds)
