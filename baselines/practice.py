"""Variants from practice, not from a paper: MC-SF with ageing, and eviction by the work lost."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from kvgym.baselines.first_come import Limit, limit_of
from kvgym.baselines.margins import Protected
from kvgym.baselines.memory_constrained import (
    BLOCKED_ID,
    HEAP,
    USUAL,
    LookAhead,
    counted_overrun,
    kept_free,
    margin_of,
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
    need_of_active,
    need_of_slot,
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
from kvgym.policies.hyperparameters import (
    hyperparameter,
)
from kvgym.policies.policy import PolicyInfo, SystemInfo, head_of_queue, register_policy


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

    All waiting requests gain credit at the same rate, so their order never changes: it is the order of the predicted
    length plus the rate times the arrival time.
    """
    state, keys = memory.state, memory.reals
    forget_ranked(view, state, HEAP, keys, 0)
    for j in range(view.worker.num_queued):
        i = view.queued[j]
        r = view.requests[i]
        keys[i] = r.predicted_len + margin_of(memory.params).rate * r.arrival_time
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
        need -= need_of_slot(view, k) - kept_by_others(view, view.active[k])
        evict(decision, k)
    for j in range(d.num_evict - 1, -1, -1):
        slot = view.active[decision.evict[j]]
        stays(view, slot)
        use = need_of_slot(view, decision.evict[j]) - kept_by_others(view, slot)
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
        admit_while_fits(view, decision, need, limit_of(memory.params).limit)


@register_policy
class Ageing(LookAhead):
    """MC-SF with credit for waiting, so that long requests do not starve.

    The order is ascending predicted_len - rate · (now - arrival_time); ties go by arrival, then id. A request can be
    passed only by requests that arrive within predicted_len / rate seconds after it. Admission is MC-SF's: the
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
    auto_margin: ClassVar[float] = 0.05  # it evicts one by one, so that less suffices

    strict = False

    rate: float = hyperparameter(
        1.0,
        lambda value: isinstance(value, int | float | np.number) and bool(0 <= value < math.inf),
        "tokens per second ≥ 0",
        kept=float,
        search=(0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),  # from MC-SF's order to first come, first served
    )
    """credit for waiting, predicted output tokens per second, ≥ 0. 0 is the order of MC-SF; the larger, the closer to
    first come, first served."""
    protection: float | str = kept_free(search=(0.0, 0.05, 0.1, 0.2))
    """fraction of the capacity that the look-ahead keeps free, in [0, 1); a request that would be alone may use it.
    ``"auto"``: 0 if no prediction is below the truth, else 0.05."""
    overrun: str = counted_overrun()
    """memory counted for a running request that has outlived its prediction: ``"ignore"``, 0; ``"extend"``, the memory
    that it needs in the next iteration. ``"auto"``: ``"ignore"`` if no prediction is below the truth, else
    ``"extend"``."""

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the memory of MC-SF, with a heap key per request."""
        return super().memory(system)._replace(reals=np.zeros(max(1, system.max_requests)))


@register_policy
class CostAware(Protected):
    """First come, first served; on overflow, evicts the requests that lose the least KV.

    The cost of an eviction is the KV held, which must be recomputed. If evicted requests keep their progress,
    nothing is lost, and the same order swaps the least KV.
    """

    info = PolicyInfo(
        name="cost_aware",
        summary="first come, first served, greedy; evicts the requests with the least KV on overflow",
        evicts=True,
        drafts=True,
        loads=True,
    )
    kernel = cost_aware_kernel
    blocking = head_of_queue

    parameters = Limit

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return space for a heap of the active requests."""
        return policy_memory(self.params(system), state=np.zeros(1 + max(1, system.max_requests)))
