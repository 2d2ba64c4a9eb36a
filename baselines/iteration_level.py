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

Memory as the engines count it (``engine_memory``; sources: vllm-project/vllm, ``vllm/core/block_manager_v1.py`` and
``vllm/core/scheduler.py`` until autumn 2024; microsoft/sarathi-serve, ``sarathi/core/block_space_manager`` and
``sarathi/core/scheduler``):

- Decodes get their memory in order of activation, and each must find a free block, even if its last block has room.
  So a request stays only if a block is free after those before it have taken theirs. The oldest stays in any case.
- The watermark is a number of whole blocks, rounded down. Otherwise it is a number of tokens, rounded up.
- In Sarathi-Serve a request holds the blocks of its whole prompt from its admission. Otherwise only admissions respect
  the prompts in progress, and decodes may take the memory that these will need.

In both cases the system writes the KV of an output token with the batch that generates it; the engines write it with
the next batch, as a system with ``output_kv="next_iteration"`` does. Otherwise every request takes its blocks one
iteration earlier than in the engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    admit_tokens,
    chunk_that_fits,
    claim_of,
    claim_to_start,
    evict,
    first_waiting,
    forget_left,
    has_place,
    heap_pop,
    heap_push,
    held_by,
    jit_inline,
    kept_by_others,
    kv_growth,
    named_numbers,
    need_of,
    need_of_active,
    need_of_decodes,
    next_to_admit,
    next_waiting,
    pause_all,
    policy_kernel,
    policy_memory,
    prefill_without_cache,
    request_key,
    room_to_admit,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    choice,
    flag,
    fraction,
    fraction_of,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy

VLLM_RULES = (("first_token", "counted"), ("progress_on_evict", "recompute"), ("requeue", "front"))
"""Rules of vLLM: an evicted request returns to the front of the queue and prefills its output tokens again."""


class Limits(NamedTuple):
    """Parameters of both policies."""

    limit: int  # memory that admission may fill, tokens
    max_tokens: int  # prompt tokens (vLLM) or all tokens (Sarathi) of an iteration
    max_batch_requests: int  # active requests
    engine_memory: bool  # whether memory is counted as the engines do
    padded: bool  # of vLLM: whether every prompt counts as long as the longest
    shortest_first: bool  # of Sarathi: whether the shortest prefill goes first


limits = named_numbers(Limits)


@jit_inline
def missing_block(view: PolicyView, slot: Any) -> int:
    """Return what a free block for a decode is beyond the memory that its next token needs, allocated tokens."""
    return int(view.problem.block_size - kv_growth(view.problem, slot, 1))


@jit_inline
def admit_prompts(view: PolicyView, decision: PolicyDecision, p: Limits) -> int:
    """Admit whole prompts in queue order; return how many admitted requests have a prompt to process.

    Decodes pause while a prompt is processed, so memory must hold the KV that is kept and the new requests. If only
    swapped-out requests have been admitted, it must hold all decodes as well.
    """
    w, d = view.worker, decision.record
    used, decodes = w.kv_allocated, view.problem.block_size * w.num_full
    tokens, prefills, longest = 0, 0, 0
    i = first_waiting(view)
    while i != UNKNOWN and w.num_active + d.num_admit < p.max_batch_requests and has_place(view, decision):
        use, left = taken_by(view, i), view.requests[i].num_prefill_left
        room = room_to_admit(view, decision, p.limit) - used
        if left == 0 and prefills == 0:
            room -= decodes
        batched = tokens + left
        if p.padded:
            batched = (prefills + 1) * max(longest, left)
        if use > room or (left > 0 and prefills > 0 and batched > p.max_tokens):
            break
        if left > 0:
            prefills += 1
            tokens, longest = batched, max(longest, left)
        used += use
        admit(decision, i)
        i = next_waiting(view, i)
    return prefills


