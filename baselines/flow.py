"""Flow control, which bounds activations per iteration, and A_min, the policy that its authors compare it with.

Source: flow control for LLM inference (stability by controlled activation), Algorithm 1 (known classes),
Algorithm 2 (unknown lengths) and Section 4.1.1 (A_min). A slot of the paper is one iteration of the worker.

Readings of flow control: requests are picked without checking memory. If the next iteration does not fit, requests
leave last in, first out until it does: the last picked first, then the latest activated. A request picked at this
boundary was never active, so it keeps its place in the queue and does not count as evicted. In Algorithm 1, requests
of a class are picked while any of that class waits. The paper evicts in Algorithm 2 only; if condition (2) does not
hold, Algorithm 1 overflows too and follows the same rule.

Budgets and the conditions on them are the paper's, which count memory in tokens regardless of the system's block
size. Whether an iteration fits is checked in blocks.

Section 5 proposes a policy that switches between flow control and greedy admission by traffic, without a method. Here
(``greedy``) admission is greedy while the next iteration needs at most a share of the memory: requests are admitted in
queue order up to that share. Above it, budgets apply.

Readings of A_min: admission follows Jaillet et al., "Online Scheduling for LLM Inference with KV Cache
Constraints", Algorithm 1 and inequality (5), under the current predictions. An ongoing request that has
reached its prediction needs at least one more token. An iteration that evicts admits no request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.class_queues import (
    CLASS_IDS,
    NUM_CLASSES,
    class_row,
    forget_of_row,
    head_at,
    join_class,
    leave_class,
    next_at,
    queues_size,
)
from kvgym.baselines.memory_constrained import BLOCKED_ID, HEAP, Margin, blocked_request, margin_of, try_admit
from kvgym.kernels import (
    UNKNOWN,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    admit_while_fits,
    empty_profile,
    evict,
    evict_latest,
    first_tokens,
    forget_left,
    has_place,
    heap_first,
    heap_pop,
    heap_push,
    jit,
    kept_by_others,
    key_request,
    left_request,
    named_numbers,
    need_of,
    need_of_active,
    next_uniform,
    policy_kernel,
    policy_memory,
    profile_add,
    profile_clear,
    profile_forget,
    profile_of,
    profile_offset,
    put_back,
    request_key,
    rounds_for,
    seed_words,
    taken_by,
)
from kvgym.policies.hyperparameters import (
    flag,
    hyperparameter,
    numbers_of,
    parsed,
    require,
)
from kvgym.policies.policy import CompiledPolicy, PolicyInfo, SystemInfo, register_policy
from kvgym.simulator.view import SystemView

PAPER = "flow control for LLM inference (stability by controlled activation)"


class Activation(NamedTuple):
    """Parameters of flow control; the budgets B_1, B_2, … follow."""

    random: bool  # whether budgets are drawn
    most: int  # the whole part of twice the mean
    share: float  # the rest of it
    greedy: float  # share of the memory up to which admission is greedy


class Classes(NamedTuple):
    """Parameters of flow control with classes; the budgets of classes 0, 1, … follow."""

    requests: int  # most requests of a run


activation, classes_in = named_numbers(Activation), named_numbers(Classes)
_BUDGETS, _CLASS_BUDGETS = len(Activation._fields), len(Classes._fields)

_LONGEST_HORIZON = 1 << 20  # tokens; the look-ahead follows growing predictions at least this far


@jit
def draw_budget(u: float, most: int, share: float) -> int:
    """Convert a uniform number in (0, 1) to a random whole number with mean ``(most + share) / 2``.

    It is uniform on 0 … ``most`` with probability ``1 - share``, and on 0 … ``most + 1`` with probability
    ``share``.
    """
    rest = 1.0 - share
    if u < rest:
        return int(u / rest * (most + 1))
    return min(int((u - rest) / share * (most + 2)), most + 1)


@policy_kernel
def flow_control_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 2: pick up to B_t requests in queue order; on overflow, requests leave last in, first out.

    Undoing picks from the last one leaves the longest prefix that fits. Admission is greedy while memory allows it, see
    ``greedy``.
    """
    params, p, w = memory.params, activation(memory.params), view.worker
    if p.random:
        budget = draw_budget(next_uniform(memory.state, 0), p.most, p.share)
    else:
        budget = int(params[_BUDGETS + w.iteration % (params.shape[0] - _BUDGETS)])
    need, easy = need_of_active(view), int(p.greedy * view.problem.kv_capacity)
    if need <= easy and easy > 0:
        admit_while_fits(view, decision, need, easy)
        return
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
    else:
        admit_while_fits(view, decision, need, view.problem.kv_capacity, budget)
    put_back(decision, min(budget, w.num_waiting) - decision.record.num_admit)


