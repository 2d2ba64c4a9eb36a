"""Pins: units of the prefix cache that are dropped after all others, for a time to live.

When a request has finished, its units stay in the cache, and new requests take their memory: first the unit without
a holder for longest comes first. A pin keeps the units of a request out of that order until its deadline, or until a
request starts that finds them. Pinned memory is free like the memory of all cached units: no policy needs to know of
pins, and none is ever refused memory for them. If only pinned units are left to drop, the pin with the earliest
deadline ends. The units of a pin that has ended are the last in order, like those of a request that has just finished.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.simulator.prefix.cache import PrefixCache, append_cached, drop_first, remove_cached, show_dropped
from kvgym.simulator.tables import UNKNOWN


@jit
def begin_pin(c: PrefixCache, i: int, deadline: float) -> None:
    """Pin the units that request ``i`` has given up at this boundary.

    Args:
        c: the prefix cache.
        i: the request.
        deadline: seconds; inf = none.
    """
    pool, p = c.pool, c.prefix[i]
    if p.left == 0:
        return
    for place in range(p.held, p.held + p.left):
        u = c.units[c.held[place]]
        if u.holders == 0 and u.pins == 0:
            remove_cached(c, c.held[place])
        u.pins += 1
    c.units[c.held[p.held + p.left - 1]].pin = i
    p.deadline = deadline
    before = pool.last_pin
    while before != UNKNOWN and c.prefix[before].deadline > deadline:
        before = c.prefix[before].before[0]
    after = pool.first_pin if before == UNKNOWN else c.prefix[before].after[0]
    p.before[0], p.after[0] = before, after
    if before == UNKNOWN:
        pool.first_pin = i
    else:
        c.prefix[before].after[0] = i
    if after == UNKNOWN:
        pool.last_pin = i
    else:
        c.prefix[after].before[0] = i
    pool.num_pins += 1


@jit
def end_pin(c: PrefixCache, i: int) -> None:
    """End the pin of request ``i``."""
    pool, p = c.pool, c.prefix[i]
    before, after = p.before[0], p.after[0]
    if before == UNKNOWN:
        pool.first_pin = after
    else:
        c.prefix[before].after[0] = after
    if after == UNKNOWN:
        pool.last_pin = before
    else:
        c.prefix[after].before[0] = before
    pool.num_pins -= 1
    p.deadline = 0.0
    last = c.units[c.held[p.held + p.left - 1]]
    if last.pin == i:
        last.pin = UNKNOWN
    for place in range(p.held + p.left - 1, p.held - 1, -1):
        u = c.units[c.held[place]]
        u.pins -= 1
        if u.holders == 0 and u.pins == 0:
            append_cached(c, c.held[place])


@jit
def end_pin_found_by(c: PrefixCache, i: int) -> None:
    """End the pin that the starting request ``i`` has waited for: its hit ends with the pinned units."""
    p = c.prefix[i]
    if p.num_units > 0:
        found = c.units[c.held[p.held + p.num_units - 1]].pin
        if found != UNKNOWN:
            end_pin(c, found)


@jit
def make_room(c: PrefixCache, requests: Any, problem: Any, w: Any, in_use: int) -> None:
    """End the pins that are due, and drop cached units until they fit with the memory that is in use, tokens."""
    unit, pool = problem.prefix_unit, c.pool
    while pool.first_pin != UNKNOWN and c.prefix[pool.first_pin].deadline <= w.clock:
        end_pin(c, pool.first_pin)
    spare: Any = pool.spare
    while in_use + pool.num_cached * unit > problem.kv_capacity or (
        problem.prefix_tree == 1 and pool.head != UNKNOWN and c.units[pool.head].ends == 0
    ):  # in a tree, the rest of a node goes with its last unit
        if pool.head == UNKNOWN:
            end_pin(c, pool.first_pin)
        else:
            drop_first(c, w.clock)
            w.total_dropped_units += 1
    show_dropped(c, requests, unit, w, spare)
    w.kv_cached = pool.num_cached * unit