@jit_inline
def evict_newest(view: PolicyView, decision: PolicyDecision, engine: bool) -> None:
    """Evict LIFO until the decodes of the others fit; in an engine, until the last of them finds a free block."""
    need = need_of_active(view)
    for k in range(view.worker.num_active - 1, -1, -1):
        slot = view.active[k]
        beyond = missing_block(view, slot) if engine and k > 0 else 0
        if need + beyond <= view.problem.kv_capacity:
            break
        need -= need_of(view, slot) - kept_by_others(view, slot)
        evict(decision, k)


@policy_kernel
def vllm_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Process only prompts if one can be admitted; else decode all requests."""
    w, d, p = view.worker, decision.record, limits(memory.params)
    prefills = admit_prompts(view, decision, p)
    if prefills == 0:
        if d.num_admit == 0:
            evict_newest(view, decision, p.engine_memory)
        return
    if w.num_active == 0 and prefills == d.num_admit:
        return  # no request is paused
    pause_all(view, decision)
    for j in range(d.num_admit):
        if view.requests[decision.admit[j]].num_prefill_left == 0:
            decision.admit_tokens[j] = 0


@jit_inline
def unfinished_claim(view: PolicyView, slot: Any) -> int:
    """Return the memory that a prompt in progress will take besides what it holds, with its first output; else 0."""
    return claim_of(view, slot) - held_by(view, slot) if slot.num_prefill_left > 0 else 0


@jit_inline
def make_room(view: PolicyView, decision: PolicyDecision, engine: bool) -> int:
    """Evict LIFO until the decodes of the others fit; return the memory that they need, including KV that is kept.

    If no decode is left, the oldest prefill must be able to advance by at least one token. In an engine, prompts in
    progress hold all their blocks, and the last decode must find a free one.
    """
    w, active = view.worker, view.active
    last, decodes = w.num_active, w.num_active - w.num_prefilling
    need, reserved = need_of_decodes(view), 0
    for k in range(w.num_active if engine and w.num_prefilling > 0 else 0):
        reserved += unfinished_claim(view, active[k])
    while last > 0:
        extra = 0
        if engine and decodes > 0 and last > 1:
            k = last - 1
            while active[k].num_prefill_left > 0:
                k -= 1
            extra = missing_block(view, active[k])
        elif not engine and decodes == 0:
            extra = kv_growth(view.problem, active[0], 1)
        if need + reserved + extra <= view.problem.kv_capacity:
            break
        last -= 1
        need += kept_by_others(view, active[last])
        if active[last].num_prefill_left == 0:
            decodes -= 1
            need -= need_of(view, active[last])
        else:
            need -= held_by(view, active[last])
            reserved -= unfinished_claim(view, active[last]) if engine else 0
        evict(decision, last)
    return need


@jit_inline
def continue_prefills(
    view: PolicyView, decision: PolicyDecision, staying: int, budget: int, room: int
) -> tuple[int, int]:
    """Plan the next chunks of ongoing prefills in order of activation; pause prefills that get none.

    Args:
        view: what the policy observes.
        decision: the decision to fill in.
        staying: number of slots that are not evicted; they come first.
        budget: tokens that the batch may still take.
        room: free memory without the memory of the decodes.

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
            reserved += unfinished_claim(view, slot)
    return budget, reserved


