"""MC-SF, MC-Benchmark and its pessimistic variant: admission by a look-ahead over predicted KV memory.

Source: P. Jaillet, J. Jiang, K. Mellou, M. Molinaro, C. Podimata, Z. Zhou, "Online Scheduling for LLM
Inference with KV Cache Constraints": Algorithm 1 (MC-SF), Algorithm 2 (MC-Benchmark), inequality (5), and
Section 5.2.2 for the protection margin and for clearing on overflow. MC-Benchmark with the longest possible
outputs: flow control for LLM inference (stability by controlled activation), Section 4.1.1.

Readings: admission stops at the first request that does not fit. Ties go by arrival, then id. An ongoing
request that outlives its prediction counts 0 in (5), as printed. If the memory the coming round really
needs exceeds the capacity, every active request is cleared and the round is lost, those admitted at that
moment included. A round is one iteration of the worker.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines._common import clear_all, need_of_ongoing
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
from kvgym.simulator.compiled import jit
from kvgym.simulator.heap import heap_pop, heap_push, key_request, request_key
from kvgym.simulator.lookahead import (
    blocked_for,
    first_use,
    predicted_rounds,
    profile_add,
    profile_clear,
    profile_forget,
    profile_offset,
    rounds_for,
)
from kvgym.simulator.tables import ROLE_PREFILL, UNKNOWN, WAITING
from kvgym.simulator.view import SystemView

PAPER = "Jaillet et al., Online Scheduling for LLM Inference with KV Cache Constraints"

# Layout of the state array: origin of the profile, iteration until which the head is known to be blocked,
# the head it was computed for, then (where the order is not that of the queue) the heap.
BLOCKED_UNTIL, BLOCKED_ID, HEAP = 1, 2, 3


@jit
def update_profile(
    w: Any, requests: Any, active: Any, finished: Any, extend: bool, longest: bool, state: Any, profile: Any
) -> int:
    """Correct the profile where predictions were wrong; returns the offset of now.

    Requests that ended early are taken out (on a prefill worker none does). With ``extend``, each that has
    outlived its prediction is put back for the coming iteration. The prediction is the longest possible
    output if ``longest``.
    """
    offset = profile_offset(profile, state, w.iteration)
    for j in range(w.num_finished if w.role != ROLE_PREFILL else 0):
        r = requests[finished[j]]
        predicted_len = r.predicted_high if longest else r.predicted_len
        if predicted_len > r.num_output_tokens:
            next_use = r.prompt_len + r.num_output_tokens + 1
            profile_forget(profile, offset, predicted_len, r.num_output_tokens, next_use)
            state[BLOCKED_ID] = UNKNOWN
    if extend:
        for k in range(w.num_active):
            slot = active[k]
            predicted_len = requests[slot.request_id].predicted_high if longest else slot.predicted_len
            if slot.num_output_tokens >= predicted_len:
                profile_add(profile, offset, slot.num_kv_tokens + 1, 1, 1)
    return offset


@jit
def try_admit(
    problem: Any,
    w: Any,
    requests: Any,
    d: Any,
    admit: Any,
    limit: int,
    state: Any,
    profile: Any,
    offset: int,
    i: int,
    rounds: int,
) -> bool:
    """Admit request ``i``, predicted to run ``rounds`` iterations, if inequality (5) holds with it.

    If it does not hold, remember until when it cannot.
    """
    if d.num_admit >= admit.shape[0] - w.num_active or (
        state[BLOCKED_ID] == i and w.iteration < state[BLOCKED_UNTIL]
    ):
        return False
    first = first_use(problem, requests[i])
    wait = blocked_for(profile, offset, first, rounds, limit)
    if wait > 0:
        state[BLOCKED_ID] = i
        state[BLOCKED_UNTIL] = w.iteration + wait
        return False
    profile_add(profile, offset, first, rounds, 1)
    admit[d.num_admit] = i
    d.num_admit += 1
    return True


@jit
def clear_on_overflow(
    problem: Any, w: Any, requests: Any, active: Any, d: Any, admit: Any, evict: Any, state: Any, profile: Any
) -> bool:
    """Clear everything if the coming round needs more than the capacity; True if it did."""
    need = need_of_ongoing(problem, w, active)
    for j in range(d.num_admit):
        need += first_use(problem, requests[admit[j]])
    if need <= problem.kv_capacity:
        return False
    clear_all(w, d, evict)
    profile_clear(profile)
    state[BLOCKED_ID] = UNKNOWN
    return True


@policy_kernel
def mc_sf_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 1: admit in ascending order of predicted output length while (5) holds."""
    limit = int(params[0])
    for j in range(w.num_queued):
        i = queued[j]
        heap_push(state, HEAP, request_key(requests[i].predicted_len, i))
    offset = update_profile(w, requests, active, finished, params[1] == 1.0, False, state, profile)
    while state[HEAP] > 0:
        i = key_request(state[HEAP + 1])
        rounds = predicted_rounds(problem, requests[i])
        if requests[i].status == WAITING and not try_admit(
            problem, w, requests, d, admit, limit, state, profile, offset, i, rounds
        ):
            break
        heap_pop(state, HEAP)
    admitted = d.num_admit
    if clear_on_overflow(problem, w, requests, active, d, admit, evict, state, profile):
        for j in range(admitted):
            heap_push(state, HEAP, request_key(requests[admit[j]].predicted_len, admit[j]))


