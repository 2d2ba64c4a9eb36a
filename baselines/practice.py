"""Variants from practice, not from a paper: ageing for MC-SF, and eviction by the work that it loses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines._common import evict_last, need_of_ongoing, slot_need
from kvgym.baselines.first_come import admit_greedily
from kvgym.baselines.memory_constrained import BLOCKED_ID, HEAP, LookAhead, try_admit, update_profile
from kvgym.policy import (
    CompiledPolicy,
    PolicyInfo,
    PolicyMemory,
    SystemInfo,
    fraction_of,
    head_of_queue,
    policy_kernel,
    register_policy,
    require,
)
from kvgym.simulator.compiled import jit
from kvgym.simulator.heap import heap_pop, heap_push, key_request, request_key
from kvgym.simulator.lookahead import first_use, predicted_rounds, profile_add, profile_forget
from kvgym.simulator.tables import UNKNOWN


@jit
def comes_before(keys: Any, i: int, j: int) -> bool:
    """Whether request ``i`` goes before ``j``: by key, then by request id (which is arrival order)."""
    return keys[i] < keys[j] or (keys[i] == keys[j] and i < j)


@jit
def push_request(state: Any, at: int, keys: Any, i: int) -> None:
    """Add request ``i`` to the heap at ``state[at]`` (its length, then ids), ordered by ``keys[id]``."""
    k = state[at]
    state[at] += 1
    base = at + 1
    while k > 0:
        parent = (k - 1) >> 1
        if comes_before(keys, state[base + parent], i):
            break
        state[base + k] = state[base + parent]
        k = parent
    state[base + k] = i


@jit
def pop_request(state: Any, at: int, keys: Any) -> None:
    """Remove the first request of such a heap."""
    base = at + 1
    state[at] -= 1
    length = state[at]
    i = state[base + length]
    k = 0
    while 2 * k + 1 < length:
        child = 2 * k + 1
        if child + 1 < length and comes_before(keys, state[base + child + 1], state[base + child]):
            child += 1
        if comes_before(keys, i, state[base + child]):
            break
        state[base + k] = state[base + child]
        k = child
    state[base + k] = i


@jit
def leave_on_overflow(
    problem: Any, w: Any, requests: Any, active: Any, d: Any, admit: Any, evict: Any, state: Any, keys: Any,
    profile: Any, offset: int,
) -> None:  # fmt: skip
    """Last in, first out until the coming round fits: undo admissions, then evict the latest activated."""
    need = need_of_ongoing(problem, w, active)
    for j in range(d.num_admit):
        need += first_use(problem, requests[admit[j]])
    if need <= problem.kv_capacity:
        return
    while need > problem.kv_capacity and d.num_admit > 0:
        d.num_admit -= 1
        i = admit[d.num_admit]
        use = first_use(problem, requests[i])
        need -= use
        profile_add(profile, offset, use, predicted_rounds(problem, requests[i]), -1)
        push_request(state, HEAP, keys, i)
    evict_last(problem, w, active, d, evict, need)
    for j in range(d.num_evict):
        slot = active[evict[j]]
        if slot.predicted_len > slot.num_output_tokens:
            use = slot_need(problem, slot)
            profile_forget(profile, offset, slot.predicted_len, slot.num_output_tokens, use)
    state[BLOCKED_ID] = UNKNOWN


@policy_kernel
def ageing_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Admit in ascending order of predicted length less credit for waiting, while (5) of MC-SF holds.

    All waiting requests gain credit at one rate, so their order never changes: it goes by the predicted
    length plus the rate times the arrival time.
    """
    limit = int(params[0])
    for j in range(w.num_queued):
        r = requests[queued[j]]
        reals[queued[j]] = r.predicted_len + params[2] * r.arrival_time
        push_request(state, HEAP, reals, queued[j])
    offset = update_profile(w, requests, active, finished, params[1] == 1.0, False, state, profile)
    while state[HEAP] > 0:
        i = state[HEAP + 1]
        rounds = predicted_rounds(problem, requests[i])
        if not try_admit(problem, w, requests, d, admit, limit, state, profile, offset, i, rounds):
            break
        pop_request(state, HEAP, reals)
    leave_on_overflow(problem, w, requests, active, d, admit, evict, state, reals, profile, offset)


