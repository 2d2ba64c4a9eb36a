"""Flow control: a bounded number of activations per iteration; and A_min, to which its authors compare it.

Source: flow control for LLM inference (stability by controlled activation), Algorithm 1 (known classes),
Algorithm 2 (unknown lengths) and Section 4.1.1 (A_min). A slot of the paper is one iteration of the worker.

Readings of flow control: requests are picked without looking at memory. If the coming round does not fit,
requests leave last in, first out until it does: the last picked first, then the latest activated. One that
was picked at this very boundary was never active: it keeps its place in the queue and is not counted as
evicted. In Algorithm 1 a class yields while the queue still holds a request of that class. The paper evicts in
Algorithm 2 only; where condition (2) does not hold, Algorithm 1 overflows too and the same rule applies.

Readings of A_min: admission follows Jaillet et al., "Online Scheduling for LLM Inference with KV Cache
Constraints", Algorithm 1 and inequality (5), under the current predictions. An ongoing request that has
reached its prediction needs at least one more token. Nobody is admitted in a round that evicts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines._common import evict_last, need_of_ongoing, slot_need
from kvgym.baselines.memory_constrained import BLOCKED_ID, HEAP, blocked_request, try_admit
from kvgym.errors import ConfigError
from kvgym.policy import (
    CompiledPolicy,
    PolicyInfo,
    PolicyMemory,
    SystemInfo,
    numbers_of,
    policy_kernel,
    register_policy,
    require,
)
from kvgym.simulator.compiled import jit
from kvgym.simulator.heap import heap_pop, heap_push, key_request, request_key
from kvgym.simulator.lookahead import first_use, profile_add, profile_forget, profile_offset, rounds_for
from kvgym.simulator.random import next_uniform, seed_words
from kvgym.simulator.tables import REQUEUE_ARRIVAL, REQUEUE_BACK, ROLE_PREFILL, UNKNOWN
from kvgym.simulator.view import SystemView

PAPER = "flow control for LLM inference (stability by controlled activation)"

_LONGEST_HORIZON = 1 << 20  # tokens; predictions that grow beyond the longest one are looked at this far


@jit
def draw_budget(u: float, most: int, share: float) -> int:
    """Return a whole number from a uniform one in (0, 1), of mean ``(most + share) / 2``.

    Uniform on 0 … ``most`` with probability ``1 - share``, on 0 … ``most + 1`` with probability ``share``.
    """
    rest = 1.0 - share
    if u < rest:
        return int(u / rest * (most + 1))
    return min(int((u - rest) / share * (most + 2)), most + 1)


@policy_kernel
def flow_control_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 2: pick up to B_t in queue order; what does not fit leaves, last in first out.

    Undoing picks from the last one on leaves the longest sequence of first picks that fits.
    """
    budget = int(params[0])
    if params[1] == 1.0:
        budget = draw_budget(next_uniform(state, 0), int(params[2]), params[3])
    need = need_of_ongoing(problem, w, active)
    if need > problem.kv_capacity:
        evict_last(problem, w, active, d, evict, need)
        return
    i = w.queue_head
    while i != UNKNOWN and d.num_admit < min(budget, admit.shape[0] - w.num_active):
        need += first_use(problem, requests[i])
        if need > problem.kv_capacity:
            break
        admit[d.num_admit] = i
        d.num_admit += 1
        i = requests[i].queue_next


# Layout of the state of flow_control_classes for n requests: the number of classes seen so far, then four
# rows of n: their ids in ascending order, the head and the tail of the queue of each, and by request the next
# of its class. The queues together are the waiting queue, in the same order.


@jit
def class_row(state: Any, n: int, class_id: int) -> int:
    """Return the place of a class among those seen so far, making room for a new one."""
    low, high = 0, state[0]
    while low < high:
        middle = (low + high) // 2
        if state[1 + middle] < class_id:
            low = middle + 1
        else:
            high = middle
    if low == state[0] or state[1 + low] != class_id:
        for row in range(state[0], low, -1):
            for part in range(3):
                state[1 + part * n + row] = state[part * n + row]
        state[1 + low], state[1 + n + low], state[1 + 2 * n + low] = class_id, UNKNOWN, UNKNOWN
        state[0] += 1
    return low


