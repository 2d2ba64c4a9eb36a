"""What a memory below the GPU keeps, and what it drops: the least recently used units, tails first.

A unit is *present* from the moment its write is offered and room is taken; until the transfer has ended it is *coming*:
found, but not dropped. Present units are dropped by (rank, -position in their chain), the smallest first. A request
gets the next rank when it first offers units or loads some. Units that it writes take its rank; so do units that it
loads, or offers and finds, if theirs is smaller. When it has finished, all that it used get ranks of their own, from
the last unit to the first. A write needs room for all units of the offer that are missing; those of the offer are not
dropped for it. If the rest cannot give way, nothing is written, and the same units are offered again with the next
batch; they count as used nevertheless.

With a cache rule (:mod:`kvgym.simulator.prefix.rules`), ranks are times, until which the rule keeps units. Those of
running requests, which the GPU has, are kept until their start: they give way to what waits and is kept for longer. A
unit of several requests goes by the last one that began or ended.

The host and a store below it are two such memories: a ``run`` here has the tables of one of them, in ``tier``,
``stored``, ``drops`` and ``tiered``. What is in any of them is marked in ``below``, where the worker finds it.

Source: ``CPUOffloadingManager`` with its LRU policy (vLLM, ``vllm/v1/kv_offload/cpu``, release 0.33), which writes,
finds and drops the same.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.simulator.boundary import Run
from kvgym.simulator.prefix.host_memory import LEAST_RANK
from kvgym.simulator.prefix.rules import LRU
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.tiers.rows import lose_everywhere, show, store_of

_POSITIONS = 2**24
"""More than the units of any request."""

_PER_SECOND, _LAST_RANK = 2.0**10, 2.0**39 - 1
"""Ranks in a second of the time until which units are kept, and the last one; with positions they fill an int64."""


@jit
def drop_key(rank: int, position: int) -> int:
    """Return the number by which units are dropped, the smallest first."""
    return rank * _POSITIONS + (_POSITIONS - 1 - position)


# ------------------------------------------------------------ the heap of units, with entries that no longer hold


@jit
def push(tier: Any, drops: Any, key: int, content: int, stamp: int) -> None:
    """Add an entry; there is room for it."""
    k = tier.num_drops
    tier.num_drops += 1
    while k > 0:
        parent = (k - 1) >> 1
        if drops[parent].key <= key:
            break
        drops[k] = drops[parent]
        k = parent
    drops[k].key, drops[k].content, drops[k].stamp = key, content, stamp


@jit
def pop(tier: Any, drops: Any) -> tuple[int, int, int]:
    """Remove the entry with the smallest key; return its key, content and stamp."""
    found, content, stamp = drops[0].key, drops[0].content, drops[0].stamp
    tier.num_drops -= 1
    length = tier.num_drops
    key, moved, its = drops[length].key, drops[length].content, drops[length].stamp
    k = 0
    while True:
        child = 2 * k + 1
        if child >= length:
            break
        if child + 1 < length and drops[child + 1].key < drops[child].key:
            child += 1
        if drops[child].key >= key:
            break
        drops[k] = drops[child]
        k = child
    drops[k].key, drops[k].content, drops[k].stamp = key, moved, its
    return found, content, stamp


@jit
def list_drop(run: Run, content: int) -> None:
    """List a present unit with its present rank; entries that no longer hold go when there is no room for another."""
    tier, drops = store_of(run), run.drops
    if tier.num_drops == tier.room:
        count, tier.num_drops = tier.num_drops, 0
        for k in range(count):
            key, other, stamp = drops[k].key, drops[k].content, drops[k].stamp
            if other != content and run.stored[other].rank > 0 and stamp == run.stored[other].stamp:
                push(tier, drops, key, other, stamp)
    b = run.stored[content]
    b.stamp += 1
    push(tier, drops, drop_key(b.rank, b.position), content, b.stamp)


@jit
def use(run: Run, content: int, rank: int) -> None:
    """Give a present unit a rank, if its own is smaller; under a cache rule in any case."""
    b = run.stored[content]
    if b.rank < rank or (run.problem.cache_rule != LRU and b.rank != rank):
        b.rank = rank
        list_drop(run, content)


# ------------------------------------------------------------ requests


@jit
def next_rank(run: Run, until: float) -> int:
    """Return the next rank, that of a time in seconds if a cache rule keeps units until then."""
    if run.problem.cache_rule != LRU:
        return 1 + int(min(until * _PER_SECOND, _LAST_RANK - 1.0))
    store = store_of(run)
    store.last_rank += 1
    return int(store.last_rank)


@jit
def begin_use(run: Run, i: int) -> None:
    """Prepare request ``i`` for its start with this memory: all its units are offered again."""
    t = run.tiered[i]
    if t.memory != run.tier.number + 1:
        t.memory, t.rank, t.used = run.tier.number + 1, 0, 0
    t.offered = 0


@jit
def rank_of(run: Run, i: int) -> int:
    """Return the rank of request ``i``, the next one at its first use."""
    t = run.tiered[i]
    if t.rank == 0:
        t.rank = next_rank(run, run.w.clock)
    return int(t.rank)


@jit
def end_use(run: Run, i: int, until: float) -> None:
    """Give what request ``i`` has used, which has finished, ranks of its own, from the last unit to the first.

    Args:
        run: the tables.
        i: the request.
        until: when a cache rule ceases to keep it, seconds.
    """
    p, t = run.prefix[i], run.tiered[i]
    for j in range(t.used - 1, t.first - 1, -1):
        content = run.chain[p.chain + j]
        if run.stored[content].rank > 0:
            use(run, content, next_rank(run, until))
    t.used = 0


# ------------------------------------------------------------ room


@jit
def drop(run: Run, content: int) -> None:
    """Drop a present unit; requests that wait for it lose it, unless their GPU or another memory has it."""
    store = store_of(run)
    run.stored[content].rank = 0
    store.used -= 1
    store.total_dropped += 1
    lose_everywhere(run, content)


@jit
def make_room_below(run: Run, needed: int, now: float) -> bool:
    """Drop units until ``needed`` have room; False, and nothing is dropped, if too many are busy or of this offer."""
    tier, drops = store_of(run), run.drops
    lacking: Any = tier.used + needed - tier.capacity
    if lacking <= 0:
        return True
    if needed > tier.capacity:
        return False
    end, kept, found = tier.num_drops, 0, 0  # what is taken from the heap stands at the end of its table
    while found < lacking and tier.num_drops > 0:
        key, content, stamp = pop(tier, drops)
        b = run.stored[content]
        if b.rank == 0 or stamp != b.stamp:
            continue
        kept += 1
        drops[end - kept].key, drops[end - kept].content, drops[end - kept].stamp = key, content, stamp
        found += 1 if b.busy_until <= now and b.offer != tier.offer else 0
    for k in range(end - kept, end):
        key, content, stamp = drops[k].key, drops[k].content, drops[k].stamp
        b = run.stored[content]
        if found == lacking and b.busy_until <= now and b.offer != tier.offer:
            drop(run, content)
        else:
            push(tier, drops, key, content, stamp)
    return bool(found == lacking)


@jit
def keep(run: Run, content: int, now: float) -> bool:
    """Let a content that is dropped above take room, as the one used last, unless it is there; False if it has none."""
    store, b = store_of(run), run.stored[content]
    rank = next_rank(run, now)
    if b.rank > 0:
        use(run, content, max(b.rank, rank))
        return False
    store.offer += 1
    if not make_room_below(run, 1, now):
        return False
    b.rank, b.written, b.position = rank, store.offer, run.below[content].position
    store.used += 1
    show(run, content, store.mark, b.position)
    list_drop(run, content)
    return True


@jit
def drop_early(run: Run, content: int) -> None:
    """Let a present content be dropped before all others, as it is above as well."""
    b = run.stored[content]
    if b.rank > 0:
        b.rank = LEAST_RANK
        list_drop(run, content)


@jit
def offer(run: Run, i: int, first: int, last: int, now: float) -> int:
    """Offer the units ``first`` … ``last - 1`` of request ``i``; those that are written have room from now on.

    Returns:
        How many are written; UNKNOWN if there is no room, so that they must be offered again.
    """
    tier, p, missing = store_of(run), run.prefix[i], 0
    tier.offer += 1
    for j in range(first, last):
        b = run.stored[run.chain[p.chain + j]]
        b.offer = tier.offer
        if b.rank == 0:
            missing += 1
        elif b.ready_at <= now:
            use(run, run.chain[p.chain + j], rank_of(run, i))
    rank = rank_of(run, i) if missing > 0 else 0
    run.tiered[i].used = max(run.tiered[i].used, last)
    if not make_room_below(run, missing, now):
        return UNKNOWN
    for j in range(first, last):
        content = run.chain[p.chain + j]
        b = run.stored[content]
        if b.rank == 0:
            b.rank, b.written, b.position = rank, tier.offer, j
            tier.used += 1
            show(run, content, tier.mark, j)
            list_drop(run, content)
    return missing
