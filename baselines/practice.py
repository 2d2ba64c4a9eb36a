"""Variants from practice, not from a paper: MC-SF with ageing, and eviction by the work lost."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.memory_constrained import (
    BLOCKED_ID,
    HEAP,
    OWN,
    USUAL,
    LookAhead,
    need_of_next_iteration,
    try_admit,
    update_profile,
)
from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit_while_fits,
    evict,
    evict_latest,
    first_tokens,
    forget_ranked,
    heap_pop,
    heap_push,
    jit,
    jit_inline,
    kept_by_others,
    key_request,
    need_of,
    need_of_active,
    policy_kernel,
    policy_memory,
    predicted_rounds,
    profile_add,
    profile_forget,
    ranked_pop,
    ranked_push,
    request_key,
    stays,
    taken_by,
)
from kvgym.policies.policy import (
    AUTO,
    CompiledPolicy,
    PolicyInfo,
    SystemInfo,
    fraction_of,
    head_of_queue,
    register_policy,
    require,
    require_fraction,
)

# Layout of the parameters, after those of MC-SF; the real numbers are the heap keys of the requests.
_RATE = OWN


@jit_inline
def leave_on_overflow(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, offset: int) -> None:
    """Undo admissions, last first, then evict the latest activated requests, until the next iteration fits."""
    d, problem = decision.record, view.problem
    need = need_of_next_iteration(view, decision)
    if need <= problem.kv_capacity:
        return
    while need > problem.kv_capacity and d.num_admit > 0:
        d.num_admit -= 1
        i = decision.admit[d.num_admit]
        r = view.requests[i]
        need -= taken_by(view, i)
        rounds = predicted_rounds(problem, r)
        profile_add(memory.profile, offset, first_tokens(problem, r), rounds, -1, problem.block_size)
        ranked_push(memory.state, HEAP, memory.reals, 0, i)
    evict_latest(view, decision, need)
    for j in range(d.num_evict):
        slot = view.active[decision.evict[j]]
        if slot.predicted_len > slot.num_output_tokens:
            tokens, made = first_tokens(problem, slot), slot.num_output_tokens
            profile_forget(memory.profile, offset, slot.predicted_len, made, tokens, problem.block_size)
    memory.state[BLOCKED_ID] = UNKNOWN


@policy_kernel
def ageing_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Admit in ascending order of predicted length minus waiting credit, while (5) of MC-SF holds.

    All waiting requests gain credit at the same rate, so their order never changes: it is that of the predicted
    length plus the rate times the arrival time.
    """
    state, keys = memory.state, memory.reals
    forget_ranked(view, state, HEAP, keys, 0)
    for j in range(view.worker.num_queued):
        i = view.queued[j]
        r = view.requests[i]
        keys[i] = r.predicted_len + memory.params[_RATE] * r.arrival_time
        ranked_push(state, HEAP, keys, 0, i)
    offset = update_profile(view, memory, False)
    while state[HEAP] > 0:
        first = state[HEAP + 1]
        rounds = predicted_rounds(view.problem, view.requests[first])
        if not try_admit(view, decision, memory, offset, first, rounds):
            break
        ranked_pop(state, HEAP, keys, 0)
    leave_on_overflow(view, decision, memory, offset)


@jit
def evict_cheapest(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, need: int) -> None:
    """Evict the requests with the least KV until the next iteration of the others fits.

    Of equal requests, the newest is evicted. Evictions that later ones made unnecessary are undone, the largest
    first, and of equal ones the oldest first. ``need`` is the need of the whole active set; the state has space for a
    heap.
    """
    d, capacity, state = decision.record, view.problem.kv_capacity, memory.state
    last = view.worker.num_active - 1
    state[0] = 0
    for k in range(view.worker.num_active):
        heap_push(state, 0, request_key(view.active[k].num_kv_tokens, last - k))
    while need > capacity:
        k = last - key_request(heap_pop(state, 0))
        need -= need_of(view, view.active[k]) - kept_by_others(view, view.active[k])
        evict(decision, k)
    for j in range(d.num_evict - 1, -1, -1):
        slot = view.active[decision.evict[j]]
        stays(view, slot)
        use = need_of(view, slot) - kept_by_others(view, slot)
        if need + use <= capacity:
            stays(view, slot)
            need += use
            decision.evict[j] = UNKNOWN
    kept = 0
    for j in range(d.num_evict):
        if decision.evict[j] != UNKNOWN:
            decision.evict[kept] = decision.evict[j]
            kept += 1
    d.num_evict = kept