@jit
def join_class(problem: Any, requests: Any, state: Any, n: int, i: int) -> None:
    """Put request ``i`` into the queue of its class, where the waiting queue has it."""
    row = class_row(state, n, requests[i].class_id)
    head, tail, following = 1 + n + row, 1 + 2 * n + row, 1 + 3 * n
    before, after = state[head], UNKNOWN  # neighbours: UNKNOWN = none
    if requests[i].num_evictions == 0 or problem.requeue == REQUEUE_BACK:
        before, after = UNKNOWN, state[tail]
    elif problem.requeue == REQUEUE_ARRIVAL:
        while before != UNKNOWN and before < i:
            before, after = state[following + before], before
    state[following + i] = before
    if after == UNKNOWN:
        state[head] = i
    else:
        state[following + after] = i
    if before == UNKNOWN:
        state[tail] = i


@jit
def leave_class(state: Any, n: int, row: int) -> None:
    """Take the first request out of the queue of a class."""
    first = state[1 + n + row]
    state[1 + n + row] = state[1 + 3 * n + first]
    if state[1 + n + row] == UNKNOWN:
        state[1 + 2 * n + row] = UNKNOWN


@policy_kernel
def flow_control_classes_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """Algorithm 1: pick up to b_k of each class; what does not fit leaves, last in first out."""
    n, last = int(params[0]), params.shape[0] - 2
    for j in range(w.num_queued):
        join_class(problem, requests, state, n, queued[j])
    need = need_of_ongoing(problem, w, active)
    if need > problem.kv_capacity:
        evict_last(problem, w, active, d, evict, need)
        return
    room = admit.shape[0] - w.num_active
    for row in range(state[0]):
        left = int(params[1 + min(state[1 + row], last)])
        while left > 0 and state[1 + n + row] != UNKNOWN:
            i = state[1 + n + row]
            need += first_use(problem, requests[i])
            if need > problem.kv_capacity or d.num_admit >= room:
                return
            leave_class(state, n, row)
            admit[d.num_admit] = i
            d.num_admit += 1
            left -= 1


@jit
def evict_shortest(
    problem: Any, w: Any, active: Any, d: Any, evict: Any, state: Any, profile: Any, offset: int, n: int,
    need: int,
) -> None:  # fmt: skip
    """Evict in ascending order of max(prediction, generated), newest first, until the coming round fits.

    Each that goes is predicted to generate at least one token more than it did. ``need`` is what the whole
    active set needs; for the state see :func:`a_min_kernel`.
    """
    predictions, ranks, last = HEAP + 1 + n, HEAP + 1 + 2 * n, w.num_active - 1
    state[ranks] = 0
    for k in range(w.num_active):
        expected = max(state[predictions + active[k].request_id], active[k].num_output_tokens)
        heap_push(state, ranks, request_key(expected, last - k))
    while need > problem.kv_capacity:
        k = last - key_request(heap_pop(state, ranks))
        slot = active[k]
        at = predictions + slot.request_id
        use = slot_need(problem, slot)
        if state[at] > slot.num_output_tokens:
            profile_forget(profile, offset, state[at], slot.num_output_tokens, use)
        state[at] = max(state[at], slot.num_output_tokens + 1)
        need -= use
        evict[d.num_evict] = k
        d.num_evict += 1
    state[BLOCKED_ID] = UNKNOWN


