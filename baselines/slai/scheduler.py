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

- A new request is admitted only if all its remaining prefill and one more token fit. They must fit beside the KV at
  rest, this iteration's critical decodes, and the same need of every ongoing prefill, and must leave the watermark
  free. Admission stops at the first request that does not fit. An empty worker admits its first request regardless.
- A chunk is cut to the free memory. An ongoing prefill that gets no chunk ends the prefills of the batch.
- With blocks of several tokens, decodes that need a new block are skipped when none is left. Critical decodes never
  are: if more are critical than may run, as many blocks are kept free as any choice of them could need.
- If critical decodes do not fit, or if no request could run, the latest activated requests are evicted until they do
  or one can; no request is admitted then. The first active request is never evicted, so that every run ends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.slai.deadlines import (
    BACK,
    BUDGET,
    CRITICAL_AT,
    FOLLOWED_AT,
    FRONT,
    LIMIT,
    MAX_ACTIVE,
    MAX_DECODES,
    OTHERS_AT,
    PAYING,
    RANKS,
    ROOM_AT,
    SHORTEST,
    WAITING_AT,
    count_full,
    find_deadlines,
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
    drop_full_plan,
    evict,
    first_waiting,
    forget_ranked,
    full_tokens,
    has_place,
    held_by,
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
from kvgym.policies.policy import (
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


@jit
def ranked(params: Any) -> bool:
    """Return whether the order of admission differs from the order of the queue."""
    return params[SHORTEST] == 1.0 or params[PAYING] == 1.0


@jit_inline
def rank_waiting(view: PolicyView, memory: PolicyMemory) -> None:
    """Insert requests that joined the queue into the order of admission.

    If paying requests go first, the high bits of a rank are the priority. The low 32 bits are the tokens to prefill,
    or the place in the queue.
    """
    state, requeue = memory.state, view.problem.requeue
    forget_ranked(view, state, state[WAITING_AT], state, RANKS)
    for j in range(view.worker.num_queued):
        i = view.queued[j]
        r = view.requests[i]
        rank: Any = np.int64(i)
        if memory.params[SHORTEST] == 1.0:
            rank = np.int64(prefill_without_cache(view, i))
        elif requeue in (REQUEUE_BACK, REQUEUE_FRONT):
            if requeue == REQUEUE_FRONT and r.num_evictions > 0:
                state[FRONT] += 1
                rank = (1 << 31) - state[FRONT]
            else:
                rank = (1 << 31) + state[BACK]
                state[BACK] += 1
        if memory.params[PAYING] == 1.0:
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
    return first_ranked(memory.state) if ranked(memory.params) else first_waiting(view)


@jit_inline
def next_in_order(view: PolicyView, memory: PolicyMemory, i: int) -> int:
    """Return the request to admit after ``i``, which was first and has just been admitted."""
    if ranked(memory.params):
        ranked_pop(memory.state, memory.state[WAITING_AT], memory.state, RANKS)
        return first_ranked(memory.state)
    return next_waiting(view, i)


@jit_inline
def has_batch(
    view: PolicyView,
    params: Any,
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
    budget = int(params[BUDGET])
    if critical > 0:
        return min(full, budget, int(params[MAX_DECODES])) * view.problem.block_size <= free
    if decoding > 0:
        return True
    if prefilling >= keep:
        return False
    return chunk_that_fits(view, view.active[prefilling], budget, free) > 0


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
        memory.params,
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
    d, places = decision.record, int(memory.params[MAX_ACTIVE]) - view.worker.num_active
    limit, used = int(memory.params[LIMIT]), view.problem.kv_capacity - room
    i = first_in_order(view, memory)
    while i != UNKNOWN and tokens > 0 and d.num_admit < places and has_place(view, decision):
        r = view.requests[i]
        left = r.num_prefill_left
        used += claim_of(view, r)
        if used > room_to_admit(view, decision, limit) or (left == 0 and decodes == 0):
            break
        chunk = min(tokens, full_tokens(left))
        tokens -= chunk
        free -= need_of_tokens(view, r, chunk)
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
    params = memory.params
    if ranked(params):
        rank_waiting(view, memory)
    critical = find_deadlines(view, decision, memory)
    keep, free = evict_until_batch(view, decision, memory, critical)
    tokens, decodes = int(params[BUDGET]), int(params[MAX_DECODES])
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
    )
    kernel = slai_kernel

    def __init__(
        self,
        *,
        order: str = "spf",
        offset: float = 10.0,
        low_offset: float | None = None,
        memory_threshold: float = 0.96,
        paying_first: bool = False,
        token_budget: int = 512,
        max_active: int = 128,
        max_decodes: int = 128,
        watermark: float = 0.0,
    ) -> None:
        """Set the order of prefills, the safety margin of deadlines, the caps, and the watermark.

        Args:
            order: order of new prefills: ``"spf"``, shortest prefill first, or ``"fcfs"``.
            offset: safety margin δ ≥ 0 of the last schedulable time, in average batch times. The paper uses 5
                and 10.
            low_offset: margin while memory use is below the threshold (the paper's dynamic offset: 5); None =
                always ``offset`` (its fixed offset).
            memory_threshold: fraction of memory in use, in [0, 1], from which ``offset`` applies.
            paying_first: whether new requests of higher priority are prefilled first, regardless of length
                (Appendix F.2).
            token_budget: maximum tokens per batch, τ_budget ≥ 1.
            max_active: maximum number of active requests, α ≥ 1.
            max_decodes: maximum number of decodes per batch, β ≥ 1.
            watermark: fraction of the capacity that admission leaves free, in [0, 1).
        """
        require("order", order, order in ("spf", "fcfs"), "spf or fcfs")
        margins = (
            [("offset", offset)] if low_offset is None else [("offset", offset), ("low_offset", low_offset)]
        )
        for name, margin in margins:
            require(name, margin, 0 <= margin < math.inf, "a number ≥ 0")
        require("memory_threshold", memory_threshold, 0 <= memory_threshold <= 1, "a fraction in [0, 1]")
        require_flag("paying_first", paying_first)
        caps = (("token_budget", token_budget), ("max_active", max_active), ("max_decodes", max_decodes))
        for name, value in caps:
            require_count(name, value)
        require_fraction("watermark", watermark)
        self.order, self.paying_first = order, paying_first
        self.offset, self.low_offset, self.memory_threshold = offset, low_offset, memory_threshold
        self.token_budget, self.max_active, self.max_decodes = token_budget, max_active, max_decodes
        self.watermark = watermark

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the hyperparameters, with fractions of the memory converted to tokens."""
        low_offset = self.offset if self.low_offset is None else self.low_offset
        high_memory = system.kv_capacity - fraction_of(system.kv_capacity, self.memory_threshold)
        values = (
            self.order == "spf", self.paying_first, self.offset, low_offset, high_memory, self.token_budget,
            self.max_active, self.max_decodes, fraction_of(system.kv_capacity, self.watermark),
        )  # fmt: skip
        return np.array(values, dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return an empty heap and empty lists, and space for a deadline and an objective per slot."""
        slots = max(min(system.max_requests, system.kv_capacity), 1)
        waiting_at = RANKS + system.max_requests
        lists_at = waiting_at + 1 + system.max_requests + np.arange(5) * (1 + slots)
        state = np.zeros(lists_at[-1], np.int64)
        state[WAITING_AT] = waiting_at
        state[[CRITICAL_AT, OTHERS_AT, ROOM_AT, FOLLOWED_AT]] = lists_at[:-1]
        return policy_memory(self.params(system), state=state, reals=np.zeros(2 * slots))
