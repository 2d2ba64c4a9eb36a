"""Marks of a decision in the tables of the prefix cache: what its starts find one after the other.

With ``prefix_cache="scheduled"`` a decision takes effect in order. Policies and the check of a decision follow it by a
plan: contents that the decision enters into the map have its stamp, and units have a planned change of holders, or are
planned to be dropped. Pins are not followed: where they end, a plan drops fewer units than the engine. A start then has
a hit that is at most as long as planned, and takes at most as much memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit
from kvgym.simulator.blocks import with_known, with_kv
from kvgym.simulator.prefix.cache import PrefixCache
from kvgym.simulator.prefix.tier_hook import CHOOSE, PLAN, call_tier
from kvgym.simulator.tables import ACTIVE, UNKNOWN

_DROPPED = -(2**30)
"""Planned change of the holders of a unit that the plan drops; fewer than all holders together could undo."""


@jit
def unit_of(c: PrefixCache, i: int, j: int, active: bool) -> int:
    """Return the j-th unit of request ``i``: held if it is active, found if it waits; UNKNOWN if it is only below."""
    p = c.prefix[i]
    return int(c.held[p.held + j] if active else c.contents[c.chain[p.chain + j]].unit)


@jit
def planned_holders(c: PrefixCache, b: int) -> int:
    """Return how many requests hold unit ``b`` under the decision so far."""
    u = c.units[b]
    return int(u.holders + (u.planned if u.stamp == c.pool.stamp else 0))


@jit
def units_of_others(c: PrefixCache, i: int, active: bool) -> int:
    """Return how many units of request ``i``, held or found, others hold under the decision so far."""
    shared = c.prefix[i].kept
    for j in range(shared, c.prefix[i].num_units):
        b = unit_of(c, i, j, active)
        if b == UNKNOWN:
            break
        shared += 1 if planned_holders(c, b) > (1 if active else 0) else 0
    return shared


@jit
def plan_units(c: PrefixCache, i: int, active: bool, change: int) -> None:
    """Add to the decision that each unit of request ``i``, held or found, has ``change`` more holders."""
    for j in range(c.prefix[i].kept, c.prefix[i].num_units):
        b = unit_of(c, i, j, active)
        if b == UNKNOWN:
            break
        u = c.units[b]
        if u.stamp != c.pool.stamp:
            u.stamp, u.planned = c.pool.stamp, 0
        u.planned += change


@jit
def plan_change(c: PrefixCache, i: int, active: bool) -> int:
    """Add to the decision that the active request ``i`` is evicted, or that a waiting one starts.

    Returns:
        The number of its units, held or found, that others hold.
    """
    shared = units_of_others(c, i, active)
    plan_units(c, i, active, -1 if active else 1)
    return shared


@jit
def begins_like_marked(c: PrefixCache, i: int, units: int) -> bool:
    """Return whether request ``i`` has the same first units as a marked one; if not, mark it for this decision."""
    p, stamp, same = c.prefix[i], np.int32(c.pool.stamp), 0
    while same < units and c.contents[c.chain[p.chain + same]].stamp == stamp:
        same += 1
    for j in range(same, units):
        c.contents[c.chain[p.chain + j]].stamp = stamp
    return same == units


@jit
def planned_unit(c: PrefixCache, content: int) -> int:
    """Return the first unit with a content that the plan does not drop, UNKNOWN if there is none."""
    first = c.contents[content].unit
    b = first
    while b != UNKNOWN and c.units[b].stamp == c.pool.stamp and c.units[b].planned == _DROPPED:
        b = c.units[b].copy_after
        if b == first:
            return UNKNOWN
    return int(b)


@jit
def plan_shared(c: PrefixCache, unit: int, i: int, known: int, tokens: int) -> None:
    """Plan that request ``i`` enters the units of its first ``tokens`` tokens, after the first ``known`` units."""
    p = c.prefix[i]
    for j in range(known, min(tokens // unit, p.length)):
        c.contents[c.chain[p.chain + j]].stamp = np.int32(c.pool.stamp)


@jit
def plan_room(c: PrefixCache, unit: int, in_use: int, capacity: int) -> None:
    """Plan to drop cached units until they fit with the memory that is in use, tokens."""
    pool = c.pool
    while in_use + pool.plan_cached * unit > capacity and pool.plan_next != UNKNOWN:
        u = c.units[pool.plan_next]
        pool.plan_next = u.after
        if u.stamp != pool.stamp or u.planned <= 0:
            u.stamp, u.planned = pool.stamp, _DROPPED
            pool.plan_cached -= 1


@jit
def plan_kept(c: PrefixCache, i: int, change: int) -> int:
    """Plan that a request that has just finished still holds its units (``change`` 1), or is preempted (-1).

    Returns:
        How many of them others hold under the decision so far.
    """
    p, shared = c.prefix[i], 0
    for place in range(p.held, p.held + p.left):
        u = c.units[c.held[place]]
        if u.stamp != c.pool.stamp:
            u.stamp, u.planned = c.pool.stamp, 0
        before = u.holders + u.planned
        u.planned += change
        shared += 1 if min(before, before + change) > 0 else 0
    return shared


@jit
def planned_hit(c: PrefixCache, i: int) -> tuple[int, int]:
    """Return the units that the waiting request ``i`` finds if it starts next, and how many of them others hold."""
    p, found, shared = c.prefix[i], c.prefix[i].kept, c.prefix[i].kept
    first, shared_first = p.most, 0  # the first unit that is only below the GPU
    while found < p.most:
        content = c.chain[p.chain + found]
        b = planned_unit(c, content)
        entered = b == UNKNOWN and c.contents[content].stamp == np.int32(c.pool.stamp)
        if b == UNKNOWN and not entered:
            if not (c.below.shape[0] > 0 and c.below[content].there > 0):
                break
            if found < first:
                first, shared_first = found, shared
        shared += 1 if entered or (b != UNKNOWN and planned_holders(c, b) > 0) else 0
        found += 1
    if first < found and c.tier.cheaper == 1:
        taken = call_tier(c.tier, CHOOSE, i, first, found, 0.0)
        if taken < found:
            return taken, shared_first
    return found, shared


@jit
def last_is_below(c: PrefixCache, unit: int, r: Any, i: int, found: int) -> bool:
    """Return whether the waiting request ``i`` finds all of its whole units, and its last one below the GPU.

    That one is loaded even if the GPU has it, and only the last token is computed, as in vLLM.
    """
    p = c.prefix[i]
    if p.kept > 0 or found != p.most or r.num_kv_tokens != p.num_units * unit or found >= p.length:
        return False
    whole = (found + 1) * unit == r.num_kv_tokens + r.num_prefill_left
    return bool(whole and c.tier.cheaper == 0 and c.below[c.chain[p.chain + found]].there > 0)


@jit
def plan_start(c: PrefixCache, i: int, found: int) -> None:
    """Plan that the waiting request ``i`` becomes a holder of the first ``found`` units of its chain."""
    pool, p, first = c.pool, c.prefix[i], found
    for j in range(p.kept, min(found, p.most)):  # a last unit beyond is a copy of its own
        content = c.chain[p.chain + j]
        b = planned_unit(c, content)
        if b == UNKNOWN:  # entered by the decision, so it is held; or below the GPU
            if first == found and c.contents[content].stamp != np.int32(pool.stamp):
                first = j
            continue
        u = c.units[b]
        if planned_holders(c, b) == 0:
            pool.plan_cached -= 1
        if u.stamp != pool.stamp:
            u.stamp, u.planned = pool.stamp, 0
        u.planned += 1
    if first < found and c.tier.cheaper == 1:
        call_tier(c.tier, PLAN, i, first, found, 0.0)


@jit
def plan_active(
    c: Any, p: Any, d: Any, w: Any, active: Any, requests: Any, in_use: int, kept: int = 0
) -> None:
    """Begin a plan: the running requests take their memory, and enter the units of their next tokens into the map.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        d: DECISION record.
        w: WORKER record.
        active: SLOT (A,), with the planned tokens.
        requests: REQUEST (n,); those that are evicted are marked.
        in_use: memory in use afterwards, tokens.
        kept: cached units that the plan counts as held.
    """
    c.pool.plan_next, c.pool.plan_cached = c.pool.head, c.pool.num_cached - kept
    if c.below.shape[0] > 0:
        c.tier.planned = UNKNOWN
    plan_room(c, p.prefix_unit, in_use, p.kv_capacity)
    for k in range(w.num_active):
        slot = active[k]
        if requests[slot.request_id].status == ACTIVE:
            known = c.prefix[slot.request_id].num_units
            plan_shared(c, p.prefix_unit, slot.request_id, known, with_known(p, d, w, slot))


@jit
def planned_size(c: Any, p: Any, r: Any, i: int) -> tuple[int, int, int, int]:
    """Return what the waiting request ``i`` has if it starts next under the plan.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        r: row of the request.
        i: its number.

    Returns:
        The units that it finds, its KV tokens, its tokens left to prefill, and the memory of it that others hold.
    """
    found, shared = planned_hit(c, i)
    change = (found - c.prefix[i].num_units) * p.prefix_unit
    if c.below.shape[0] > 0 and last_is_below(c, p.prefix_unit, r, i, found):
        found += 1
        change += p.prefix_unit - 1
    return found, r.num_kv_tokens + change, r.num_prefill_left - change, shared * p.prefix_unit


@jit
def plan_admission(
    c: Any, p: Any, d: Any, i: int, found: int, kv: int, left: int, tokens: int, in_use: int
) -> None:
    """Plan that the waiting request ``i`` starts.

    Args:
        c: the prefix cache.
        p: PROBLEM record.
        d: DECISION record.
        i: the request.
        found: units that it finds.
        kv: its KV tokens, those included.
        left: its tokens left to prefill.
        tokens: those that it processes.
        in_use: memory in use afterwards, tokens.
    """
    plan_start(c, i, found)
    plan_room(c, p.prefix_unit, in_use, p.kv_capacity)
    plan_shared(c, p.prefix_unit, i, found, with_kv(p, left, kv, tokens))