@policy_kernel
def a_min_kernel(
    problem: Any, w: Any, requests: Any, active: Any, queued: Any, finished: Any, d: Any, admit: Any,
    admit_tokens: Any, evict: Any, params: Any, state: Any, reals: Any, profile: Any,
) -> None:  # fmt: skip
    """A_min: admit as MC-SF under the least output still possible; on overflow the shortest go.

    The state is that of MC-SF, then n current predictions by request, then a heap for the order of eviction.
    The profile holds exactly what the coming round needs: only the ongoing can overflow it.
    """
    n = int(params[0])
    predictions = HEAP + 1 + n
    for j in range(w.num_queued):
        i = queued[j]
        if requests[i].num_evictions == 0:
            state[predictions + i] = requests[i].predicted_low
        heap_push(state, HEAP, request_key(state[predictions + i], i))
    offset = profile_offset(profile, state, w.iteration)
    for j in range(w.num_finished if w.role != ROLE_PREFILL else 0):
        i = finished[j]
        made = requests[i].num_output_tokens
        if state[predictions + i] > made:
            profile_forget(profile, offset, state[predictions + i], made, requests[i].prompt_len + made + 1)
            state[BLOCKED_ID] = UNKNOWN
    need = need_of_ongoing(problem, w, active)
    if need > problem.kv_capacity:
        evict_shortest(problem, w, active, d, evict, state, profile, offset, n, need)
        return
    overdue = 0
    for k in range(w.num_active):
        slot = active[k]
        if slot.num_output_tokens >= state[predictions + slot.request_id]:
            overdue += slot_need(problem, slot)
    profile_add(profile, offset, overdue, 1, 1)
    while state[HEAP] > 0:
        i = key_request(state[HEAP + 1])
        rounds = rounds_for(problem, requests[i], state[predictions + i])
        if not try_admit(
            problem, w, requests, d, admit, problem.kv_capacity, state, profile, offset, i, rounds
        ):
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
    )
    kernel = flow_control_kernel

    def __init__(self, *, budget: float = 4, random: bool = False) -> None:
        """Set the activation budget.

        Args:
            budget: mean number of activations per iteration, > 0; a whole number unless ``random``. The paper
                bounds it from below by the arrival rate and from above by (4), and finds it by a grid search
                in practice; 4 is its budget per class in Section 4.1.
            random: False: B_t = ``budget``. True: B_t is drawn anew for every iteration, also where nobody
                waits, uniformly from 0 … 2 · ``budget``. If 2 · ``budget`` = n + f is not whole, n is
                replaced by n + 1 with probability f, which keeps the mean. The paper asks for independent,
                bounded whole numbers of mean ``budget`` and leaves their distribution open.

        Raises:
            ConfigError: a budget that is not positive and finite, or not whole without ``random``.
        """
        if not isinstance(random, bool):
            raise ConfigError(f"random = {random!r}; expected True or False")
        expected = "a number > 0" if random else "a whole number ≥ 1 (fractions need random=True)"
        number = isinstance(budget, int | float | np.integer | np.floating) and 0 < budget < 2**31
        require("budget", budget, number and (random or float(budget).is_integer()), expected)
        self.budget, self.random = budget, random

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return B, whether it is random, and the whole and the fractional part of 2B."""
        most = math.floor(2 * self.budget)
        return np.array([self.budget, self.random, most, 2 * self.budget - most], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the state of the policy's coins."""
        return PolicyMemory(seed_words(system.seed), np.zeros(1), np.zeros(2, np.int32))


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
    )
    kernel = flow_control_classes_kernel

    def __init__(self, *, budgets: Any = "4/4/4") -> None:
        """Set the activation budgets.

        Args:
            budgets: b_k of classes 0, 1, …, whole numbers ≥ 1, in one of the forms ``"4/4/4"``, ``[4, 4, 4]``
                or ``4``. The last one also holds for all classes beyond. Default: Section 4.1.

        Raises:
            ConfigError: not such a list.
        """
        self.budgets = numbers_of("budgets", budgets)
        require("budgets", budgets, 1 <= min(self.budgets) <= max(self.budgets) < 2**31, "whole numbers ≥ 1")

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the most requests of a run, then the budgets."""
        return np.array([system.max_requests, *self.budgets], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return empty queues."""
        return PolicyMemory(
            np.zeros(1 + 4 * system.max_requests, np.int64), np.zeros(1), np.zeros(2, np.int32)
        )


@register_policy
class AMin(CompiledPolicy):
    """A_min: every output is as short as is still possible, until it turns out to be longer.

    Predictions start at the lower ends of the given intervals. Deviation: the look-ahead ends after 2^20
    iterations or the longest upper end of an interval, whichever is later, if the memory is larger than that.
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

    def __init__(self) -> None:
        """Take no hyperparameters."""

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the most requests of a run."""
        return np.array([system.max_requests], dtype=np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return the profile, with two heaps and the predictions behind the scalars."""
        state = np.zeros(HEAP + 2 + 3 * system.max_requests, np.int64)
        state[BLOCKED_ID] = UNKNOWN
        # A request whose predicted memory exceeds the capacity is never admitted, so that bounds the look-ahead.
        horizon = min(system.kv_capacity, max(system.max_predicted_len, _LONGEST_HORIZON))
        return PolicyMemory(state, np.zeros(1), np.zeros(2 * (horizon + 2), np.int32))

    def blocking(self, view: SystemView) -> int | None:
        """Return the request that the look-ahead has kept out last."""
        return blocked_request(self)
