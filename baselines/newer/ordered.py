"""Scheduling in the order of a score: one kernel for all policies that differ only in the score and in preemption.

The waiting request with the least score starts first, while the next iteration fits. A policy with preemption evicts
running requests with a larger score for it, the largest first, if that makes room; on overflow the largest scores
leave. A guard against starvation puts a request before all others once it has waited for a number of iterations,
until it has run for another number; it is that of Fu et al., Efficient LLM Scheduling by Learning to Rank (their
repository, hao-ai-lab/vllm-ltr).

Readings: scores of waiting requests are those of the moment at which they joined the queue; none of the policies here
changes them later. Of equal scores the older request goes first. The guard follows the order of the queue: it stops
at the first request that has not waited long enough. An empty worker admits its first request regardless of the
margin.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvgym.kernels import (
    UNKNOWN,
    WAITING,
    PolicyDecision,
    PolicyMemory,
    PolicyView,
    admit,
    evict,
    first_waiting,
    forget_ranked,
    has_place,
    jit,
    jit_inline,
    kept_by_others,
    need_of,
    need_of_active,
    next_waiting,
    policy_kernel,
    policy_memory,
    ranked_forget,
    ranked_pop,
    ranked_push,
    room_to_admit,
    taken_by,
)
from kvgym.policies.policy import (
    CompiledPolicy,
    SystemInfo,
    fraction_of,
    require,
    require_count,
    require_fraction,
)

BY_LENGTH, BY_REST, BY_RENEWED_REST, BY_BOOST, BY_TAIL, BY_GITTINS, BY_LEVEL = range(7)
"""Scores, see :func:`score_of`."""

# Layout of the parameters: the score, whether running requests are preempted, iterations until the guard helps (0 =
# never) and for which it does, memory that admission may use, number of requests, and two numbers of the score.
_SCORE, _PREEMPTS, _GUARD, _PERIOD, _LIMIT, _REQUESTS, ONE, TWO = range(8)

# Layout of the state for n requests: the last request that the guard has helped, then the heap of waiting requests and
# the heap of those that the guard helps, n + 1 each, the iteration at which each request joined the queue, and whether
# the guard helps it. The real numbers are the scores of waiting requests, then those of running ones by slot.
_HELPED, _HEAP = 0, 1


@jit
def gittins_cost(tenths: Any, prompt: int, made: int) -> float:
    """Return the Gittins index of a request as a cost: the least expected cost per chance to finish.

    The cost of an output of x tokens is the KV memory it holds over its iterations, x (s + x / 2) for a prompt of s
    tokens. The lengths of the distribution that it has passed are excluded; a request that has passed all of them is
    expected to need one token more.
    """
    spent, passed, least = made * (prompt + 0.5 * made), 0, math.inf
    for k in range(10):
        if tenths[k] <= made:
            passed += 1
    total = 0.0
    for k in range(passed, 10):
        x = float(tenths[k])
        cost = x * (prompt + 0.5 * x) - spent
        total += cost
        done = k - passed + 1
        least = min(least, (total + (9 - k) * cost) / done)
    if passed == 10:
        least = (made + 1) * (prompt + 0.5 * (made + 1)) - spent
    return least


@jit
def level_of(prompt_time: float, token_time: float, made: int) -> int:
    """Return the level of a request in a queue of feedback, from 0.

    The quantum of level k is 2^k times that of level 0, the time of one token. A request joins the first level with a
    quantum of at least its prefill, and falls by a level when it has used the quantum there.
    """
    level, quantum = 0, token_time
    while quantum < prompt_time:
        level, quantum = level + 1, 2 * quantum
    left = prompt_time + made * token_time - quantum
    while left > 0.0:
        level, quantum = level + 1, 2 * quantum
        left -= quantum
    return level


@jit_inline
def score_of(view: PolicyView, memory: PolicyMemory, i: int, made: int) -> float:
    """Return the score of a request that has generated ``made`` tokens; the least goes first."""
    kind, one, r = int(memory.params[_SCORE]), memory.params[ONE], view.requests[i]
    score = float(r.predicted_len)
    if kind == BY_REST:
        score = max(float(r.predicted_len - made), 1.0)
    elif kind == BY_RENEWED_REST:
        score = max(float(view.extras[i].renewed_len - made), 1.0)
    elif kind == BY_BOOST:
        size = r.predicted_len * memory.params[TWO]
        score = r.arrival_time + math.log(-math.expm1(-one * size)) / one
    elif kind == BY_TAIL:
        weight, mean = min(0.5, max(0.1, 0.1 * view.worker.num_waiting / one)), 0.0
        for k in range(10):
            mean += view.extras[i].tenths[k] / 10
        score = mean + weight * view.extras[i].tenths[9]
    elif kind == BY_GITTINS:
        score = gittins_cost(view.extras[i].tenths, r.prompt_len, max(made, np.int64(r.num_delivered_tokens)))
    elif kind == BY_LEVEL:
        most = max(made, np.int64(r.num_delivered_tokens))
        score = float(level_of(r.prompt_len * memory.params[TWO], one, most))
    return score


@jit_inline
def running_score(view: PolicyView, memory: PolicyMemory, k: int) -> float:
    """Return the score of the request in slot ``k``; -inf if it must not be preempted."""
    params, slot = memory.params, view.active[k]
    i, made = slot.request_id, np.int64(slot.num_output_tokens)
    helped = memory.state[3 + 3 * int(params[_REQUESTS]) + i] == 1
    if helped and view.worker.iteration - slot.admit_iteration < params[_PERIOD]:
        return -math.inf
    kind = int(params[_SCORE])
    if kind == BY_RENEWED_REST and made >= math.floor(params[ONE] * slot.predicted_len):
        return -math.inf
    if kind == BY_REST and view.requests[i].num_evictions >= params[ONE]:
        return -math.inf
    if kind in (BY_LENGTH, BY_BOOST, BY_TAIL):
        return float(memory.reals[i])  # it does not change
    return score_of(view, memory, i, made)


@jit_inline
def join_heaps(view: PolicyView, memory: PolicyMemory) -> None:
    """Forget the requests that a router has moved away, and add those that joined the queue."""
    state, ranks, n, w = memory.state, memory.reals, int(memory.params[_REQUESTS]), view.worker
    forget_ranked(view, state, _HEAP, ranks, 0)
    forget_ranked(view, state, _HEAP + 1 + n, ranks, 0)
    for j in range(w.num_queued):
        i = view.queued[j]
        ranks[i] = score_of(view, memory, i, np.int64(view.requests[i].num_output_tokens))
        state[3 + 2 * n + i], state[3 + 3 * n + i] = w.iteration, 0
        ranked_push(state, _HEAP, ranks, 0, i)


@jit_inline
def help_starving(view: PolicyView, memory: PolicyMemory) -> None:
    """Put the requests before all others that have waited long enough."""
    state, n, guard = memory.state, int(memory.params[_REQUESTS]), memory.params[_GUARD]
    if guard == 0:
        return
    last = state[_HELPED]
    i = first_waiting(view)
    if last != UNKNOWN and view.requests[last].status == WAITING and state[3 + 3 * n + last] == 1:
        i = next_waiting(view, last)
    while i != UNKNOWN and (
        state[3 + 3 * n + i] == 1 or view.worker.iteration - state[3 + 2 * n + i] >= guard
    ):
        if state[3 + 3 * n + i] == 0:
            state[3 + 3 * n + i] = 1
            ranked_forget(state, _HEAP, memory.reals, 0, i)
            ranked_push(state, _HEAP + 1 + n, memory.reals, 0, i)
        state[_HELPED] = i
        i = next_waiting(view, i)


@jit_inline
def first_place(view: PolicyView, memory: PolicyMemory) -> int:
    """Return the place of the heap with the request to start next; empty heaps mean that none waits."""
    state, n = memory.state, int(memory.params[_REQUESTS])
    return _HEAP + 1 + n if state[_HEAP + 1 + n] > 0 else _HEAP


@jit_inline
def worst_slot(view: PolicyView, memory: PolicyMemory, above: float) -> int:
    """Return the slot with the largest score above a bound, the latest of equal ones, UNKNOWN if there is none."""
    scores, base, worst, found = memory.reals, int(memory.params[_REQUESTS]), above, UNKNOWN
    for k in range(view.worker.num_active):
        if scores[base + k] >= worst and scores[base + k] > above:
            worst, found = scores[base + k], k
    return found


@jit_inline
def score_running(view: PolicyView, memory: PolicyMemory, least: float) -> None:
    """Compute the scores of the running requests, at least ``least``."""
    base = int(memory.params[_REQUESTS])
    for k in range(view.worker.num_active):
        memory.reals[base + k] = max(running_score(view, memory, k), least)


@jit_inline
def leave(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, k: int) -> int:
    """Evict the request in slot ``k``; return the memory that this frees in the next iteration."""
    memory.reals[int(memory.params[_REQUESTS]) + k] = -math.inf
    evict(decision, k)
    return need_of(view, view.active[k]) - kept_by_others(view, view.active[k])


@jit_inline
def preempt(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, score: float, need: int, limit: int
) -> int:
    """Evict requests with a larger score until ``need`` is within the limit, if that is possible; return the need."""
    base, most = int(memory.params[_REQUESTS]), 0
    for k in range(view.worker.num_active):
        if memory.reals[base + k] > score:
            most += need_of(view, view.active[k])
    if need - most > limit:
        return need
    k = worst_slot(view, memory, score)
    while need > limit and k != UNKNOWN:
        need -= leave(view, decision, memory, k)
        k = worst_slot(view, memory, score)
    return need


@policy_kernel
def ordered_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """On overflow evict the largest scores; else admit in ascending order, preempting for it where that is allowed."""
    state, params = memory.state, memory.params
    join_heaps(view, memory)
    help_starving(view, memory)
    need, limit = need_of_active(view), int(params[_LIMIT])
    if need > view.problem.kv_capacity:
        score_running(view, memory, -1e300)
        while need > view.problem.kv_capacity:
            need -= leave(view, decision, memory, worst_slot(view, memory, -math.inf))
        return
    scored = False
    place = first_place(view, memory)
    while state[place] > 0 and has_place(view, decision):
        i = state[place + 1]
        use, room = taken_by(view, i), room_to_admit(view, decision, limit)
        if need + use > room and params[_PREEMPTS] == 1.0:
            if not scored:
                score_running(view, memory, -math.inf)
                scored = True
            own = memory.reals[i] if place == _HEAP else -1e300
            need = preempt(view, decision, memory, own, need + use, room) - use
        if need + use > room:
            break
        need += use
        ranked_pop(state, place, memory.reals, 0)
        admit(decision, i)
        place = first_place(view, memory)


class Ordered(CompiledPolicy):
    """Base class of policies in the order of a score.

    Attributes:
        score: which score, :data:`BY_LENGTH` and the following.
        preempts: whether running requests are evicted for waiting ones with a smaller score.
    """

    kernel = ordered_kernel
    score: ClassVar[int]
    preempts: ClassVar[bool] = False
    guard = 0
    period = 0

    def __init__(self, *, protection: float = 0.0) -> None:
        """Set the margin.

        Args:
            protection: fraction of the capacity that admission leaves free, in [0, 1).
        """
        require_fraction("protection", protection)
        self.protection = protection

    def numbers(self, system: SystemInfo) -> tuple[float, float]:
        """Return the two numbers of the score."""
        return 0.0, 0.0

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the parameters, in the order of the kernel."""
        limit = fraction_of(system.kv_capacity, self.protection)
        shared = (self.score, self.preempts, self.guard, self.period, limit, max(1, system.max_requests))
        return np.array([*shared, *self.numbers(system)], np.float64)

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state without waiting requests."""
        n = max(1, system.max_requests)
        state = np.zeros(3 + 4 * n, np.int64)
        state[_HELPED] = UNKNOWN
        return policy_memory(self.params(system), state=state, reals=np.zeros(2 * n))


class Guarded(Ordered):
    """Base class of those with a guard against starvation."""

    def __init__(self, *, guard: int = 200, period: int = 10, protection: float = 0.0) -> None:
        """Set the guard and the margin.

        Args:
            guard: iterations that a request waits before it goes first; 0 = no guard.
            period: iterations that it then runs without being preempted; if it is shorter than requests run, those that
                the guard helps can evict each other for ever.
            protection: fraction of the capacity that admission leaves free, in [0, 1).
        """
        super().__init__(protection=protection)
        require_count("guard", guard, 0)
        require_count("period", period, 0)
        self.guard, self.period = guard, period


def positive(name: str, value: Any) -> float:
    """Return a hyperparameter that is a finite number > 0.

    Raises:
        ConfigError: it is not.
    """
    require(name, value, isinstance(value, int | float) and 0 < value < math.inf, "a number > 0")
    return float(value)