@jit
def evict_cheapest(problem: Any, w: Any, active: Any, d: Any, evict: Any, state: Any, need: int) -> None:
    """Evict where least KV is lost until the coming round of the others fits, and nobody needlessly.

    Ties: the newest goes. Those that the later ones made superfluous are spared again, the largest first, of
    equal ones the oldest first. ``need`` is what the whole active set needs; ``state`` is room for a heap.
    """
    last = w.num_active - 1
    state[0] = 0
    for k in range(w.num_active):
        heap_push(state, 0, request_key(active[k].num_kv_tokens, last - k))
    while need > problem.kv_capacity:
        k = last - key_request(heap_pop(state, 0))
        need -= slot_need(problem, active[k])
        evict[d.num_evict] = k
        d.num_evict += 1
    for j in range(d.num_evict - 1, -1, -1):
        use = slot_need(problem, active[evict[j]])
        if need + use <= problem.kv_capacity:
            need += use
            evict[j] = UNKNOWN
    kept = 0
    for j in range(d.num_evict):
        if evict[j] != UNKNOWN:
            evict[kept] = evict[j]
            kept += 1
    d.num_evict = kept


@policy_kernel
def cost_aware_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Evict the cheapest while the coming round does not fit; admit only if nobody had to go."""
    need = need_of_ongoing(problem, w, active)
    if need > problem.kv_capacity:
        evict_cheapest(problem, w, active, d, evict, state, need)
    else:
        admit_greedily(problem, w, requests, d, admit, need, int(params[0]))


@register_policy
class Ageing(LookAhead):
    """MC-SF that gives credit for waiting, so that long requests are not passed for ever.

    Requests go in ascending order of predicted_len - rate · (now - arrival_time), ties by arrival, then id. A
    request can be passed only by those that arrive within predicted_len / rate seconds after it. Admission is
    that of MC-SF: the longest sequence of first requests for which (5) holds. On overflow requests leave last
    in, first out until the round fits, those chosen at this very boundary first; MC-SF would clear all.
    """

    info = PolicyInfo(
        name="ageing",
        summary="MC-SF with credit for waiting, so that nobody is passed for ever; LIFO eviction",
        needs=frozenset({"predicted_length"}),
        evicts=True,
    )
    kernel = ageing_kernel

    def __init__(self, *, rate: float = 1.0, protection: float = 0.0, overrun: str = "ignore") -> None:
        """Set the credit, and what MC-SF has.

        Args:
            rate: credit for waiting, predicted output tokens per second, ≥ 0. 0 is the order of MC-SF; the
                larger it is, the nearer to first come, first served.
            protection: fraction of the capacity kept free in the look-ahead, in [0, 1).
            overrun: what an ongoing request counts once it has outlived its prediction: ``"ignore"`` 0,
                ``"extend"`` the memory it needs in the coming iteration.

        Raises:
            ConfigError: a value out of range.
        """
        super().__init__(protection=protection, overrun=overrun)
        number = isinstance(rate, int | float | np.integer | np.floating)
        require("rate", rate, number and 0 <= rate < math.inf, "tokens per second ≥ 0")
        self.rate = float(rate)

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the limit of the look-ahead in tokens, whether overruns extend, and the rate."""
        return np.append(super().params(system), self.rate)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the memory of MC-SF, and a key per request."""
        memory = super().memory(system)
        return PolicyMemory(memory.state, np.zeros(max(1, system.max_requests)), memory.profile)


@register_policy
class CostAware(CompiledPolicy):
    """First come, first served; on overflow those go back to the queue whose eviction loses least KV.

    The cost of an eviction is the KV at rest, which has to be built again; where evicted requests keep their
    progress nothing is lost and the same order means least to swap.
    """

    info = PolicyInfo(
        name="cost_aware",
        summary="first come, first served, greedy; evicts those with the least KV on overflow",
        evicts=True,
    )
    kernel = cost_aware_kernel
    blocking = head_of_queue

    def __init__(self, *, protection: float = 0.0) -> None:
        """Set the watermark.

        Args:
            protection: fraction of the capacity that admission leaves free, in [0, 1).

        Raises:
            ConfigError: not such a fraction.
        """
        require("protection", protection, 0 <= protection < 1, "a fraction in [0, 1)")
        self.protection = protection

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the admission threshold, tokens."""
        return np.array([fraction_of(system.kv_capacity, self.protection)], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return room for a heap of the active requests."""
        return PolicyMemory(
            np.zeros(1 + max(1, system.max_requests), np.int64), np.zeros(1), np.zeros(2, np.int32)
        )
