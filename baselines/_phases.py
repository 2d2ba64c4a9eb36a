"""Compiled building blocks of schedulers that never mix phases in a batch: one prefill alone, or decodes.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Algorithms 1, 2 and 5, which name the requests waiting for a prefill P and those decoding D.

The algorithms take memory for granted (Assumption 4). Where it binds:

- A prefill begins only if the whole of what is left of it, and one token more, fits beside the KV at rest of
  all active requests, which are paused meanwhile; so a prefill once begun is never stuck. A request alone on
  the worker always fits.
- A decode iteration that does not fit evicts the latest activated request, paused or not, until it does.
- An evicted request that kept its progress has nothing left to prefill. At its turn in the queue it returns to
  D at once, if the coming decode iteration fits with it: an empty prefill takes no iteration.
"""

from __future__ import annotations

from typing import Any

from kvgym.simulator.compiled import jit
from kvgym.simulator.tables import UNKNOWN


@jit
def pause_all(w: Any, active: Any, d: Any) -> None:
    """Leave every active request out of the coming batch."""
    d.explicit = 1
    for k in range(w.num_active):
        active[k].planned = 0


@jit
def go_on_with_prefill(w: Any, active: Any, d: Any, chunk: int) -> int:
    """Give the prefill under way, in the last slot, its next chunk, alone; returns 1 if it is its last, else 0."""
    pause_all(w, active, d)
    slot = active[w.num_active - 1]
    if slot.num_prefill_left > chunk:
        slot.planned = chunk
        return 0
    slot.planned = UNKNOWN
    return 1


@jit
def take_next(
    problem: Any, w: Any, requests: Any, active: Any, d: Any, admit: Any, admit_tokens: Any, chunk: int,
    places: int, width: int,
) -> int:  # fmt: skip
    """Begin the prefill of the first request of the queue, alone in the batch, if it fits.

    No prefill may be under way. Requests before it with nothing left to prefill are admitted on the way. The
    decision is explicit if a prefill has begun; else the batch is still to be decided.

    Args:
        problem: settings of the run.
        w: the worker.
        requests: the request table.
        active: the active set.
        d: the decision.
        admit: ids of the requests admitted.
        admit_tokens: their tokens.
        chunk: tokens of a prefill iteration at most.
        places: how many requests may still move from P to D.
        width: requests in a decode iteration at most.

    Returns:
        How many requests move from P to D: those with an empty prefill, and the one that begins if its first
        chunk is its last.
    """
    moved, kv = 0, w.kv_tokens
    i = w.queue_head
    while i != UNKNOWN and moved < places and w.num_active + d.num_admit < admit.shape[0]:
        left = requests[i].num_prefill_left
        kv += requests[i].num_kv_tokens
        growth = left + 1 if left > 0 else min(w.num_active + moved + 1, width)
        if kv + growth > problem.kv_capacity:
            break
        admit[d.num_admit] = i
        admit_tokens[d.num_admit] = 0
        d.num_admit += 1
        if left > 0:
            pause_all(w, active, d)
            admit_tokens[d.num_admit - 1] = chunk if left > chunk else UNKNOWN
            return moved if left > chunk else moved + 1
        moved += 1
        i = requests[i].queue_next
    return moved


@jit
def decode_first(
    problem: Any, w: Any, active: Any, d: Any, admit_tokens: Any, evict: Any, width: int
) -> None:
    """Decode the ``width`` requests activated first, those just admitted included; the others pause.

    Evicts while that does not fit, which is never so after :func:`take_next` has admitted anybody.
    """
    keep, kv = w.num_active, w.kv_tokens
    while kv + min(keep, width) > problem.kv_capacity:
        keep -= 1
        kv -= active[keep].num_kv_tokens
        evict[d.num_evict] = keep
        d.num_evict += 1
    if keep + d.num_admit > width:
        d.explicit = 1
        for k in range(keep):
            active[k].planned = UNKNOWN if k < width else 0
        for j in range(d.num_admit):
            admit_tokens[j] = UNKNOWN if keep + j < width else 0