@jit
def class_budget(params: Any, number: int) -> int:
    """Return the budget of a class; the last one is also the budget of all higher classes."""
    return int(params[min(_CLASS_BUDGETS + number, params.shape[0] - 1)])


@jit
def put_back_classes(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, row: int, left: int
) -> None:
    """Count the picks that an overflow undoes.

    Args:
        view: what the policy observes.
        decision: the decision to fill in.
        memory: the policy's memory.
        row: row of the class at which the iteration no longer fits.
        left: remaining budget of that class.
    """
    state, n = memory.state, classes_in(memory.params).requests
    while row < state[NUM_CLASSES]:
        i = state[head_at(n, row)]
        while left > 0 and i != UNKNOWN:
            i = state[next_at(n, i)]
            left -= 1
            put_back(decision, 1)
        row += 1
        if row < state[NUM_CLASSES]:
            left = class_budget(memory.params, state[CLASS_IDS + row])


@policy_kernel
def flow_control_classes_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """Algorithm 1: pick up to b_k of each class; on overflow, requests leave last in, first out."""
    state, n = memory.state, classes_in(memory.params).requests
    for j in range(view.worker.num_left):
        i = left_request(view, j)
        forget_of_row(state, n, class_row(state, n, view.requests[i].class_id), i)
    for j in range(view.worker.num_queued):
        join_class(view, state, n, view.queued[j])
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_latest(view, decision, need)
        put_back_classes(view, decision, memory, -1, 0)
        return
    for row in range(state[NUM_CLASSES]):
        left = class_budget(memory.params, state[CLASS_IDS + row])
        while left > 0 and state[head_at(n, row)] != UNKNOWN:
            i = state[head_at(n, row)]
            need += taken_by(view, i)
            if need > view.problem.kv_capacity or not has_place(view, decision):
                put_back_classes(view, decision, memory, row, left)
                return
            leave_class(state, n, row)
            admit(decision, i)
            left -= 1


@jit
def evict_shortest(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, offset: int, need: int
) -> None:
    """Evict in ascending order of max(prediction, generated), newest first, until the next iteration fits.

    The prediction of an evicted request becomes one token more than it has generated. ``need`` is the need of the
    whole active set; for the state see :func:`a_min_kernel`.
    """
    state, n, last = memory.state, margin_of(memory.params).requests, view.worker.num_active - 1
    predictions, ranks = HEAP + 1 + n, HEAP + 1 + 2 * n
    state[ranks] = 0
    for k in range(view.worker.num_active):
        slot = view.active[k]
        expected = max(state[predictions + slot.request_id], slot.num_output_tokens)
        heap_push(state, ranks, request_key(expected, last - k))
    while need > view.problem.kv_capacity:
        k = last - key_request(heap_pop(state, ranks))
        slot = view.active[k]
        at, made = predictions + slot.request_id, slot.num_output_tokens
        if state[at] > made:
            tokens = first_tokens(view.problem, slot)
            profile_forget(memory.profile, offset, state[at], made, tokens, view.problem.block_size)
        state[at] = max(state[at], made + 1)
        need -= need_of(view, slot) - kept_by_others(view, slot)
        evict(decision, k)
    state[BLOCKED_ID] = UNKNOWN


