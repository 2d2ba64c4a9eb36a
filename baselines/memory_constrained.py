"""MC-SF, MC-Benchmark and its pessimistic variant: admission by a look-ahead over predicted KV memory.

Source: P. Jaillet, J. Jiang, K. Mellou, M. Molinaro, C. Podimata, Z. Zhou, "Online Scheduling for LLM
Inference with KV Cache Constraints": Algorithm 1 (MC-SF), Algorithm 2 (MC-Benchmark), inequality (5), and
Section 5.2.2 for the protection margin and for clearing on overflow. MC-Benchmark with the longest possible
outputs: flow control for LLM inference (stability by controlled activation), Section 4.1.1.

Readings: admission stops at the first request that does not fit. Ties go by arrival, then id. A running request that
outlives its prediction counts 0 in (5), as printed. If the next iteration needs more memory than the capacity, all
active requests are evicted ("cleared"), including those just admitted, and the iteration is lost. A round of the paper
is one iteration of the worker. With blocks of several tokens, (5) counts the blocks of each request at every moment;
between completions, memory still only grows. Deviation: for a request that would be alone, (5) uses the whole
capacity, since the margin would block a long one for ever. Others are admitted next to it while (5) holds until they
end. With ``strict`` the margin applies there too, as printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvgym.baselines.margins import MARGINS
from kvgym.kernels import (
    UNKNOWN,
    WAITING,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    blocked_for,
    clear_all,
    empty_profile,
    first_tokens,
    first_waiting,
    forget_left,
    has_place,
    heap_first,
    heap_pop,
    heap_push,
    jit_inline,
    named_numbers,
    need_of_active,
    next_waiting,
    policy_kernel,
    policy_memory,
    predicted_rounds,
    profile_add,
    profile_clear,
    profile_forget,
    profile_of,
    profile_offset,
    request_key,
    room_to_admit,
    rounds_for,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    AUTO,
    choice,
    flag,
    fraction_of,
    hyperparameter,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy
from kvgym.simulator.view import SystemView

PAPER = "Jaillet et al., Online Scheduling for LLM Inference with KV Cache Constraints"

USUAL = (("protection", 0.0), ("overrun", "ignore"))
"""The paper's rule, which holds by default if no prediction is too low."""


class Margin(NamedTuple):
    """Parameters of policies with a look-ahead."""

    limit: int  # its memory limit, tokens
    strict: bool  # whether this also holds for a request that would be alone
    extend: bool  # whether overruns extend predictions
    rate: float  # of ``ageing``: credit for waiting, tokens per second
    requests: int  # of ``a_min``: most requests of a run


margin_of = named_numbers(Margin)

# Layout of the state array: origin of the profile, iteration until which the head is known to be blocked, the head
# that this was computed for, then the heap, unless the order is the queue's.
BLOCKED_UNTIL, BLOCKED_ID, HEAP = 1, 2, 3


@jit_inline
def update_profile(view: PolicyView, memory: PolicyMemory, longest: bool) -> int:
    """Correct the profile for wrong predictions; return the offset of the present iteration.

    Requests that ended early are removed (on a prefill worker none does). After a router has moved requests away, the
    profile is rebuilt from those that remain. If overruns extend predictions, each request that has outlived its
    prediction is added again for the next iteration. With ``longest``, the prediction is the longest possible output.
    """
    w, profile, block_size = view.worker, memory.profile, view.problem.block_size
    offset = profile_offset(profile, memory.state, w.iteration)
    if w.num_left > 0:
        profile_clear(profile)
        memory.state[BLOCKED_ID] = UNKNOWN
        for k in range(w.num_active):
            slot = view.active[k]
            high = view.requests[slot.request_id].predicted_high
            profile_of(view.problem, profile, offset, slot, high if longest else slot.predicted_len)
    for j in range(w.num_finished if view.problem.hands_over == 0 and w.num_left == 0 else 0):
        r = view.requests[view.finished[j]]
        predicted_len = r.predicted_high if longest else r.predicted_len
        if predicted_len > r.num_output_tokens:
            tokens = r.prompt_len + r.num_output_tokens + 1
            profile_forget(profile, offset, predicted_len, r.num_output_tokens, tokens, block_size)
            memory.state[BLOCKED_ID] = UNKNOWN
    if margin_of(memory.params).extend:
        for k in range(w.num_active):
            slot = view.active[k]
            predicted_len = view.requests[slot.request_id].predicted_high if longest else slot.predicted_len
            if slot.num_output_tokens >= predicted_len:
                profile_add(profile, offset, slot.num_kv_tokens + 1, 1, 1, block_size)
    return offset


