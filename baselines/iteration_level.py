"""Iteration-level batching as engines do it: vLLM (prefills first) and Sarathi-Serve (decodes first).

Sources: W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
Section 4.5 (vLLM); A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve",
in the form of A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Algorithm 4 and Section 7 (shortest prefill first). Engines count memory in blocks of about 16
tokens: the system's ``block_size``.

As printed, Algorithm 4 is off by one in the length of the last chunk, its inner loop does not end when the chunk is
0, and it has no memory limit. Readings shared by both policies:

- Active requests are evicted LIFO, the latest activated first, until the running and paused requests fit. An
  iteration that evicts admits no request. The oldest request is never evicted, so it always finishes.
- Admission stops at the first request that does not fit, and leaves the watermark free. An empty worker admits its
  first request regardless, so that none starves.
- A request that returns with its whole KV (swapped out, not recomputed) has no prompt left: it joins the decodes and
  counts as one token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.kernels import (
    UNKNOWN,
    RuleDecision,
    RuleMemory,
    RuleView,
    admit,
    admit_tokens,
    chunk_that_fits,
    claim_of,
    evict,
    evict_latest,
    first_waiting,
    forget_left,
    has_place,
    heap_pop,
    heap_push,
    held_by,
    jit_inline,
    kv_growth,
    need_of,
    need_of_active,
    need_of_decodes,
    next_to_admit,
    next_waiting,
    pause_all,
    policy_kernel,
    request_key,
    room_to_admit,
    rule_memory,
)
from kvgym.policy import (
    CompiledPolicy,
    PolicyInfo,
    SystemInfo,
    fraction_of,
    register_policy,
    require,
    require_count,
    require_flag,
    require_fraction,
)

VLLM_RULES = (("first_token", "counted"), ("progress_on_evict", "recompute"), ("requeue", "front"))
"""Rules of vLLM: an evicted request returns to the front of the queue and prefills its output tokens again."""

# Layout of the parameters: memory that admission may fill, tokens per iteration, active requests, and a
# switch.
_LIMIT, _MAX_TOKENS, _MAX_REQUESTS = range(3)
_PADDED = 3  # of vLLM: every prompt counts as long as the longest
_SHORTEST_FIRST = 3  # of Sarathi: the shortest prefill goes first


@jit_inline
def admit_prompts(view: RuleView, decision: RuleDecision, params: Any) -> int:
    """Admit whole prompts in queue order; return how many admitted requests have a prompt to process.

    Decodes pause while a prompt is processed, so memory must hold the KV at rest and the new requests. If only
    swapped-out requests have been admitted, it must hold all decodes as well.
    """
    w, d = view.worker, decision.record
    limit, max_tokens, max_requests = (
        int(params[_LIMIT]),
        int(params[_MAX_TOKENS]),
        int(params[_MAX_REQUESTS]),
    )
    used, decodes = w.kv_allocated, view.problem.block_size * w.num_full
    tokens, prefills, longest = 0, 0, 0
    i = first_waiting(view)
    while i != UNKNOWN and w.num_active + d.num_admit < max_requests and has_place(view, decision):
        use, left = need_of(view, view.requests[i]), view.requests[i].num_prefill_left
        room = room_to_admit(view, decision, limit) - used
        if left == 0 and prefills == 0:
            room -= decodes
        batched = tokens + left
        if params[_PADDED] == 1.0:
            batched = (prefills + 1) * max(longest, left)
        if use > room or (left > 0 and prefills > 0 and batched > max_tokens):
            break
        if left > 0:
            prefills += 1
            tokens, longest = batched, max(longest, left)
        used += use
        admit(decision, i)
        i = next_waiting(view, i)
    return prefills


@policy_kernel
def vllm_kernel(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Process only prompts if one can be admitted; else decode all requests."""
    w, d = view.worker, decision.record
    prefills = admit_prompts(view, decision, memory.params)
    if prefills == 0:
        if d.num_admit == 0:
            evict_latest(view, decision, need_of_active(view))
        return
    if w.num_active == 0 and prefills == d.num_admit:
        return  # no request is paused
    pause_all(view, decision)
    for j in range(d.num_admit):
        if view.requests[decision.admit[j]].num_prefill_left == 0:
            decision.admit_tokens[j] = 0


@jit_inline
def make_room(view: RuleView, decision: RuleDecision) -> int:
    """Evict LIFO until the decodes of the others fit; return the memory that they need, including KV at rest.

    If no decode is left, the oldest prefill must be able to advance by at least one token.
    """
    w, active = view.worker, view.active
    last, decodes = w.num_active, w.num_active - w.num_prefilling
    need = need_of_decodes(view)
    while last > 0:
        extra = kv_growth(view.problem, active[0], 1) if decodes == 0 else 0
        if need + extra <= view.problem.kv_capacity:
            break
        last -= 1
        if active[last].num_prefill_left == 0:
            decodes -= 1
            need -= need_of(view, active[last])
        else:
            need -= held_by(view, active[last])
        evict(decision, last)
    return need


@jit_inline
def continue_prefills(
    view: RuleView, decision: RuleDecision, staying: int, budget: int, room: int
) -> tuple[int, int]:
    """Plan the next chunks of ongoing prefills in order of activation; pause prefills that get none.

    Args:
        view: what the policy observes.
        decision: the decision to fill in.
        staying: number of slots that are not evicted; they come first.
        budget: tokens that the batch may still take.
        room: free memory beside the decodes.

    Returns:
        The remaining budget, and the reserved memory: the rest of these requests' prompts and one token each for
        their first output. The budget is 0 if a request got no chunk.
    """
    reserved = 0
    for k in range(staying):
        slot = view.active[k]
        left = slot.num_prefill_left
        if left > 0:
            chunk = chunk_that_fits(view, slot, budget, room)
            if chunk == 0:
                budget = 0  # no request may overtake
            decision.record.explicit = 1
            slot.planned = chunk
            budget -= chunk
            room -= kv_growth(view.problem, slot, chunk)
            reserved += claim_of(view, slot) - held_by(view, slot)
    return budget, reserved