@policy_kernel
def cost_aware_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Evict the cheapest requests until the next iteration fits; admit only if none was evicted."""
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_cheapest(view, decision, memory, need)
    else:
        admit_while_fits(view, decision, need, int(memory.params[0]))


@register_policy
class Ageing(LookAhead):
    """MC-SF with credit for waiting, so that long requests do not starve.

    The order is ascending predicted_len - rate · (now - arrival_time); ties go by arrival, then id. A request can be
    passed only by requests that arrive within predicted_len / rate seconds after it. Admission is that of MC-SF: the
    longest prefix for which (5) holds. On overflow, requests leave last in, first out until the next iteration fits,
    starting with those chosen at this boundary; MC-SF would evict all.
    """

    info = PolicyInfo(
        name="ageing",
        summary="MC-SF with credit for waiting, so that no request starves; LIFO eviction",
        needs=frozenset({"predicted_length"}),
        evicts=True,
        auto=USUAL,
    )
    kernel = ageing_kernel
    margin: ClassVar[float] = 0.05  # it evicts one by one, so that less suffices

    def __init__(self, *, rate: float = 1.0, protection: float | str = AUTO, overrun: str = AUTO) -> None:
        """Set the credit, and the hyperparameters of MC-SF.

        Args:
            rate: credit for waiting, predicted output tokens per second, ≥ 0. 0 is the order of MC-SF; the
                larger, the closer to first come, first served.
            protection: fraction of the capacity that the look-ahead keeps free, in [0, 1); a request that would be
                alone may use it. ``"auto"``: 0 if no prediction is below the truth, else 0.05.
            overrun: memory counted for a running request that has outlived its prediction: ``"ignore"``, 0;
                ``"extend"``, the memory that it needs in the next iteration. ``"auto"``: ``"ignore"`` if no
                prediction is below the truth, else ``"extend"``.

        Raises:
            ConfigError: a value is out of range.
        """
        super().__init__(protection=protection, overrun=overrun)
        number = isinstance(rate, int | float | np.integer | np.floating)
        require("rate", rate, number and 0 <= rate < math.inf, "tokens per second ≥ 0")
        self.rate = float(rate)

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the parameters of MC-SF, and the rate."""
        return np.append(super().params(system), self.rate)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the memory of MC-SF, with a heap key per request."""
        return super().memory(system)._replace(reals=np.zeros(max(1, system.max_requests)))


@register_policy
class CostAware(CompiledPolicy):
    """First come, first served; on overflow, evicts the requests that lose the least KV.

    The cost of an eviction is the KV at rest, which must be recomputed. If evicted requests keep their progress,
    nothing is lost, and the same order swaps the least KV.
    """

    info = PolicyInfo(
        name="cost_aware",
        summary="first come, first served, greedy; evicts the requests with the least KV on overflow",
        evicts=True,
    )
    kernel = cost_aware_kernel
    blocking = head_of_queue

    def __init__(self, *, protection: float = 0.0) -> None:
        """Set the watermark.

        Args:
            protection: fraction of the capacity that admission leaves free, in [0, 1); an empty worker admits
                its first request regardless.

        Raises:
            ConfigError: not a fraction in [0, 1).
        """
        require_fraction("protection", protection)
        self.protection = protection

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission threshold, tokens."""
        return np.array([fraction_of(system.kv_capacity, self.protection)], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return space for a heap of the active requests."""
        return policy_memory(self.params(system), state=np.zeros(1 + max(1, system.max_requests)))
