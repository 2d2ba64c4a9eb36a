"""The prefix cache of a worker: KV memory that stays after its request has gone, for later requests that begin alike.

KV memory is shared in *units* of whole blocks. A request has a *chain*: a number for each full unit of its tokens.
Equal numbers mean equal text, and equal text before it. When the tokens of a unit have been computed, the unit enters
the *map*, in which later requests find it by its content. The memory of a worker divides into:

- used: units with holders, and what requests have beyond their units in the map;
- cached: units in the map without a holder. They are free memory: new blocks take the unused memory first, and then
  drop the cached unit that has been without a holder for longest;
- unused: the rest.

A request finds the longest beginning of its chain that is in the map, short of its last token, because at least one
token must be computed. While it waits, its row always shows the present hit: the hit counts as KV tokens and not as
prompt left. This is kept up to date by events: a waiting request is listed with the content at which its hit ends and
with the one that it lacks next, and a change of the map looks only at the requests listed there, once for all units
that one request enters or one need of memory drops. A request that starts becomes a holder of its hit. A request that
leaves gives its units up from the last to the first, so that the end of a chain is dropped before its beginning. A unit
in the map therefore always has its predecessors there.

Equal units that two requests compute side by side stay *copies*: each takes memory, the first one is found.

A unit enters the map at the end of the batch that computes it (``"computed"``), or when its tokens are scheduled
(``"scheduled"``). Then a decision takes effect in order: the running requests take their memory and enter their units
one by one, and then one start after the other. A start finds what those before it are about to compute, and may lack a
unit that they have dropped. Memory is the same or less than by the hits before the decision. What a start finds in this
order is part of a *plan*, see :mod:`kvgym.simulator.prefix.plan`.

With ``"radix"`` the map is a tree of nodes, without copies, which are dropped whole: see
:mod:`kvgym.simulator.prefix.tree`.

Source: the block pool of vLLM's V1 engine (``vllm/v1/core/block_pool.py``, ``kv_cache_manager.py``, releases 0.24 and
0.33), with the same hits, order of eviction and copies; its units enter the map when they are scheduled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvgym.compiling.kernel import jit
from kvgym.simulator.prefix.tier_hook import DROP, call_tier
from kvgym.simulator.tables import ENDS, LACKS, UNKNOWN


class PrefixCache(NamedTuple):
    """The tables of a worker's prefix cache: n requests, D contents, N units; empty without one.

    Attributes:
        pool: POOL record.
        units: UNIT (N,).
        contents: CONTENT (D,).
        chain: int32 (T,), the contents of the chains of all requests, which may overlap.
        held: int32 (H,), the units that active requests hold, in the order of their chains.
        prefix: PREFIX (n,).
        changed: float64 (D,), when a content last entered the map or left it, seconds; empty if no router needs it.
        tier: TIER record of the memory below the GPU, see :mod:`kvgym.simulator.tiers`.
        below: BELOW (D,), the contents in that memory and below it; empty without one.
    """

    pool: Any
    units: Any
    contents: Any
    chain: Any
    held: Any
    prefix: Any
    changed: Any
    tier: Any
    below: Any


# ------------------------------------------------------------ waiting requests


@jit
def list_waiting(c: PrefixCache, kind: int, place: int, i: int) -> None:
    """List request ``i`` with the content at ``place`` of the chains; ``kind`` is ENDS or LACKS."""
    content, r = c.contents[c.chain[place]], c.prefix[i]
    following = content.waiting[kind]
    r.before[kind], r.after[kind] = UNKNOWN, following
    if following != UNKNOWN:
        c.prefix[following].before[kind] = i
    content.waiting[kind] = i


@jit
def unlist_waiting(c: PrefixCache, kind: int, place: int, i: int) -> None:
    """Remove request ``i`` from the list of the content at ``place``."""
    r = c.prefix[i]
    before, following = r.before[kind], r.after[kind]
    if before == UNKNOWN:
        c.contents[c.chain[place]].waiting[kind] = following
    else:
        c.prefix[before].after[kind] = following
    if following != UNKNOWN:
        c.prefix[following].before[kind] = before


@jit
def count_hit(c: PrefixCache, i: int, before: int, found: int) -> None:
    """Count the waiting request ``i`` with the contents of its hit, see :func:`shorten_hits`; ``before`` are known."""
    place = c.prefix[i].chain
    for j in range(before, found):
        c.below[c.chain[place + j]].waiting += 1
    for j in range(found, before):
        c.below[c.chain[place + j]].waiting -= 1


@jit
def set_hit(c: PrefixCache, requests: Any, unit: int, i: int, found: int) -> None:
    """Let the waiting request ``i`` have a hit of ``found`` units, list it, and show the hit in its row."""
    p, r = c.prefix[i], requests[i]
    change = (found - p.num_units) * unit
    if c.below.shape[0] > 0:
        count_hit(c, i, p.num_units, found)
    r.num_kv_tokens += change
    r.num_prefill_left -= change
    p.num_units = found
    if found > 0:
        list_waiting(c, ENDS, p.chain + found - 1, i)
    if found < p.most:
        list_waiting(c, LACKS, p.chain + found, i)


@jit
def forget_hit(c: PrefixCache, i: int) -> None:
    """Remove the waiting request ``i`` from the lists; its row still shows its hit."""
    p = c.prefix[i]
    if p.num_units > 0:
        unlist_waiting(c, ENDS, p.chain + p.num_units - 1, i)
    if p.num_units < p.most:
        unlist_waiting(c, LACKS, p.chain + p.num_units, i)


@jit
def lose_hit(c: PrefixCache, requests: Any, unit: int, i: int) -> None:
    """Take its hit from the waiting request ``i``, which leaves the queue without starting."""
    forget_hit(c, i)
    c.prefix[i].most = 0
    set_hit(c, requests, unit, i, 0)


@jit
def is_there(c: PrefixCache, content: int) -> bool:
    """Return whether a content is found: in the map, or below the GPU."""
    return bool(c.contents[content].unit != UNKNOWN or (c.below.shape[0] > 0 and c.below[content].there > 0))


@jit
def find_hit(c: PrefixCache, i: int, found: int) -> int:
    """Return the units that request ``i`` finds, of which the first ``found`` are known to be there."""
    p = c.prefix[i]
    while found < p.most and is_there(c, c.chain[p.chain + found]):
        found += 1
    return found


@jit
def tokens_there(c: PrefixCache, unit: int, i: int, tokens: int) -> int:
    """Return how many of the first ``tokens`` of request ``i``, which does not wait here, are in the map."""
    p = c.prefix[i]
    p.most = min(tokens // unit, p.length)
    return find_hit(c, i, 0) * unit


@jit
def start_waiting(c: PrefixCache, requests: Any, unit: int, i: int) -> None:
    """Show in the row of a request that joins the queue what it finds; nothing if it brings KV of its own."""
    p, r = c.prefix[i], requests[i]
    p.num_units = p.most = 0
    if r.num_kv_tokens == 0:
        p.most = min((r.num_prefill_left - 1) // unit, p.length)
        set_hit(c, requests, unit, i, find_hit(c, i, 0))


# ------------------------------------------------------------ units


@jit
def append_cached(c: PrefixCache, b: int) -> None:
    """Add unit ``b``, which has no holder and no pin any more, to the end of the list of units to be dropped."""
    pool, u = c.pool, c.units[b]
    u.before, u.after = pool.tail, UNKNOWN
    if pool.tail == UNKNOWN:
        pool.head = b
    else:
        c.units[pool.tail].after = b
    pool.tail = b


@jit
def remove_cached(c: PrefixCache, b: int) -> None:
    """Remove unit ``b`` from the list of units to be dropped."""
    pool, u = c.pool, c.units[b]
    if u.before == UNKNOWN:
        pool.head = u.after
    else:
        c.units[u.before].after = u.after
    if u.after == UNKNOWN:
        pool.tail = u.before
    else:
        c.units[u.after].before = u.before


@jit
def note_change(c: PrefixCache, content: int, clock: float) -> None:
    """Record the time at which a content enters the map or leaves it, if a router needs it."""
    if c.changed.shape[0] > 0:
        c.changed[content] = clock


@jit
def enter_map(c: PrefixCache, i: int, clock: float) -> None:
    """Enter the next unit of the active request ``i`` into the map; it is a copy if its content is there already.

    Waiting requests that lack it are updated by :func:`show_entered`.
    """
    pool, p = c.pool, c.prefix[i]
    b: Any = pool.spare
    if b == UNKNOWN:
        b = pool.num_rows
        pool.num_rows += 1
    else:
        pool.spare = c.units[b].after
    u, content = c.units[b], c.contents[c.chain[p.chain + p.num_units]]
    u.content, u.holders, u.stamp = c.chain[p.chain + p.num_units], 1, 0
    u.pins, u.pin = 0, UNKNOWN
    if c.below.shape[0] > 0:
        c.below[u.content].position = p.num_units
    c.held[p.held + p.num_units] = b
    p.num_units += 1
    first = content.unit
    if first == UNKNOWN:
        content.unit = u.copy_before = u.copy_after = b
        note_change(c, u.content, clock)
    else:
        last = c.units[first].copy_before
        u.copy_before, u.copy_after = last, first
        c.units[last].copy_after = c.units[first].copy_before = b


@jit
def show_found(c: PrefixCache, requests: Any, unit: int, found: int) -> None:
    """Show a content that is there now in the rows of waiting requests that lack it next."""
    content = c.contents[found]
    while content.waiting[LACKS] != UNKNOWN:
        j = content.waiting[LACKS]
        forget_hit(c, j)
        set_hit(c, requests, unit, j, find_hit(c, j, c.prefix[j].num_units + 1))


@jit
def show_entered(c: PrefixCache, requests: Any, unit: int, i: int, first: int) -> None:
    """Show the units of request ``i`` from the one numbered ``first`` on in the rows of waiting requests."""
    p = c.prefix[i]
    for place in range(p.chain + first, p.chain + p.num_units):
        show_found(c, requests, unit, c.chain[place])


@jit
def leave_gpu(c: PrefixCache, content: int, b: int, clock: float) -> None:
    """Let what is below the GPU know that unit ``b`` is dropped; the next batch waits for what is written from it."""
    if c.tier.back == 1 and c.contents[content].unit == UNKNOWN:
        call_tier(c.tier, DROP, content, 0, 0, clock)
    if c.tier.back == 1 or c.below[content].source == b:
        c.tier.fence = max(c.tier.fence, c.below[content].safe_at)


@jit
def drop_first(c: PrefixCache, clock: float) -> None:
    """Drop the first cached unit; its memory is unused afterwards.

    Its row is the first of the unused ones, with its content, by which :func:`show_dropped` finds waiting requests.
    """
    pool = c.pool
    b = pool.head
    remove_cached(c, b)
    pool.num_cached -= 1
    u = c.units[b]
    content = c.contents[u.content]
    if u.copy_after == b:
        content.unit = UNKNOWN
        note_change(c, u.content, clock)
    else:
        c.units[u.copy_before].copy_after = u.copy_after
        c.units[u.copy_after].copy_before = u.copy_before
        if content.unit == b:
            content.unit = u.copy_after
    if c.below.shape[0] > 0:
        leave_gpu(c, u.content, b, clock)
    u.after = pool.spare
    pool.spare = b


@jit
def shorten_hits(c: PrefixCache, requests: Any, unit: int, w: Any, lost: int) -> None:
    """Let the hits of waiting requests end before a content that is not there any more, although later ones are."""
    i, place = w.queue_head, c.below[lost].position
    while c.below[lost].waiting > 0:
        p, following = c.prefix[i], requests[i].queue_next
        if p.num_units > place and c.chain[p.chain + place] == lost:
            forget_hit(c, i)
            set_hit(c, requests, unit, i, place)
        i = following


@jit
def show_lost(c: PrefixCache, requests: Any, unit: int, w: Any, lost: int) -> None:
    """Shorten the hits of waiting requests that contain a content that is not there any more."""
    content = c.contents[lost]
    while content.waiting[ENDS] != UNKNOWN:
        j = content.waiting[ENDS]
        forget_hit(c, j)
        p = c.prefix[j]
        left = p.num_units - 1
        while left > 0 and not is_there(c, c.chain[p.chain + left - 1]):
            left -= 1
        set_hit(c, requests, unit, j, left)
    if c.below.shape[0] > 0:
        shorten_hits(c, requests, unit, w, lost)


@jit
def show_dropped(c: PrefixCache, requests: Any, unit: int, w: Any, spare: int) -> None:
    """Take what has been dropped since ``spare`` was the first unused row from the hits of waiting requests."""
    b: Any = c.pool.spare
    while b != spare:
        if not is_there(c, c.units[b].content):
            show_lost(c, requests, unit, w, c.units[b].content)
        b = c.units[b].after


# ------------------------------------------------------------ active requests


@jit
def hold_hit(c: PrefixCache, i: int) -> int:
    """Make request ``i``, which starts, a holder of its hit; return how many of its units others hold as well.

    Units that are only in the memory below the GPU, the last ones of a hit, are not held: they are entered into the map
    with what the request computes. Units that it holds already count as held by others.
    """
    p, shared = c.prefix[i], c.prefix[i].kept
    forget_hit(c, i)
    if c.below.shape[0] > 0:
        count_hit(c, i, p.num_units, 0)
    for j in range(p.kept, p.num_units):
        b = c.contents[c.chain[p.chain + j]].unit
        if b == UNKNOWN:
            p.num_units = j
            break
        c.held[p.held + j] = b
        u = c.units[b]
        if u.holders == 0:
            c.pool.num_cached -= 1
            if u.pins == 0:
                remove_cached(c, b)
        else:
            shared += 1
        u.holders += 1
    return shared


@jit
def hold_left(c: PrefixCache, i: int) -> int:
    """Make request ``i``, which has just given up its units, a holder of them again, as if it had not.

    Returns:
        How many of them others hold as well.
    """
    p, shared = c.prefix[i], 0
    for place in range(p.held, p.held + p.left):
        u = c.units[c.held[place]]
        if u.holders == 0:
            c.pool.num_cached -= 1
            if u.pins == 0:
                remove_cached(c, c.held[place])
        else:
            shared += 1
        u.holders += 1
    p.num_units = p.left
    return shared


@jit
def give_up(c: PrefixCache, i: int) -> int:
    """Let the active request ``i`` give up its units, from the last; return the number of those that others hold."""
    p, shared = c.prefix[i], 0
    for place in range(p.held + p.num_units - 1, p.held - 1, -1):
        b = c.held[place]
        u = c.units[b]
        u.holders -= 1
        if u.holders == 0:
            c.pool.num_cached += 1
            if u.pins == 0:
                append_cached(c, b)
        else:
            shared += 1
    p.left, p.num_units = p.num_units, 0
    return shared


@jit
def share_up_to(c: PrefixCache, requests: Any, unit: int, i: int, tokens: int, clock: float) -> None:
    """Enter the units of the active request ``i`` into the map that its first ``tokens`` tokens fill."""
    p = c.prefix[i]
    first = p.num_units
    while p.num_units < p.length and (p.num_units + 1) * unit <= tokens:
        enter_map(c, i, clock)
    show_entered(c, requests, unit, i, first)
