"""SLAI, the SLO-aware scheduler: decode iterations wait until their deadlines call, prefills go first.

Source: A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and
Practice", Section 6: last schedulable time (8), batch construction (1) to (4); Section 7 and Appendix F.2 for
the dynamic offset and for paying requests first.

Readings, where the paper is silent:

- The running average of batch times is over all iterations of the worker so far, 0 before the first.
- A decode iteration before any token has reached the user has no last token to count from: it is critical. One
  without a TBT objective is never critical.
- The token budget and the decode limit bind critical decodes too; those with the earliest last schedulable
  time go first, ties in order of activation.
- Shortest prefill first goes by the tokens left to prefill, ties by arrival. First come, first served is the
  order of the queue.
- A waiting request with nothing left to prefill (evicted, progress kept) takes its turn among new prefills, and
  decodes one token: it counts towards both the budget and the decode limit.

Memory (the paper relies on the cap on active requests):

- A new request is admitted only if the whole of what it has left to prefill, and one token more, fits beside
  the KV at rest, the critical decodes of this iteration, and the same for every prefill under way. Admission
  stops at the first that does not fit.
- A chunk is cut to the memory that is free. An ongoing prefill without a chunk ends the prefills of the batch.
- If critical decodes do not fit, or if nobody could run, the latest activated requests are evicted until that
  is mended; nobody is admitted then. The first of the active set is never evicted, so that a run always ends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines._ranked_heap import ranked_pop, ranked_push
from kvgym.errors import ConfigError
from kvgym.policy import (
    CompiledPolicy,
    PolicyInfo,
    PolicyMemory,
    SystemInfo,
    fraction_of,
    policy_kernel,
    register_policy,
    require,
)
from kvgym.simulator.apply_decision import full_tokens, kv_growth
from kvgym.simulator.compiled import jit
from kvgym.simulator.tables import REQUEUE_BACK, REQUEUE_FRONT, UNKNOWN

# Layout of the parameters.
_SHORTEST, _PAYING, _OFFSET, _LOW_OFFSET, _HIGH_MEMORY, _BUDGET, _MAX_ACTIVE, _MAX_DECODES = range(8)

# Layout of the state array: where the heaps begin, how many requests have joined the queue in front of those
# that wait and behind them, then ranks by request id, the heap of waiting requests, the heap of slots.
_WAITING_AT, _SLOTS_AT, _FRONT, _BACK, _RANKS = range(5)


@jit
def rank_waiting(problem: Any, w: Any, requests: Any, queued: Any, params: Any, state: Any) -> None:
    """Put requests that joined the queue into the order of admission.

    Their rank is their priority if paying requests go first, then the tokens to prefill or the place in the
    queue: the low 32 bits.
    """
    for j in range(w.num_queued):
        i = queued[j]
        rank: Any = np.int64(i)
        if params[_SHORTEST] == 1.0:
            rank = np.int64(requests[i].num_prefill_left)
        elif problem.requeue == REQUEUE_BACK or problem.requeue == REQUEUE_FRONT:
            if problem.requeue == REQUEUE_FRONT and requests[i].num_evictions > 0:
                state[_FRONT] += 1
                rank = (1 << 31) - state[_FRONT]
            else:
                rank = (1 << 31) + state[_BACK]
                state[_BACK] += 1
        if params[_PAYING] == 1.0:
            rank += ~np.int64(requests[i].priority) << 32
        state[_RANKS + i] = rank
        ranked_push(state, state[_WAITING_AT], state, _RANKS, i)


@jit
def first_waiting(w: Any, params: Any, state: Any) -> int:
    """Return the request to admit first, UNKNOWN if none waits."""
    if params[_SHORTEST] == 0.0 and params[_PAYING] == 0.0:
        first: int = w.queue_head
        return first
    at = state[_WAITING_AT]
    return state[at + 1] if state[at] > 0 else UNKNOWN


@jit
def next_waiting(requests: Any, params: Any, state: Any, i: int) -> int:
    """Return the request to admit after ``i``, the first so far, which has just been admitted."""
    if params[_SHORTEST] == 0.0 and params[_PAYING] == 0.0:
        following: int = requests[i].queue_next
        return following
    at = state[_WAITING_AT]
    ranked_pop(state, at, state, _RANKS)
    return state[at + 1] if state[at] > 0 else UNKNOWN


@jit
def find_deadlines(w: Any, requests: Any, active: Any, params: Any, reals: Any) -> int:
    """Write the last schedulable time (8) of every decode to ``reals``; returns how many are critical."""
    offset = params[_LOW_OFFSET] if w.kv_tokens < params[_HIGH_MEMORY] else params[_OFFSET]
    margin = offset * (w.busy_time / w.iteration) if w.iteration > 0 else 0.0
    critical = 0
    for k in range(w.num_active):
        slot = active[k]
        if slot.num_prefill_left > 0:
            continue
        reals[k] = -np.inf
        if not math.isnan(slot.last_token_time):
            reals[k] = slot.last_token_time + requests[slot.request_id].tbt_slo - margin
        if reals[k] <= w.clock:
            critical += 1
    return critical


@jit
def chunk_that_fits(problem: Any, left: int, tokens: int, memory: int) -> int:
    """Return the largest chunk of a prefill within ``tokens`` of budget and ``memory`` tokens of KV."""
    chunk = min(left, tokens, memory)
    if chunk > 0 and kv_growth(problem, left, chunk) > memory:
        chunk -= 1  # the output token that the last chunk writes does not fit
    return chunk


@jit
def somebody_runs(
    problem: Any, active: Any, keep: int, memory: int, prefilling: int, decoding: int, critical: int,
    budget: int, limit: int,
) -> bool:  # fmt: skip
    """Return whether critical decodes fit and there is a batch, if the first ``keep`` slots stay.

    ``prefilling`` is the first slot with a prefill under way; ``decoding`` and ``critical`` count decodes and
    critical ones among those that stay, of which up to ``limit`` must fit into ``memory``.
    """
    if critical > 0:
        return bool(min(critical, limit) <= memory)
    if decoding > 0 and memory > 0:
        return True
    if prefilling >= keep:
        return False
    return bool(chunk_that_fits(problem, active[prefilling].num_prefill_left, budget, memory) > 0)


@jit
def evict_until_somebody_runs(
    problem: Any, w: Any, active: Any, d: Any, evict: Any, params: Any, reals: Any, critical: int
) -> int:
    """Evict the latest activated until critical decodes fit and there is a batch; the first slots stay.

    Returns:
        How many slots stay: at least one, if any is active.
    """
    budget, prefilling, keep = int(params[_BUDGET]), 0, w.num_active
    limit = min(budget, int(params[_MAX_DECODES]))
    memory, decoding = problem.kv_capacity - w.kv_tokens, w.num_active - w.num_prefilling
    while prefilling < keep and active[prefilling].num_prefill_left == 0:
        prefilling += 1
    while keep > 0 and not somebody_runs(
        problem, active, keep, memory, prefilling, decoding, critical, budget, limit
    ):
        keep -= 1
        memory += active[keep].num_kv_tokens
        if active[keep].num_prefill_left == 0:
            decoding -= 1
            if reals[keep] <= w.clock:
                critical -= 1
        evict[d.num_evict] = keep
        d.num_evict += 1
    return keep


@jit
def run_decodes(w: Any, active: Any, state: Any, reals: Any, keep: int, critical: bool, limit: int) -> int:
    """Run up to ``limit`` critical, or non-critical, decodes by last schedulable time; returns how many."""
    count = 0
    for k in range(keep):
        if active[k].num_prefill_left == 0 and (reals[k] <= w.clock) == critical:
            count += 1
            active[k].planned = UNKNOWN
    if count <= limit:
        return count
    at = state[_SLOTS_AT]
    state[at] = 0
    for k in range(keep):
        if active[k].num_prefill_left == 0 and (reals[k] <= w.clock) == critical:
            active[k].planned = 0
            ranked_push(state, at, reals, 0, k)
    for _ in range(limit):
        active[ranked_pop(state, at, reals, 0)].planned = UNKNOWN
    return limit


@jit
def run_prefills(problem: Any, active: Any, keep: int, tokens: int, memory: int) -> tuple[int, int, int]:
    """Give ongoing prefills their chunks, in order of activation.

    Returns:
        What is left of the budget; what is left of the memory; and the memory that new requests may claim:
        what is left once these prefills have been completed with one token each, or 0 if one got no chunk.
    """
    room, blocked = memory, False
    for k in range(keep):
        left = active[k].num_prefill_left
        if left > 0 and not blocked:
            room -= left + 1
            chunk = chunk_that_fits(problem, left, tokens, memory)
            blocked = chunk == 0
            if not blocked:
                active[k].planned = chunk if chunk < left else UNKNOWN
                tokens -= chunk
                memory -= kv_growth(problem, left, chunk)
    return tokens, memory, 0 if blocked else room


@jit
def admit_prefills(
    problem: Any, w: Any, requests: Any, d: Any, admit: Any, admit_tokens: Any, params: Any, state: Any,
    tokens: int, decodes: int, memory: int, room: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Admit new requests, each with a chunk of its prefill, while budget, cap and memory allow.

    ``room`` is the memory they may claim for their whole prefill and one token more.

    Returns:
        What is left of the budget, of the decode limit, and of the memory.
    """
    places = min(int(params[_MAX_ACTIVE]), admit.shape[0]) - w.num_active
    i = first_waiting(w, params, state)
    while i != UNKNOWN and tokens > 0 and d.num_admit < places:
        held, left = requests[i].num_kv_tokens, requests[i].num_prefill_left
        room -= held + left + 1
        if room < 0 or (left == 0 and decodes == 0):
            break
        chunk = min(tokens, full_tokens(left))
        tokens -= chunk
        memory -= held + kv_growth(problem, left, chunk)
        if left == 0:
            decodes -= 1
        admit[d.num_admit] = i
        admit_tokens[d.num_admit] = chunk if chunk < left else UNKNOWN
        d.num_admit += 1
        i = next_waiting(requests, params, state, i)
    return tokens, decodes, memory


