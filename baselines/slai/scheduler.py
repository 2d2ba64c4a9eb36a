"""SLAI, the SLO-aware scheduler: prefills go first, decodes wait until their deadlines are near.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Section 6: last schedulable time (8), batch construction (1) to (4); Section 7 and Appendix F.2 for
the dynamic offset and for paying requests first.

Readings, where the paper is silent:

- The average of batch times covers all iterations of the worker so far; before the first it is 0.
- Before the first token reaches the user, a decode has no last token to count from: it is critical. A decode without
  a TBT objective is never critical.
- The token budget and the decode limit also bind critical decodes. Those with the earliest last schedulable time go
  first; ties go by order of activation.
- Shortest prefill first orders by remaining prefill tokens; ties go by arrival. First come, first served is the order
  of the queue.
- A waiting request with nothing left to prefill (evicted, progress kept) takes its turn among new prefills and
  decodes one token. It counts towards both the budget and the decode limit.

Memory (the paper relies on the cap on active requests):

- A new request is admitted only if all its remaining prefill and one more token fit. They must fit next to the KV
  held, this iteration's critical decodes, and the same need of every ongoing prefill, and must leave the watermark
  free. Admission stops at the first request that does not fit. An empty worker admits its first request regardless.
- A chunk is cut to the free memory. An ongoing prefill that gets no chunk ends the prefills of the batch.
- With blocks of several tokens, decodes that need a new block are skipped when none is left. Critical decodes never
  are: if more are critical than may run, as many blocks are kept free as any choice of them could need.
- If critical decodes do not fit, or if no request could run, the latest activated requests are evicted until they do
  or one can; no request is admitted then. The first active request is never evicted, so that every run ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvgym.baselines.slai.deadlines import (
    BACK,
    CRITICAL_AT,
    FOLLOWED_AT,
    FRONT,
    OTHERS_AT,
    RANKS,
    ROOM_AT,
    WAITING_AT,
    Rules,
    count_full,
    find_deadlines,
    rules,
    run_decodes,
)
from kvgym.kernels import (
    REQUEUE_BACK,
    REQUEUE_FRONT,
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    admit_tokens,
    chunk_that_fits,
    claim_of,
    claim_to_start,
    drop_full_plan,
    evict,
    first_waiting,
    forget_ranked,
    full_tokens,
    has_place,
    held_by,
    held_in_queue,
    jit,
    jit_inline,
    kept_by_others,
    kv_growth,
    need_of_tokens,
    needs_block,
    next_waiting,
    policy_kernel,
    policy_memory,
    prefill_without_cache,
    ranked_pop,
    ranked_push,
    room_to_admit,
)
from kvgym.policies.hyperparameters import (
    choice,
    flag,
    fraction,
    fraction_of,
    hyperparameter,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy


@jit
def ranked(p: Rules) -> bool:
    """Return whether the order of admission differs from the order of the queue."""
    return p.shortest_first or p.paying_first


@jit_inline
def rank_waiting(view: PolicyView, memory: PolicyMemory) -> None:
    """Insert requests that joined the queue into the order of admission.

    If paying requests go first, the high bits of a rank are the priority. The low 32 bits are the tokens to prefill,
    or the place in the queue.
    """
    p, state, requeue = rules(memory.params), memory.state, view.problem.requeue
    forget_ranked(view, state, state[WAITING_AT], state, RANKS)
    for j in range(view.worker.num_queued):
        i = view.queued[j]
        r = view.requests[i]
        rank: Any = np.int64(i)
        if p.shortest_first:
            rank = np.int64(prefill_without_cache(view, i))
        elif requeue in (REQUEUE_BACK, REQUEUE_FRONT):
            if requeue == REQUEUE_FRONT and r.num_evictions > 0:
                state[FRONT] += 1
                rank = (1 << 31) - state[FRONT]
            else:
                rank = (1 << 31) + state[BACK]
                state[BACK] += 1
        if p.paying_first:
            rank += ~np.int64(r.priority) << 32
        state[RANKS + i] = rank
        ranked_push(state, state[WAITING_AT], state, RANKS, i)


@jit
def first_ranked(state: Any) -> int:
    """Return the first of the heap of waiting requests, UNKNOWN if it is empty."""
    at = state[WAITING_AT]
    return state[at + 1] if state[at] > 0 else UNKNOWN


@jit_inline
def first_in_order(view: PolicyView, memory: PolicyMemory) -> int:
    """Return the request to admit first, UNKNOWN if none waits."""
    return first_ranked(memory.state) if ranked(rules(memory.params)) else first_waiting(view)


@jit_inline
def next_in_order(view: PolicyView, memory: PolicyMemory, i: int) -> int:
    """Return the request to admit after ``i``, which was first and has just been admitted."""
    if ranked(rules(memory.params)):
        ranked_pop(memory.state, memory.state[WAITING_AT], memory.state, RANKS)
        return first_ranked(memory.state)
    return next_waiting(view, i)


@jit_inline
def has_batch(
    view: PolicyView,
    p: Rules,
    keep: int,
    free: int,
    prefilling: int,
    decoding: int,
    critical: int,
    full: int,
) -> bool:
    """Return whether critical decodes fit and a batch can run, if the first ``keep`` slots stay.

    ``prefilling`` is the first slot with an ongoing prefill. Among the slots that stay, ``critical`` counts the
    critical decodes and ``full`` those of them that need a new block. ``decoding`` counts the decodes that can run
    with the ``free`` memory.
    """
    if critical > 0:
        return min(full, p.token_budget, p.max_decodes) * view.problem.block_size <= free
    if decoding > 0:
        return True
    if prefilling >= keep:
        return False
    return chunk_that_fits(view, view.active[prefilling], p.token_budget, free) > 0


@jit_inline
def evict_until_batch(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, critical: int
) -> tuple[int, int]:
    """Evict the latest activated requests until critical decodes fit and a batch can run; the first slots stay.

    Returns:
        The number of slots that stay, at least one if any is active, and the free memory.
    """
    w, active = view.worker, view.active
    keep, free = w.num_active, view.problem.kv_capacity - w.kv_allocated
    decoding = w.num_active - w.num_prefilling
    prefilling = 0 if w.num_prefilling > 0 else keep
    while prefilling < keep and active[prefilling].num_prefill_left == 0:
        prefilling += 1
    filled, full = count_full(view, memory, decoding, critical)
    while keep > 0 and not has_batch(
        view,
        rules(memory.params),
        keep,
        free,
        prefilling,
        decoding if free > 0 else decoding - filled,
        critical,
        full,
    ):
        keep -= 1
        slot = active[keep]
        free += held_by(view, slot) - kept_by_others(view, slot)
        if slot.num_prefill_left == 0:
            late, needs = memory.reals[keep] <= w.clock, needs_block(view, slot)
            decoding -= 1
            filled -= needs
            critical -= late
            full -= late and needs
        evict(decision, keep)
    return keep, free


@jit_inline
def run_prefills(view: PolicyView, keep: int, tokens: int, free: int) -> tuple[int, int, int]:
    """Give ongoing prefills their chunks, in order of activation.

    Returns:
        The remaining budget, the remaining memory, and the memory that new requests may claim. The last is what
        remains after these prefills complete with one token each, or 0 if one of them got no chunk.
    """
    room, blocked = free, False
    for k in range(keep if view.worker.num_prefilling > 0 else 0):
        slot = view.active[k]
        left = slot.num_prefill_left
        if left > 0 and not blocked:
            room -= claim_of(view, slot) - held_by(view, slot)
            chunk = chunk_that_fits(view, slot, tokens, free)
            blocked = chunk == 0
            if not blocked:
                slot.planned = chunk if chunk < left else UNKNOWN
                tokens -= chunk
                free -= kv_growth(view.problem, slot, chunk)
    return tokens, free, 0 if blocked else room


@jit_inline
def admit_prefills(
    view: PolicyView,
    decision: PolicyDecision,
    memory: PolicyMemory,
    tokens: int,
    decodes: int,
    free: int,
    room: int,
) -> tuple[int, int, int]:
    """Admit new requests, each with a chunk of its prefill, while budget, cap and memory allow.

    ``room`` is the memory that they may claim for their whole prefill and one more token.

    Returns:
        The remaining budget, decode limit and memory.
    """
    d, p, used = decision.record, rules(memory.params), view.problem.kv_capacity - room
    places = p.max_active - view.worker.num_active
    i = first_in_order(view, memory)
    while i != UNKNOWN and tokens > 0 and d.num_admit < places and has_place(view, decision):
        r = view.requests[i]
        left = r.num_prefill_left
        used += claim_to_start(view, i)
        if used > room_to_admit(view, decision, p.limit) or (left == 0 and decodes == 0):
            break
        chunk = min(tokens, full_tokens(left))
        tokens -= chunk
        free -= need_of_tokens(view, r, chunk) - held_in_queue(view, i)
        if left == 0:
            decodes -= 1
        if chunk < left:
            admit_tokens(decision, i, chunk)
        else:
            admit(decision, i)
        i = next_in_order(view, memory, i)
    return tokens, decodes, free


@policy_kernel
def slai_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Section 6: critical decodes, then prefills (ongoing ones first), then the other decodes."""
    p = rules(memory.params)
    if ranked(p):
        rank_waiting(view, memory)
    critical = find_deadlines(view, decision, memory)
    keep, free = evict_until_batch(view, decision, memory, critical)
    tokens, decodes = p.token_budget, p.max_decodes
    ran, gained = run_decodes(view, memory, memory.state[CRITICAL_AT], keep, min(tokens, decodes), free)
    tokens, decodes, free = tokens - ran, decodes - ran, free - gained
    tokens, free, room = run_prefills(view, keep, tokens, free)
    if decision.record.num_evict == 0:
        tokens, decodes, free = admit_prefills(view, decision, memory, tokens, decodes, free, room)
    run_decodes(view, memory, memory.state[OTHERS_AT], keep, min(tokens, decodes), free)
    drop_full_plan(view, decision)