@jit_inline
def try_admit(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, offset: int, i: int, rounds: int
) -> bool:
    """Admit request ``i``, predicted to run ``rounds`` iterations, if inequality (5) holds with it.

    If it does not hold, store the iteration until which it cannot hold.
    """
    state, profile, iteration = memory.state, memory.profile, view.worker.iteration
    p = margin_of(memory.params)
    room = room_to_admit(view, decision, p.limit, p.strict)
    known = state[BLOCKED_ID] == i and iteration < state[BLOCKED_UNTIL] and room == p.limit
    if known or not has_place(view, decision):
        return False
    first, block_size = first_tokens(view.problem, view.requests[i]), view.problem.block_size
    wait = blocked_for(profile, offset, first, rounds, room, block_size)
    if wait > 0:
        state[BLOCKED_ID] = i
        state[BLOCKED_UNTIL] = iteration + wait
        return False
    profile_add(profile, offset, first, rounds, 1, block_size)
    admit(decision, i)
    return True


@jit_inline
def need_of_next_iteration(view: PolicyView, decision: PolicyDecision) -> int:
    """Return the memory that the next iteration needs, with the memory of requests just admitted."""
    need = need_of_active(view)
    for j in range(decision.record.num_admit):
        need += taken_by(view, decision.admit[j])
    return need


