"""Kernel helpers of schedulers that never mix phases in a batch: it is one prefill alone, or only decodes.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Algorithms 1, 2 and 5. They call the requests that wait for a prefill P, and those that decode D.

The algorithms assume enough memory (Assumption 4). If it is short:

- A prefill begins only if all that remains of it and one more token fit next to the KV held by all active requests,
  which pause meanwhile. So a prefill that has begun is never stuck. A request alone on the worker always fits.
- A decode iteration that does not fit evicts the latest activated requests, paused or not, until it does.
- An evicted request that kept its progress has nothing left to prefill. At its turn in the queue it returns to D at
  once, if the next decode iteration fits with it: an empty prefill takes no iteration.
"""

from __future__ import annotations

from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyView,
    admit,
    admit_tokens,
    claim_to_start,
    evict,
    first_waiting,
    has_place,
    held_by,
    jit,
    jit_inline,
    kept_by_others,
    kv_growth,
    next_waiting,
    pause_all,
)


@jit
def go_on_with_prefill(view: PolicyView, decision: PolicyDecision, chunk: int) -> int:
    """Give the ongoing prefill, in the last slot, its next chunk, alone; return 1 if it is its last, else 0."""
    pause_all(view, decision)
    slot = view.active[view.worker.num_active - 1]
    if slot.num_prefill_left > chunk:
        slot.planned = chunk
        return 0
    slot.planned = UNKNOWN
    return 1


@jit_inline
def growth_of_first(view: PolicyView, count: int, width: int) -> int:
    """Return the memory that decoding the first ``width`` of ``count`` slots adds; no prefill may be ongoing."""
    if view.problem.block_size == 1:
        return min(count, width)
    growth = 0
    for k in range(min(count, width)):
        growth += kv_growth(view.problem, view.active[k], 1)
    return growth


@jit
def take_next(view: PolicyView, decision: PolicyDecision, chunk: int, places: int, width: int) -> int:
    """Begin the prefill of the first request of the queue, alone in the batch, if it fits.

    No prefill may be ongoing. Requests before it with nothing left to prefill are admitted first. The decision is
    explicit if a prefill has begun; otherwise the caller decides the batch.

    Args:
        view: what the policy observes.
        decision: the decision to fill in.
        chunk: maximum number of tokens in a prefill iteration.
        places: number of requests that may still move from P to D.
        width: maximum number of requests in a decode iteration.

    Returns:
        The number of requests that move from P to D: those with an empty prefill, and the one that begins, if its
        first chunk is its last.
    """
    w, d = view.worker, decision.record
    moved, kv, growth = 0, w.kv_allocated, growth_of_first(view, w.num_active, width)
    i = first_waiting(view)
    while i != UNKNOWN and moved < places and has_place(view, decision):
        r = view.requests[i]
        left = r.num_prefill_left
        if left == 0 and w.num_active + moved < width:
            growth += kv_growth(view.problem, r, 1)
        if left > 0:
            need = kv + claim_to_start(view, i)
        else:
            kv += held_by(view, r)
            need = kv + growth
        if need > view.problem.kv_capacity:
            break
        if left > 0:
            pause_all(view, decision)
            for j in range(d.num_admit):
                decision.admit_tokens[j] = 0
            admit_tokens(decision, i, chunk if left > chunk else UNKNOWN)
            return moved if left > chunk else moved + 1
        admit(decision, i)
        moved += 1
        i = next_waiting(view, i)
    return moved


@jit
def decode_first(view: PolicyView, decision: PolicyDecision, width: int) -> None:
    """Decode the ``width`` requests activated first, including those just admitted; the others pause.

    Evicts requests until that fits. This is never necessary after :func:`take_next` has admitted a request.
    """
    d, active = decision.record, view.active
    keep, kv = view.worker.num_active, view.worker.kv_allocated
    growth = growth_of_first(view, keep, width)
    while kv + growth > view.problem.kv_capacity:
        keep -= 1
        kv -= held_by(view, active[keep]) - kept_by_others(view, active[keep])
        if keep < width:
            growth -= kv_growth(view.problem, active[keep], 1)
        evict(decision, keep)
    if keep + d.num_admit > width:
        d.explicit = 1
        for k in range(keep):
            active[k].planned = UNKNOWN if k < width else 0
        for j in range(d.num_admit):
            decision.admit_tokens[j] = UNKNOWN if keep + j < width else 0