@policy_kernel
def slai_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Section 6: critical decodes, then prefills, ongoing ones first, then the other decodes."""
    if params[_SHORTEST] == 1.0 or params[_PAYING] == 1.0:
        rank_waiting(problem, w, requests, queued, params, state)
    critical = find_deadlines(w, requests, active, params, reals)
    keep = evict_until_somebody_runs(problem, w, active, d, evict, params, reals, critical)
    memory = problem.kv_capacity - w.kv_tokens
    for k in range(keep, w.num_active):
        memory += active[k].num_kv_tokens
    d.explicit = 1
    for k in range(keep):
        active[k].planned = 0

    tokens, decodes = int(params[_BUDGET]), int(params[_MAX_DECODES])
    ran = run_decodes(w, active, state, reals, keep, True, min(tokens, decodes))
    tokens, decodes, memory = tokens - ran, decodes - ran, memory - ran
    tokens, memory, room = run_prefills(problem, active, keep, tokens, memory)
    if d.num_evict == 0:
        tokens, decodes, memory = admit_prefills(
            problem, w, requests, d, admit, admit_tokens, params, state, tokens, decodes, memory, room
        )
    run_decodes(w, active, state, reals, keep, False, min(tokens, decodes, memory))


@register_policy
class SLAI(CompiledPolicy):
    """SLO-aware LLM inference: decodes run when they must to meet their TBT objectives, prefills before."""

    info = PolicyInfo(
        name="slai",
        summary="prefills first, shortest first; decodes wait until their TBT deadlines are near",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
        algorithm="Section 6",
        needs=frozenset({"slo"}),
        chunks_prefill=True,
        pauses=True,
        evicts=True,
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
    ) -> None:
        """Set the order of prefills, the safety margin of deadlines, and the caps.

        Args:
            order: which new request is prefilled first: ``"spf"``, the shortest prefill, or ``"fcfs"``.
            offset: margin δ ≥ 0 of the last schedulable time, in average batch times. The paper uses 5 and 10.
            low_offset: the margin while memory use is below the threshold (the paper's dynamic offset: 5);
                None = ``offset`` throughout (its fixed offset).
            memory_threshold: fraction of memory in use from which ``offset`` holds, in [0, 1].
            paying_first: prefill new requests of higher priority first, whatever their length (Appendix F.2).
            token_budget: tokens in a batch at most, τ_budget ≥ 1.
            max_active: active requests at most, α ≥ 1.
            max_decodes: decodes in a batch at most, β ≥ 1.
        """
        require("order", order, order in ("spf", "fcfs"), "spf or fcfs")
        margins = (
            [("offset", offset)] if low_offset is None else [("offset", offset), ("low_offset", low_offset)]
        )
        for name, margin in margins:
            require(name, margin, 0 <= margin < math.inf, "a number ≥ 0")
        require("memory_threshold", memory_threshold, 0 <= memory_threshold <= 1, "a fraction in [0, 1]")
        if not isinstance(paying_first, bool):
            raise ConfigError(f"paying_first = {paying_first!r}; expected True or False")
        caps = (("token_budget", token_budget), ("max_active", max_active), ("max_decodes", max_decodes))
        for name, value in caps:
            require(name, value, isinstance(value, int) and value >= 1, "a whole number ≥ 1")
        self.order, self.paying_first = order, paying_first
        self.offset, self.low_offset, self.memory_threshold = offset, low_offset, memory_threshold
        self.token_budget, self.max_active, self.max_decodes = token_budget, max_active, max_decodes

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the hyperparameters, with the threshold as the least whole number of tokens that reaches it."""
        low_offset = self.offset if self.low_offset is None else self.low_offset
        high_memory = system.kv_capacity - fraction_of(system.kv_capacity, self.memory_threshold)
        values = (
            self.order == "spf", self.paying_first, self.offset, low_offset, high_memory, self.token_budget,
            self.max_active, self.max_decodes,
        )  # fmt: skip
        return np.array(values, dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return empty heaps, and room for a deadline per slot."""
        slots = min(system.max_requests, system.kv_capacity)
        waiting_at = _RANKS + system.max_requests
        slots_at = waiting_at + 1 + system.max_requests
        state = np.zeros(slots_at + 1 + slots, np.int64)
        state[_WAITING_AT], state[_SLOTS_AT] = waiting_at, slots_at
        return PolicyMemory(state, np.zeros(max(slots, 1)), np.zeros(2, np.int32))