@jit
def admit_in_order(
    problem: Any,
    w: Any,
    requests: Any,
    active: Any,
    finished: Any,
    d: Any,
    admit: Any,
    evict: Any,
    params: Any,
    longest: bool,
    state: Any,
    profile: Any,
) -> None:
    """Admit in queue order while (5) holds, under predicted or (``longest``) longest possible outputs."""
    limit = int(params[0])
    offset = update_profile(w, requests, active, finished, params[1] == 1.0, longest, state, profile)
    i = w.queue_head
    while i != UNKNOWN:
        r = requests[i]
        rounds = rounds_for(problem, r, r.predicted_high if longest else r.predicted_len)
        if not try_admit(problem, w, requests, d, admit, limit, state, profile, offset, i, rounds):
            break
        i = r.queue_next
    clear_on_overflow(problem, w, requests, active, d, admit, evict, state, profile)


@policy_kernel
def mc_benchmark_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 2: admit in order of arrival while (5) holds."""
    admit_in_order(problem, w, requests, active, finished, d, admit, evict, params, False, state, profile)


@policy_kernel
def mc_longest_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 2 with the longest possible output as prediction."""
    admit_in_order(problem, w, requests, active, finished, d, admit, evict, params, True, state, profile)


def blocked_request(policy: CompiledPolicy) -> int | None:
    """Return the request that a policy with :func:`try_admit` has found blocked, None if there is none."""
    i = int(policy.arguments()[1][BLOCKED_ID])
    return None if i == UNKNOWN else i


class LookAhead(CompiledPolicy):
    """What policies with a look-ahead share: margin, overruns, and the memory they keep."""

    def __init__(self, *, protection: float = 0.0, overrun: str = "ignore") -> None:
        """Set the margin and what an overrun prediction means.

        Args:
            protection: fraction α of the capacity kept free in the look-ahead, in [0, 1). The paper uses 0
                with exact predictions and 0.1 with noisy ones.
            overrun: what an ongoing request counts once it has outlived its prediction: ``"ignore"``, 0 as
                (5) is printed; ``"extend"``, the memory it needs in the coming iteration. With predictions
                below the truth the printed rule can admit the same set, overflow and clear it for ever.
        """
        require("protection", protection, 0 <= protection < 1, "a fraction in [0, 1)")
        require("overrun", overrun, overrun in ("ignore", "extend"), "ignore or extend")
        self.protection, self.overrun = protection, overrun

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the memory limit of the look-ahead in tokens, and whether overruns extend predictions."""
        return np.array([fraction_of(system.kv_capacity, self.protection), float(self.overrun == "extend")])

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the profile, with the heap behind the scalars."""
        state = np.zeros(HEAP + 2 + system.max_requests, np.int64)
        state[BLOCKED_ID] = UNKNOWN
        return PolicyMemory(state, np.zeros(1), np.zeros(2 * (system.max_predicted_len + 2), np.int32))

    def blocking(self, view: SystemView) -> int | None:
        """Return the request that (5) has kept out last."""
        return blocked_request(self)


@register_policy
class MCSF(LookAhead):
    """Memory Constrained Shortest First: shortest predicted output first, as far as memory will allow."""

    info = PolicyInfo(
        name="mc_sf",
        summary="shortest predicted output first, admitted by a look-ahead over future memory",
        paper=PAPER,
        algorithm="Algorithm 1",
        needs=frozenset({"predicted_length"}),
        evicts=True,
    )
    kernel = mc_sf_kernel


@register_policy
class MCBenchmark(LookAhead):
    """First come, first served, with MC-SF's look-ahead."""

    info = PolicyInfo(
        name="mc_benchmark",
        summary="first come, first served, admitted by a look-ahead over future memory",
        paper=PAPER,
        algorithm="Algorithm 2",
        needs=frozenset({"predicted_length"}),
        evicts=True,
    )
    kernel = mc_benchmark_kernel


@register_policy
class MCLongest(LookAhead):
    """MC-Benchmark under intervals of lengths: every output is treated as the longest possible one.

    A request whose prompt and longest output exceed the limit is never admitted, as under MC-Benchmark with
    such a prediction; the run then ends with an error that says so.
    """

    info = PolicyInfo(
        name="mc_longest",
        summary="first come, first served, by a look-ahead under the longest possible outputs",
        paper="flow control for LLM inference (stability by controlled activation)",
        algorithm="Section 4.1.1, MC benchmark with the longest output",
        needs=frozenset({"length_interval"}),
        evicts=True,
    )
    kernel = mc_longest_kernel
