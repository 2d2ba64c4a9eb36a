"""A prefix cache that is a tree, as SGLang's: nodes are found, split, and dropped whole.

A *node* is a part of a chain: the units that one request has entered at once. A request that ends or parts within a
node splits it. So the units of a node always have the same holders, and lie side by side in the list of cached units,
the last one first. What differs from a cache of single units:

- To free memory, the node that has not been used for longest is dropped whole, also if a part of it would do.
- A request that computes what is in the map by then takes the unit that is there, and its own memory is free again:
  there are no copies.
- A request enters what it has prefilled when the batch ends, and its outputs when it finishes.
- To look a prefix up is to use it. A scheduler that looks all waiting requests up, such as ``lpm``, keeps what they
  find from being dropped. The rest of a node that is split counts as used as well.
- Such a scheduler counts all whole units of a request; a start leaves its last token to be computed.

Source: ``RadixCache`` of SGLang (``python/sglang/srt/mem_cache/radix_cache.py``, release 0.5.23) with its default order
of eviction, and ``match_kv_cache`` (``mem_cache/common.py``).
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.simulator.prefix.cache import PrefixCache, append_cached, enter_map, remove_cached, show_entered
from kvgym.simulator.tables import UNKNOWN


@jit
def end_node(c: PrefixCache, b: int) -> None:
    """Let a node end with unit ``b``; what follows it is a node of its own, which counts as used now."""
    u = c.units[b]
    if u.ends == 1:
        return
    u.ends = 1
    if u.holders > 0 or u.pins > 0:
        return
    last = u.before
    while c.units[last].ends == 0:
        last = c.units[last].before
    while last != b:
        following = c.units[last].after
        remove_cached(c, last)
        append_cached(c, last)
        last = following


@jit
def end_hit(c: PrefixCache, requests: Any, unit: int, i: int) -> None:
    """Let nodes end with the hit of request ``i``, which is about to start, and with its prompt if that is found."""
    p = c.prefix[i]
    prompt = min(requests[i].prompt_len // unit, p.num_units)
    if p.num_units > 0:
        end_node(c, c.contents[c.chain[p.chain + p.num_units - 1]].unit)
    if prompt > 0:
        end_node(c, c.contents[c.chain[p.chain + prompt - 1]].unit)


@jit
def look_up(c: PrefixCache, requests: Any, unit: int, i: int) -> int:
    """Return the tokens of the waiting request ``i`` that are in the map, in whole units; they count as used now."""
    p, r = c.prefix[i], requests[i]
    found = p.num_units
    if (
        found == p.most < p.length
        and (found + 1) * unit <= r.num_kv_tokens + r.num_prefill_left
        and c.contents[c.chain[p.chain + found]].unit != UNKNOWN
    ):
        found += 1
    if found > 0:
        end_node(c, c.contents[c.chain[p.chain + found - 1]].unit)
    for place in range(p.chain + found - 1, p.chain - 1, -1):
        b = c.contents[c.chain[place]].unit
        u = c.units[b]
        if u.holders == 0 and u.pins == 0:
            remove_cached(c, b)
            append_cached(c, b)
    return int(found * unit)


@jit
def join(c: PrefixCache, w: Any, unit: int, i: int) -> None:
    """Let the active request ``i`` hold the next unit of its chain, which is in the map, in place of its own memory."""
    p = c.prefix[i]
    b = c.contents[c.chain[p.chain + p.num_units]].unit
    u = c.units[b]
    if u.holders > 0:
        w.kv_allocated -= unit
        w.kv_shared += unit
    else:
        c.pool.num_cached -= 1
        w.kv_cached -= unit
        if u.pins == 0:
            remove_cached(c, b)
    u.holders += 1
    c.held[p.held + p.num_units] = b
    p.num_units += 1


@jit
def insert(c: PrefixCache, requests: Any, problem: Any, w: Any, i: int, tokens: int, end: float) -> None:
    """Enter the units of the active request ``i`` that its first ``tokens`` tokens fill as one node.

    Args:
        c: the prefix cache.
        requests: REQUEST (n,).
        problem: PROBLEM record.
        w: WORKER record.
        i: the request.
        tokens: those with KV.
        end: end of the batch, seconds.
    """
    unit, p = problem.prefix_unit, c.prefix[i]
    last = min(tokens // unit, p.length)
    there = p.num_units
    while there < last and c.contents[c.chain[p.chain + there]].unit != UNKNOWN:
        there += 1
    if there > p.num_units:
        end_node(c, c.contents[c.chain[p.chain + there - 1]].unit)
    while p.num_units < there:
        join(c, w, unit, i)
    while p.num_units < last:
        enter_map(c, i, end)
        c.units[c.held[p.held + p.num_units - 1]].ends = 0
    if p.num_units > 0:
        end_node(c, c.held[p.held + p.num_units - 1])
    prompt = min(requests[i].prompt_len // unit, p.num_units)
    if prompt > 0:
        end_node(c, c.held[p.held + prompt - 1])
    show_entered(c, requests, unit, i, there)
