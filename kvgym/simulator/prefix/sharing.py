"""What batches enter into the map of the prefix cache at their end."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit
from kvgym.simulator.prefix.cache import PrefixCache, share_up_to
from kvgym.simulator.prefix.tree import insert

_NEVER = 2**62
"""Later than any iteration."""


@jit
def tokens_to_share(problem: Any, slot: Any) -> int:
    """Return the KV tokens of an active request, as engines have them.

    If the prefill writes the KV of the first output token (``output_kv`` ``"at_once"``), every request has one token
    less there.
    """
    return int(slot.num_kv_tokens - (problem.prefill_writes if slot.num_prefill_left == 0 else 0))


@jit
def share_computed(
    c: PrefixCache, requests: Any, problem: Any, w: Any, active: Any, front: int, end: float
) -> None:
    """Enter the units into the map that the batch has filled, in order of activation.

    As long as no decoding request can fill a unit, only the others are examined. In a tree, outputs stay outside.

    Args:
        c: the prefix cache.
        requests: REQUEST (n,).
        problem: PROBLEM record.
        w: WORKER record.
        active: SLOT (A,).
        front: slot before which every active request has decoded one token.
        end: end of the batch, seconds; the worker's clock is still at its start.
    """
    unit, pool = problem.prefix_unit, c.pool
    first = front
    if w.iteration >= pool.next_full:
        first, pool.next_full = 0, _NEVER
    for k in range(first, w.num_active):
        slot = active[k]
        kv, p = tokens_to_share(problem, slot), c.prefix[slot.request_id]
        if problem.prefix_tree == 1:
            if min(kv, p.known) >= (p.num_units + 1) * unit:
                insert(c, requests, problem, w, slot.request_id, min(kv, p.known), end)
            continue
        share_up_to(c, requests, unit, slot.request_id, kv, end)
        if p.num_units < p.length:
            pool.next_full = min(pool.next_full, w.iteration + (p.num_units + 1) * unit - kv)


@jit
def share_outputs(c: PrefixCache, requests: Any, problem: Any, w: Any, slot: Any, end: float) -> None:
    """Enter the outputs of a request that has finished into the map; only a tree lacks them until then."""
    if problem.prefix_tree == 1:
        insert(c, requests, problem, w, slot.request_id, tokens_to_share(problem, slot), end)