@jit_inline
def clear_on_overflow(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> bool:
    """Evict all active requests if the next iteration exceeds the capacity; return whether it does."""
    if need_of_next_iteration(view, decision) <= view.problem.kv_capacity:
        return False
    clear_all(view, decision)
    profile_clear(memory.profile)
    memory.state[BLOCKED_ID] = UNKNOWN
    return True


@jit_inline
def push_predicted(view: PolicyView, memory: PolicyMemory, i: int) -> None:
    """Add request ``i`` to the heap, by predicted output length."""
    heap_push(memory.state, HEAP, request_key(view.requests[i].predicted_len, i))


@policy_kernel
def mc_sf_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 1: admit in ascending order of predicted output length while (5) holds."""
    forget_left(view, memory.state, HEAP)
    for j in range(view.worker.num_queued):
        push_predicted(view, memory, view.queued[j])
    offset = update_profile(view, memory, False)
    while memory.state[HEAP] > 0:
        i = heap_first(memory.state, HEAP)
        r = view.requests[i]
        rounds = predicted_rounds(view.problem, r)
        if r.status == WAITING and not try_admit(view, decision, memory, offset, i, rounds):
            break
        heap_pop(memory.state, HEAP)
    admitted = decision.record.num_admit
    if clear_on_overflow(view, decision, memory):
        for j in range(admitted):
            push_predicted(view, memory, decision.admit[j])


@jit_inline
def admit_in_order(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, longest: bool) -> None:
    """Admit in queue order while (5) holds, with predicted or (``longest``) longest possible outputs."""
    offset = update_profile(view, memory, longest)
    i = first_waiting(view)
    while i != UNKNOWN:
        r = view.requests[i]
        rounds = rounds_for(view.problem, r, r.predicted_high if longest else r.predicted_len)
        if not try_admit(view, decision, memory, offset, i, rounds):
            break
        i = next_waiting(view, i)
    clear_on_overflow(view, decision, memory)


@policy_kernel
def mc_benchmark_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 2: admit in order of arrival while (5) holds."""
    admit_in_order(view, decision, memory, False)


@policy_kernel
def mc_longest_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 2 with the longest possible output as prediction."""
    admit_in_order(view, decision, memory, True)


def blocked_request(policy: CompiledPolicy) -> int | None:
    """Return the request that :func:`try_admit` last found blocked, None if there is none."""
    i = int(policy.arguments().state[BLOCKED_ID])
    return None if i == UNKNOWN else i


def kept_free(search: tuple[float, ...]) -> Any:
    """Declare the fraction of the capacity that a look-ahead keeps free."""

    def valid(value: Any) -> bool:
        return value == AUTO or (isinstance(value, int | float) and 0 <= value < 1)

    return hyperparameter(AUTO, valid, "a fraction in [0, 1), or auto", search=search)


def counted_overrun() -> Any:
    """Declare the memory that a look-ahead counts for a running request that has outlived its prediction."""
    names = ("ignore", "extend", AUTO)
    return choice(AUTO, names, expected="ignore, extend or auto", search=("ignore", "extend"))


class LookAhead(CompiledPolicy):
    """Base class of policies with a look-ahead: margin, overruns, and their memory."""

    auto_margin: ClassVar[float] = 0.15
    """``protection`` by default if predictions can be too low; docs/policies.md has measurements."""

    lengths: ClassVar[str] = "predicted_length"
    """The predictions that the look-ahead counts with, as in ``info.needs``."""

    parameters = Margin
    rate, requests = 0.0, 0

    protection: float | str = kept_free(search=MARGINS)
    """fraction α of the capacity that the look-ahead keeps free, in [0, 1). The paper uses 0 with exact predictions and
    0.1 with noisy ones. ``"auto"``: 0 if no prediction is below the truth, else 0.15."""
    overrun: str = counted_overrun()
    """memory counted for a running request that has outlived its prediction: ``"ignore"``, 0, as (5) is printed;
    ``"extend"``, the memory that it needs in the next iteration. With predictions below the truth, the printed rule can
    admit, overflow and evict the same set for ever. ``"auto"``: ``"ignore"`` if no prediction is below the truth, else
    ``"extend"``."""
    strict: bool = flag(False)
    """True: a request that needs some of the margin is never admitted, as printed. False: an empty worker admits it."""

    def resolve(self, system: SystemInfo) -> dict[str, Any]:
        """Return the paper's rule, or one that does not collapse if predictions can be too low."""
        found: dict[str, Any] = {}
        too_low = self.lengths in system.underestimates
        if self.protection == AUTO:
            found["protection"] = self.auto_margin if too_low else 0.0
        if self.overrun == AUTO:
            found["overrun"] = "extend" if too_low else "ignore"
        return found

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the memory limit of the look-ahead in tokens, and whether overruns extend predictions."""
        chosen = {"protection": self.protection, "overrun": self.overrun} | self.resolve(system)
        limit = fraction_of(system.kv_capacity, chosen["protection"])
        return {"limit": limit, "extend": chosen["overrun"] == "extend"}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the profile, and a state of scalars and heap."""
        state = np.zeros(HEAP + 2 + system.max_requests, np.int64)
        state[BLOCKED_ID] = UNKNOWN
        profile = empty_profile(system.max_predicted_len, system.kv_capacity)
        return policy_memory(self.params(system), state=state, profile=profile)

    def blocking(self, view: SystemView) -> int | None:
        """Return the last request that (5) refused."""
        return blocked_request(self)


@register_policy
class MCSF(LookAhead):
    """Memory Constrained Shortest First: shortest predicted output first, while future memory suffices."""

    info = PolicyInfo(
        name="mc_sf",
        summary="shortest predicted output first, admitted by a look-ahead over future memory",
        paper=PAPER,
        algorithm="Algorithm 1",
        needs=frozenset({"predicted_length"}),
        evicts=True,
        auto=USUAL,
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
        auto=USUAL,
    )
    kernel = mc_benchmark_kernel


@register_policy
class MCLongest(LookAhead):
    """MC-Benchmark for intervals of lengths: it treats every output as the longest possible one.

    A request is never admitted if its prompt and longest output exceed the memory, as under MC-Benchmark with such a
    prediction. The run then ends with an error that says so.
    """

    info = PolicyInfo(
        name="mc_longest",
        summary="first come, first served, by a look-ahead under the longest possible outputs",
        paper="flow control for LLM inference (stability by controlled activation)",
        algorithm="Section 4.1.1, MC benchmark with the longest output",
        needs=frozenset({"length_interval"}),
        evicts=True,
        auto=USUAL,
    )
    kernel = mc_longest_kernel
    lengths = "length_interval"