@policy_kernel
def a_min_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """A_min: admit like MC-SF, assuming the least output still possible; on overflow, evict the shortest.

    The state is MC-SF's, then n current predictions by request, then a heap for the order of eviction. The
    profile of the next iteration is exact, so only ongoing requests can overflow it.
    """
    w, state, profile = view.worker, memory.state, memory.profile
    predictions = HEAP + 1 + margin_of(memory.params).requests
    forget_left(view, state, HEAP)
    for j in range(w.num_queued):
        i = view.queued[j]
        state[predictions + i] = max(state[predictions + i], view.requests[i].predicted_low)
        heap_push(state, HEAP, request_key(state[predictions + i], i))
    offset = profile_offset(profile, state, w.iteration)
    if w.num_left > 0:
        profile_clear(profile)
        state[BLOCKED_ID] = UNKNOWN
        for k in range(w.num_active):
            slot = view.active[k]
            profile_of(view.problem, profile, offset, slot, state[predictions + slot.request_id])
    for j in range(w.num_finished if view.problem.hands_over == 0 and w.num_left == 0 else 0):
        i = view.finished[j]
        predicted_len, made = state[predictions + i], view.requests[i].num_output_tokens
        if predicted_len > made:
            tokens = view.requests[i].prompt_len + made + 1
            profile_forget(profile, offset, predicted_len, made, tokens, view.problem.block_size)
            state[BLOCKED_ID] = UNKNOWN
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        evict_shortest(view, decision, memory, offset, need)
        return
    overdue = 0
    for k in range(w.num_active):
        slot = view.active[k]
        if slot.num_output_tokens >= state[predictions + slot.request_id]:
            overdue += need_of(view, slot)
    profile_add(profile, offset, overdue, 1, 1, view.problem.block_size)  # whole blocks: rounding keeps it
    while state[HEAP] > 0:
        first = heap_first(state, HEAP)
        rounds = rounds_for(view.problem, view.requests[first], state[predictions + first])
        if not try_admit(view, decision, memory, offset, first, rounds):
            break
        heap_pop(state, HEAP)


@register_policy
class FlowControl(CompiledPolicy):
    """Flow control with unknown output lengths: up to B_t activations per iteration."""

    info = PolicyInfo(
        name="flow_control",
        summary="first come, first served, a bounded number of activations per iteration; LIFO eviction",
        paper=PAPER,
        algorithm="Algorithm 2",
        evicts=True,
        loads=True,
    )
    kernel = flow_control_kernel

    budget: Any = hyperparameter(4, search=(1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128))
    """B_t of iterations t = 1, 2, …: whole numbers ≥ 0, not all 0, in one of the forms ``4``, ``"1/2/1"`` or ``[1, 2,
    1]``. A sequence repeats: one number applies to every iteration, and ``"1/2"`` has a mean of 1.5 without randomness.
    Iterations are batches of the worker, so none pass while it is idle. With ``random``, the mean of B_t: one number >
    0, not necessarily whole. The paper bounds the mean below by the arrival rate and above by (4), and finds it by grid
    search in practice; 4 is its budget per class in Section 4.1."""
    random: bool = flag(False, search=(False, True))
    """True: B_t is drawn for every iteration, even if no request waits, uniformly from 0 … 2 · ``budget``. If 2 ·
    ``budget`` = n + f is not whole, n is replaced by n + 1 with probability f, which keeps the mean. The paper requires
    independent, bounded whole numbers and leaves their distribution open."""
    greedy: float = hyperparameter(
        0.0,
        lambda value: isinstance(value, int | float) and 0 <= value <= 1,
        "a number from 0 to 1",
        kept=float,
    )
    """share of the memory up to which all requests that fit are admitted, whatever the budget; 0 = off."""

    def __post_init__(self) -> None:
        """Raise a ConfigError if a budget is out of range, a fraction without ``random``, or a sequence with it."""
        self.budgets = numbers_of("budget", self.budget, float if self.random else int)
        if self.random:
            fine, expected = len(self.budgets) == 1 and 0 < self.budgets[0] < 2**31, "one number > 0"
        else:
            fine = 0 <= min(self.budgets) <= max(self.budgets) < 2**31 and any(self.budgets)
            expected = "whole numbers ≥ 0, not all 0 (fractions need random=True)"
        require("budget", self.budget, fine, expected)

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return whether B_t is random, parts of twice the first budget, the greedy share, and all budgets."""
        twice = 2 * self.budgets[0]
        most = math.floor(twice)
        p = Activation(self.random, most, twice - most, self.greedy)
        return np.array([*p, *self.budgets], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the state of the policy's random numbers."""
        return policy_memory(self.params(system), state=seed_words(system.seed))


