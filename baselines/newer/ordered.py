"""Scheduling in the order of a score: one kernel for all policies that differ only in the score and in preemption.

The waiting request with the least score starts first, while the next iteration fits. A policy with preemption evicts
running requests with a larger score for it, the largest first, if that makes room; on overflow the largest scores
leave. A guard against starvation puts a request before all others once it has waited for a number of iterations,
until it has run for another number; it is by Fu et al., Efficient LLM Scheduling by Learning to Rank (their
repository, hao-ai-lab/vllm-ltr).

Readings: scores of waiting requests are those of the moment at which they joined the queue; none of the policies here
changes them later. Of equal scores the older request goes first. The guard follows the order of the queue: it stops
at the first request that has not waited long enough. An empty worker admits its first request regardless of the
margin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvgym.baselines.margins import PROTECTION, Protected
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
    named_numbers,
    need_of_active,
    need_of_slot,
    next_waiting,
    policy_kernel,
    policy_memory,
    ranked_forget,
    ranked_pop,
    ranked_push,
    room_to_admit,
    taken_by,
)
from kvgym.policies.policy import SystemInfo

BY_LENGTH, BY_REST, BY_RENEWED_REST, BY_BOOST, BY_TAIL, BY_GITTINS, BY_LEVEL = range(7)
"""Scores, see :func:`score_of`."""


class Order(NamedTuple):
    """Parameters."""

    score: int  # which score, :data:`BY_LENGTH` and the following
    preempts: bool  # whether running requests are preempted
    guard: int  # iterations until the guard helps; 0 = never
    period: int  # iterations for which it does
    limit: int  # memory that admission may use, tokens
    requests: int  # most requests of a run
    one: float  # a number of the score
    two: float  # another one


order = named_numbers(Order)

# Layout of the state for n requests: the last request that the guard has helped, then the heap of waiting requests and
# the heap of those that the guard helps, n + 1 each, the iteration at which each request joined the queue, whether the
# guard helps it, and the heap of running requests by place, n + 1. Places count slots from the last, so that the latest
# of equal scores leaves first. The real numbers are the scores of waiting requests, then those of running ones by
# place, with the sign changed, and for a queue of feedback the place of each request in its level.
_HELPED, _HEAP = 0, 1

LEVEL = 2.0**40
"""The score of a request in a queue of feedback is this times its level, plus the iteration in which it came there."""


@jit_inline
def guarded_at(n: int) -> int:
    """Return the index of the heap of those that the guard helps."""
    return _HEAP + 1 + n


@jit_inline
def joined_at(n: int, i: int) -> int:
    """Return the index of the iteration at which request ``i`` joined the queue."""
    return guarded_at(n) + 1 + n + i


@jit_inline
def helped_at(n: int, i: int) -> int:
    """Return the index of whether the guard helps request ``i``."""
    return joined_at(n, n) + i


@jit_inline
def running_at(n: int) -> int:
    """Return the index of the heap of running requests, by place, the largest score first."""
    return helped_at(n, n)


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
def level_of(prompt_time: float, token_time: float, made: int) -> tuple[int, int]:
    """Return the level of a request in a queue of feedback, from 0, and how many tokens ago it fell there.

    The quantum of level k is 2^k times the quantum of level 0, the time of one token. A request joins the first level
    with a quantum of at least its prefill, and falls by a level when it has used the quantum there.
    """
    level, quantum = 0, token_time
    while quantum < prompt_time:
        level, quantum = level + 1, 2 * quantum
    left = prompt_time + made * token_time - quantum
    while left > 0.0:
        level, quantum = level + 1, 2 * quantum
        left -= quantum
    return level, max(math.ceil((left + quantum) / token_time - 1e-9) - 1, 0)


@jit_inline
def score_of(view: PolicyView, memory: PolicyMemory, i: int, made: int) -> float:
    """Return the score of a request that has generated ``made`` tokens; the least goes first."""
    p, r = order(memory.params), view.requests[i]
    kind, one = p.score, p.one
    score = float(r.predicted_len)
    if kind == BY_REST:
        score = max(float(r.predicted_len - made), 1.0)
    elif kind == BY_RENEWED_REST:
        score = max(float(view.extras[i].renewed_len - made), 1.0)
    elif kind == BY_BOOST:
        size = r.predicted_len * p.two
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
        level, tokens = level_of(r.prompt_len * p.two, one, most)
        score = memory.reals[2 * p.requests + i]  # it keeps its place until it falls
        if r.num_admissions == 0 or math.floor(score / LEVEL) != level:
            score = LEVEL * level + view.worker.iteration - (tokens if r.num_admissions > 0 else 0)
    return score


@jit_inline
def running_score(view: PolicyView, memory: PolicyMemory, k: int) -> float:
    """Return the score of the request in slot ``k``; -inf if it must not be preempted."""
    p, slot = order(memory.params), view.active[k]
    i, made = slot.request_id, np.int64(slot.num_output_tokens)
    helped = memory.state[helped_at(p.requests, i)] == 1
    if helped and view.worker.iteration - slot.admit_iteration < p.period:
        return -math.inf
    kind = p.score
    if kind == BY_RENEWED_REST and made >= math.floor(p.one * slot.predicted_len):
        return -math.inf
    if kind == BY_REST and view.requests[i].num_evictions >= p.one:
        return -math.inf
    if kind in (BY_LENGTH, BY_BOOST, BY_TAIL):
        return float(memory.reals[i])  # it does not change
    return score_of(view, memory, i, made)


@jit_inline
def join_heaps(view: PolicyView, memory: PolicyMemory) -> None:
    """Forget the requests that a router has moved away, and add those that joined the queue."""
    state, ranks, n, w = memory.state, memory.reals, order(memory.params).requests, view.worker
    forget_ranked(view, state, _HEAP, ranks, 0)
    forget_ranked(view, state, guarded_at(n), ranks, 0)
    for j in range(w.num_queued):
        i = view.queued[j]
        ranks[i] = score_of(view, memory, i, np.int64(view.requests[i].num_output_tokens))
        if order(memory.params).score == BY_LEVEL:
            ranks[2 * n + i] = ranks[i]
        state[joined_at(n, i)], state[helped_at(n, i)] = w.iteration, 0
        ranked_push(state, _HEAP, ranks, 0, i)


@jit_inline
def help_starving(view: PolicyView, memory: PolicyMemory) -> None:
    """Put the requests before all others that have waited long enough."""
    state, n, guard = memory.state, order(memory.params).requests, order(memory.params).guard
    if guard == 0:
        return
    last = state[_HELPED]
    i = first_waiting(view)
    if last != UNKNOWN and view.requests[last].status == WAITING and state[helped_at(n, last)] == 1:
        i = next_waiting(view, last)
    while i != UNKNOWN and (
        state[helped_at(n, i)] == 1 or view.worker.iteration - state[joined_at(n, i)] >= guard
    ):
        if state[helped_at(n, i)] == 0:
            state[helped_at(n, i)] = 1
            ranked_forget(state, _HEAP, memory.reals, 0, i)
            ranked_push(state, guarded_at(n), memory.reals, 0, i)
        state[_HELPED] = i
        i = next_waiting(view, i)


@jit_inline
def first_place(view: PolicyView, memory: PolicyMemory) -> int:
    """Return the place of the heap with the request to start next; empty heaps mean that none waits."""
    state, n = memory.state, order(memory.params).requests
    return guarded_at(n) if state[guarded_at(n)] > 0 else _HEAP


@jit_inline
def score_running(view: PolicyView, memory: PolicyMemory, least: float) -> None:
    """Put the running requests that may leave into their heap, by their scores, at least ``least``."""
    n, last = order(memory.params).requests, view.worker.num_active - 1
    memory.state[running_at(n)] = 0
    for k in range(view.worker.num_active):
        score = max(running_score(view, memory, k), least)
        if score > -math.inf:
            memory.reals[n + last - k] = -score
            ranked_push(memory.state, running_at(n), memory.reals, n, last - k)


@jit_inline
def worst_score(memory: PolicyMemory, n: int) -> float:
    """Return the largest score of the running requests that may leave, -inf without any."""
    at = running_at(n)
    return -memory.reals[n + memory.state[at + 1]] if memory.state[at] > 0 else -math.inf


@jit_inline
def leave(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, place: int) -> int:
    """Evict the request at a place; return the memory that this frees in the next iteration."""
    p, k = order(memory.params), view.worker.num_active - 1 - place
    score = -memory.reals[p.requests + place]
    if p.score == BY_LEVEL and score >= 0.0:
        memory.reals[2 * p.requests + view.active[k].request_id] = score
    evict(decision, k)
    return need_of_slot(view, k) - kept_by_others(view, view.active[k])


@jit_inline
def preempt(
    view: PolicyView, decision: PolicyDecision, memory: PolicyMemory, score: float, need: int, limit: int
) -> int:
    """Evict requests with a larger score until ``need`` is within the limit, if that is possible; return the need.

    If it is not, no other request is tried at this decision.
    """
    n, state, most = order(memory.params).requests, memory.state, 0
    at, last = running_at(n), view.worker.num_active - 1
    end = state[at]
    while need - most > limit and worst_score(memory, n) > score:
        place = ranked_pop(state, at, memory.reals, n)
        most += need_of_slot(view, last - place)
        state[at + 1 + state[at]] = place  # where the heap has ended
    if need - most > limit:
        return need
    for j in range(end - 1, state[at] - 1, -1):
        need -= leave(view, decision, memory, state[at + 1 + j])
    while need > limit and worst_score(memory, n) > score:  # others keep a part of what has been evicted
        need -= leave(view, decision, memory, ranked_pop(state, at, memory.reals, n))
    return need


@policy_kernel
def ordered_kernel(view: PolicyView, decision: PolicyDecision, memory: PolicyMemory) -> None:
    """On overflow evict the largest scores; else admit in ascending order, preempting for it where that is allowed."""
    state, p = memory.state, order(memory.params)
    join_heaps(view, memory)
    help_starving(view, memory)
    need = need_of_active(view)
    if need > view.problem.kv_capacity:
        score_running(view, memory, -1e300)
        while need > view.problem.kv_capacity:
            worst = ranked_pop(state, running_at(p.requests), memory.reals, p.requests)
            need -= leave(view, decision, memory, worst)
        return
    scored = False
    place = first_place(view, memory)
    while state[place] > 0 and has_place(view, decision):
        i = state[place + 1]
        use, room = taken_by(view, i), room_to_admit(view, decision, p.limit)
        if need + use > room and p.preempts:
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


class Ordered(Protected):
    """Base class of policies in the order of a score.

    Attributes:
        score: which score, :data:`BY_LENGTH` and the following.
        preempts: whether running requests are evicted for waiting ones with a smaller score.
    """

    kernel = ordered_kernel
    parameters = Order
    score: ClassVar[int]
    preempts: ClassVar[bool] = False
    guard = 0
    period = 0
    protection: float = PROTECTION

    def numbers(self) -> tuple[float, float]:
        """Return the two numbers of the score."""
        return 0.0, 0.0

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the memory that admission may use, the number of requests, and the numbers of the score."""
        one, two = self.numbers()
        requests = max(1, system.max_requests)
        return {**super().computed(system), "requests": requests, "one": one, "two": two}

    def memory(self, system: SystemInfo) -> PolicyMemory:
        """Return a state without waiting requests."""
        n = max(1, system.max_requests)
        state = np.zeros(running_at(n) + n + 1, np.int64)
        state[_HELPED] = UNKNOWN
        return policy_memory(
            self.params(system), state=state, reals=np.zeros((3 if self.score == BY_LEVEL else 2) * n)
        )