@policy_kernel
def sarathi_kernel(view: RuleView, decision: RuleDecision, memory: RuleMemory) -> None:
    """Algorithm 4: all decodes, then ongoing prefills, then new ones, within the token budget."""
    w, d, params = view.worker, decision.record, memory.params
    shortest_first = params[_SHORTEST_FIRST] == 1.0
    forget_left(view, memory.state, 0)
    for j in range(w.num_queued if shortest_first else 0):
        i = view.queued[j]
        heap_push(memory.state, 0, request_key(view.requests[i].num_prefill_left, i))
    need = make_room(view, decision)
    staying = w.num_active - d.num_evict
    budget, reserved = int(params[_MAX_TOKENS]) - staying, 0
    if w.num_prefilling > 0:
        for k in range(staying):
            budget += 1 if view.active[k].num_prefill_left > 0 else 0
        budget, reserved = continue_prefills(view, decision, staying, budget, view.problem.kv_capacity - need)
    if d.num_evict > 0:
        return
    used, limit, max_requests = need + reserved, int(params[_LIMIT]), int(params[_MAX_REQUESTS])
    while budget > 0 and staying + d.num_admit < max_requests and has_place(view, decision):
        i = next_to_admit(view, decision, memory.state, shortest_first)
        if i == UNKNOWN:
            break
        left = view.requests[i].num_prefill_left
        use = claim_of(view, view.requests[i])
        if use > room_to_admit(view, decision, limit) - used:
            break
        used += use
        if left > budget:
            admit_tokens(decision, i, budget)
        else:
            admit(decision, i)
        budget -= max(1, min(budget, left))
        if shortest_first:
            heap_pop(memory.state, 0)


@register_policy
class VLLM(CompiledPolicy):
    """First come, first served, prefills first: a batch holds either prompts or decodes."""

    info = PolicyInfo(
        name="vllm",
        summary="first come, first served, prompts before decodes; evicts the newest on overflow (LIFO)",
        paper="Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention",
        algorithm="Section 4.5",
        pauses=True,
        evicts=True,
        rules=VLLM_RULES,
        budget="max_batch_tokens",
    )
    kernel = vllm_kernel

    def __init__(
        self,
        *,
        max_batch_tokens: int = 4096,
        max_batch_requests: int = 128,
        watermark: float = 0.01,
        padded: bool = False,
    ) -> None:
        """Set the limits.

        Args:
            max_batch_tokens: maximum number of prompt tokens in an iteration; a longer prompt is processed
                alone.
            max_batch_requests: maximum number of active requests.
            watermark: fraction of the capacity that admission leaves free, in [0, 1).
            padded: whether every prompt of an iteration counts as long as the longest, as in the engine at
                the time of the papers, which padded prompts to one length; otherwise lengths are summed.
        """
        require_flag("padded", padded)
        require_count("max_batch_tokens", max_batch_tokens)
        require_count("max_batch_requests", max_batch_requests)
        require_fraction("watermark", watermark)
        self.max_batch_tokens, self.max_batch_requests = max_batch_tokens, max_batch_requests
        self.watermark, self.padded = watermark, padded

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission limit in tokens, the limits of prompt tokens and active requests, and padding."""
        limit = fraction_of(system.kv_capacity, self.watermark)
        return np.array(
            [limit, self.max_batch_tokens, self.max_batch_requests, self.padded], dtype=np.float64
        )


@register_policy
class Sarathi(CompiledPolicy):
    """Sarathi-Serve: every batch has all decodes, and chunks of prompts fill the rest of a token budget.

    A request is admitted only if its whole remaining prompt and one output token fit beside this iteration's decodes
    and the same need of every ongoing prefill. Algorithm 4 has no memory limit; without this condition, prompts that
    cannot be finished would fill the memory.
    """

    info = PolicyInfo(
        name="sarathi",
        summary="all decodes in every batch; chunks of prompts fill the rest of a token budget",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Algorithm 4 (Sarathi-Serve, Agrawal et al.)",
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        budget="token_budget",
    )
    kernel = sarathi_kernel

    def __init__(
        self,
        *,
        token_budget: int = 512,
        max_batch_requests: int = 128,
        order: str = "fcfs",
        watermark: float = 0.0,
    ) -> None:
        """Set the budget, the limits and the order.

        Args:
            token_budget: tokens per iteration; a decode is one. Decodes run even if they exceed it.
            max_batch_requests: maximum number of active requests.
            order: order of admission: ``"fcfs"``, or ``"spf"``, shortest remaining prefill first (ties by arrival).
            watermark: fraction of the capacity that admission leaves free, in [0, 1).
        """
        require_count("token_budget", token_budget)
        require_count("max_batch_requests", max_batch_requests)
        require("order", order, order in ("fcfs", "spf"), "fcfs or spf")
        require_fraction("watermark", watermark)
        self.token_budget, self.max_batch_requests = token_budget, max_batch_requests
        self.order, self.watermark = order, watermark

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission limit in tokens, the budget, the limit of active requests, and whether it is SPF."""
        limit = fraction_of(system.kv_capacity, self.watermark)
        return np.array(
            [limit, self.token_budget, self.max_batch_requests, self.order == "spf"], dtype=np.float64
        )

    def memory(self, system: SystemInfo) -> RuleMemory:
        """Return the heap of waiting requests."""
        return rule_memory(self.params(system), state=np.zeros(1 + system.max_requests))