@policy_kernel
def sarathi_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 4: all decodes, then ongoing prefills, then new ones, within the token budget."""
    w, d, p = view.worker, decision.record, limits(memory.params)
    forget_left(view, memory.state, 0)
    for j in range(w.num_queued if p.shortest_first else 0):
        i = view.queued[j]
        heap_push(memory.state, 0, request_key(prefill_without_cache(view, i), i))
    need = make_room(view, decision, p.engine_memory)
    staying = w.num_active - d.num_evict
    budget, reserved = p.max_tokens - staying, 0
    if w.num_prefilling > 0:
        for k in range(staying):
            budget += 1 if view.active[k].num_prefill_left > 0 else 0
        budget, reserved = continue_prefills(view, decision, staying, budget, view.problem.kv_capacity - need)
    if d.num_evict > 0:
        return
    used = need + reserved
    while budget > 0 and staying + d.num_admit < p.max_batch_requests and has_place(view, decision):
        i = next_to_admit(view, decision, memory.state, p.shortest_first)
        if i == UNKNOWN:
            break
        left = view.requests[i].num_prefill_left
        use = claim_to_start(view, i)
        if use > room_to_admit(view, decision, p.limit) - used:
            break
        used += use
        if left > budget:
            admit_tokens(decision, i, budget)
        else:
            admit(decision, i)
        budget -= max(1, min(budget, left))
        if p.shortest_first:
            heap_pop(memory.state, 0)


def admission_limit(system: SystemInfo, watermark: float, engine_memory: bool) -> int:
    """Return the memory that admission may fill; the watermark of an engine is in whole blocks, rounded down."""
    if not engine_memory:
        return fraction_of(system.kv_capacity, watermark)
    return system.kv_capacity - whole_blocks_of(system, watermark)


def whole_blocks_of(system: SystemInfo, fraction: float) -> int:
    """Return a fraction of the memory as engines compute it: tokens of whole blocks, rounded down."""
    blocks = int(Decimal(str(fraction)) * (system.kv_capacity // system.block_size))
    return blocks * system.block_size


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
        loads=True,
    )
    kernel = vllm_kernel

    parameters = Limits

    max_batch_tokens: int = whole(4096, search=(1024, 2048, 4096, 8192, 16384))
    """maximum number of prompt tokens in an iteration; a longer prompt is processed alone."""
    max_batch_requests: int = whole(128, search=(32, 64, 128, 256, 512))
    """maximum number of active requests."""
    watermark: float = fraction(0.01, search=(0.0, 0.01, 0.05, 0.1))
    """fraction of the capacity that admission leaves free, in [0, 1)."""
    engine_memory: bool = flag(False)
    """whether the last decode needs a free block even if its own has room, and the watermark is in whole blocks, as in
    the engine until autumn 2024; otherwise requests are evicted if their next tokens do not fit."""
    padded: bool = flag(False)
    """whether every prompt of an iteration counts as long as the longest, as in the engine at the time of the papers,
    which padded prompts to one length; otherwise lengths are summed."""
    shortest_first = False

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the limits of memory and of prompt tokens."""
        limit = admission_limit(system, self.watermark, self.engine_memory)
        return {"limit": limit, "max_tokens": self.max_batch_tokens}


@register_policy
class Sarathi(CompiledPolicy):
    """Sarathi-Serve: every batch has all decodes, and chunks of prompts fill the rest of a token budget.

    A request is admitted only if its whole remaining prompt and one output token fit next to this iteration's decodes
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
        loads=True,
    )
    kernel = sarathi_kernel

    parameters = Limits

    token_budget: int = whole(512, search=(128, 256, 384, 512, 1024, 2048, 4096))
    """tokens per iteration; a decode is one. Decodes run even if they exceed it."""
    max_batch_requests: int = whole(128, search=(64, 128, 256, 512))
    """maximum number of active requests."""
    order: str = choice("fcfs", ("fcfs", "spf"), search=("fcfs", "spf"))
    """order of admission: ``"fcfs"``, or ``"spf"``, shortest remaining prefill first (ties by arrival)."""
    watermark: float = fraction(0.0, search=(0.0, 0.05))
    """fraction of the capacity that admission leaves free, in [0, 1)."""
    engine_memory: bool = flag(False)
    """whether a request holds the blocks of its whole prompt from its admission, the last decode needs a free block
    even if its own has room, and the watermark is in whole blocks, as in the engine."""
    padded = False

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the limits of memory and of tokens, and the order."""
        limit = admission_limit(system, self.watermark, self.engine_memory)
        return {
            "limit": limit,
            "max_tokens": self.token_budget,
            "shortest_first": self.order == "spf",
        }

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the heap of waiting requests."""
        return policy_memory(self.params(system), state=np.zeros(1 + system.max_requests))