def class_budgets(name: str, value: Any) -> tuple[int, ...]:
    """Return the budgets of classes: ConfigError if one is not a whole number ≥ 1."""
    budgets = numbers_of(name, value)
    require(name, value, 1 <= min(budgets) <= max(budgets) < 2**31, "whole numbers ≥ 1")
    return budgets


@register_policy
class FlowControlClasses(CompiledPolicy):
    """Flow control with known classes: up to b_k activations of class k per iteration."""

    info = PolicyInfo(
        name="flow_control_classes",
        summary="a bounded number of activations of each class per iteration; LIFO eviction",
        paper=PAPER,
        algorithm="Algorithm 1",
        needs=frozenset({"class"}),
        evicts=True,
        loads=True,
    )
    kernel = flow_control_classes_kernel

    # One budget for all classes, then unequal budgets.
    budgets: Any = parsed(
        "4/4/4",
        class_budgets,
        search=(
            *(f"{b}/{b}/{b}" for b in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)),
            *("2/4/8", "8/4/2", "2/4/4", "4/4/2", "4/2/2", "8/4/4", "4/8/8"),
        ),
    )
    """b_k of classes 0, 1, …, whole numbers ≥ 1, in one of the forms ``"4/4/4"``, ``[4, 4, 4]`` or ``4``. The last one
    also applies to all higher classes. Default: Section 4.1."""

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the maximum number of requests in a run, then the budgets."""
        return np.array([system.max_requests, *self.budgets], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return empty queues."""
        return policy_memory(self.params(system), state=np.zeros(queues_size(system.max_requests)))


@register_policy
class AMin(CompiledPolicy):
    """A_min: assumes that every output is as short as still possible, until it turns out to be longer.

    Predictions start at the lower bounds of the given intervals. Deviation: the look-ahead ends after 2^20 iterations
    or the largest upper bound of an interval, whichever is later, if the memory is larger than that.
    """

    info = PolicyInfo(
        name="a_min",
        summary="shortest possible output first, by a look-ahead; predictions grow at evictions",
        paper=PAPER,
        algorithm="Section 4.1.1, A_min",
        needs=frozenset({"length_interval"}),
        evicts=True,
    )
    kernel = a_min_kernel
    parameters = Margin

    def __init__(self) -> None:
        """Create the policy; it has no hyperparameters."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the look-ahead's parameters, limited by all memory, and the maximum number of requests in a run."""
        limits = {"limit": system.kv_capacity, "requests": system.max_requests}
        return {**dict.fromkeys(Margin._fields, 0), **limits}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the profile, and a state of scalars, two heaps and the predictions."""
        state = np.zeros(HEAP + 2 + 3 * system.max_requests, np.int64)
        state[BLOCKED_ID] = UNKNOWN
        profile = empty_profile(max(system.max_predicted_len, _LONGEST_HORIZON), system.kv_capacity)
        return policy_memory(self.params(system), state=state, profile=profile)

    def blocking(self, view: SystemView) -> int | None:
        """Return the last request that the look-ahead refused."""
        return blocked_request(self)