@register_policy
class SLAI(CompiledPolicy):
    """SLO-aware LLM inference: decodes run just in time for their TBT objectives, and prefills run before them."""

    info = PolicyInfo(
        name="slai",
        summary="prefills first, shortest first; decodes wait until their TBT deadlines are near",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Section 6",
        needs=frozenset({"slo"}),
        chunks_prefill=True,
        pauses=True,
        evicts=True,
        budget="token_budget",
        loads=True,
    )
    kernel = slai_kernel

    parameters = Rules

    order: str = choice("spf", ("spf", "fcfs"), search=("spf", "fcfs"))
    """order of new prefills: ``"spf"``, shortest prefill first, or ``"fcfs"``."""
    # The paper uses offsets of 5 and 10; the caps on requests matter less than these.
    offset: float = hyperparameter(
        10.0, lambda margin: 0 <= margin < math.inf, "a number ≥ 0", search=(5.0, 10.0)
    )
    """safety margin δ ≥ 0 of the last schedulable time, in average batch times. The paper uses 5 and 10."""
    low_offset: float | None = hyperparameter(
        None, lambda margin: margin is None or 0 <= margin < math.inf, "a number ≥ 0", search=(None, 5.0)
    )
    """margin while memory use is below the threshold (the paper's dynamic offset: 5); None = always ``offset`` (its
    fixed offset)."""
    memory_threshold: float = hyperparameter(0.96, lambda share: 0 <= share <= 1, "a fraction in [0, 1]")
    """fraction of memory in use, in [0, 1], from which ``offset`` applies."""
    paying_first: bool = flag(False, search=(False, True))
    """whether new requests of higher priority are prefilled first, regardless of length (Appendix F.2)."""
    token_budget: int = whole(512, search=(256, 512, 2048))
    """maximum tokens per batch, τ_budget ≥ 1."""
    max_active: int = whole(128)
    """maximum number of active requests, α ≥ 1."""
    max_decodes: int = whole(128)
    """maximum number of decodes per batch, β ≥ 1."""
    watermark: float = fraction(0.0, search=(0.0, 0.01))
    """fraction of the capacity that admission leaves free, in [0, 1)."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the order, the lower margin, and fractions of the memory in tokens."""
        return {
            "shortest_first": self.order == "spf",
            "low_offset": self.offset if self.low_offset is None else self.low_offset,
            "high_memory": system.kv_capacity - fraction_of(system.kv_capacity, self.memory_threshold),
            "limit": fraction_of(system.kv_capacity, self.watermark),
        }

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return an empty heap and empty lists, and space for a deadline and an objective per slot."""
        slots = max(min(system.max_requests, system.kv_capacity), 1)
        waiting_at = RANKS + system.max_requests
        lists_at = waiting_at + 1 + system.max_requests + np.arange(5) * (1 + slots)
        state = np.zeros(lists_at[-1], np.int64)
        state[WAITING_AT] = waiting_at
        state[[CRITICAL_AT, OTHERS_AT, ROOM_AT, FOLLOWED_AT]] = lists_at[:-1]
        return policy_memory(self.params(system), state=state, reals=np.zeros(2 * slots))
