"""A queue of waiting requests by score: a sorted front, as far as recent walks came, and two heaps for the rest.

A walk visits the first requests and passes them; admitted requests leave at its end. So no decision has to remove
requests from the heap only to put them back. Requests with outdated scores are in a heap of their own, ordered by
these, and change to the other as they are scored again. :mod:`kvgym.baselines.ranked.layout` describes the memory.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import OUT_OF_ORDER, SCORES, front_of, passed_at
from kvgym.kernels import (
    UNKNOWN,
    WAITING,
    PolicyMemory,
    PolicyView,
    jit,
    jit_inline,
    left_request,
    ranked_before,
    ranked_forget,
    ranked_pop,
    ranked_push,
)

LONGEST = 128
"""Length of the front at which, when another request is added, most of it returns to the heap."""


@jit_inline
def heap_of(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Return the index of the heap of requests with current scores."""
    return at + memory.state[passed_at(view, at) + 1] * (1 + view.requests.shape[0])


@jit_inline
def outdated_of(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Return the index of the heap of requests with outdated scores."""
    return at + (1 - memory.state[passed_at(view, at) + 1]) * (1 + view.requests.shape[0])


@jit_inline
def queue_length(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Return the number of requests in a queue."""
    return memory.state[at] + memory.state[at + 1 + view.requests.shape[0]] + memory.state[front_of(view, at)]


@jit_inline
def queue_halves(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Return the length of the shorter of the two heaps, which :func:`queue_outdate` moves request by request."""
    return min(memory.state[at], memory.state[at + 1 + view.requests.shape[0]])


@jit
def queue_outdate(view: PolicyView, memory: PolicyMemory, at: int) -> None:
    """Outdate the scores of all requests; no walk is under way."""
    state, reals, front, heap = memory.state, memory.reals, front_of(view, at), heap_of(view, memory, at)
    for j in range(state[front]):
        ranked_push(state, heap, reals, SCORES, state[front + 1 + j])
    state[front] = 0
    first, second = at, at + 1 + view.requests.shape[0]
    short, long = (first, second) if state[first] <= state[second] else (second, first)
    while state[short] > 0:
        ranked_push(state, long, reals, SCORES, state[short + state[short]])
        state[short] -= 1
    state[passed_at(view, at) + 1] = 0 if short == first else 1


@jit_inline
def queue_take_outdated(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Remove and return a request with an outdated score, in no order; there is one."""
    old = outdated_of(view, memory, at)
    i = memory.state[old + memory.state[old]]  # the last place of a heap is free to leave
    memory.state[old] -= 1
    return i


@jit
def queue_add(view: PolicyView, memory: PolicyMemory, at: int, i: int) -> None:
    """Add a scored request; during a walk it joins those not passed yet."""
    state, reals, front, heap = memory.state, memory.reals, front_of(view, at), heap_of(view, memory, at)
    count, passed = state[front], state[passed_at(view, at)]
    if count == 0 or not ranked_before(reals, SCORES, i, state[front + count]):
        ranked_push(state, heap, reals, SCORES, i)
        return
    k, span = passed, count - passed
    while span > 0:  # binary search for its place
        half = span >> 1
        if ranked_before(reals, SCORES, i, state[front + k + half + 1]):
            span = half
        else:
            k, span = k + half + 1, span - half - 1
    for j in range(count, k, -1):
        state[front + j + 1] = state[front + j]
    state[front + k + 1] = i
    state[front] = count + 1
    if count >= LONGEST and passed == 0:
        while state[front] > LONGEST // 2:
            ranked_push(state, heap, reals, SCORES, state[front + state[front]])
            state[front] -= 1
    if k > 0 and ranked_before(reals, SCORES, i, state[front + k]):
        state[OUT_OF_ORDER] = 1


@jit
def front_remove(state: Any, front: int, k: int) -> None:
    """Remove the k-th request of the front, counted from 0."""
    state[front] -= 1
    for j in range(k, state[front]):
        state[front + 1 + j] = state[front + 2 + j]


@jit
def queue_first(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Return the best request with a current score that has not been passed yet, UNKNOWN if there is none."""
    state, front, passed, heap = (
        memory.state,
        front_of(view, at),
        passed_at(view, at),
        heap_of(view, memory, at),
    )
    while True:
        k = state[passed]
        if k < state[front]:
            if view.requests[state[front + 1 + k]].status == WAITING:
                return state[front + 1 + k]
            front_remove(state, front, k)
        elif state[heap] > 0:
            state[front + 1 + k] = ranked_pop(state, heap, memory.reals, SCORES)
            state[front] += 1
        else:
            return UNKNOWN


@jit_inline
def queue_pass(view: PolicyView, memory: PolicyMemory, at: int) -> None:
    """Pass the request that :func:`queue_first` has returned."""
    memory.state[passed_at(view, at)] += 1


@jit
def queue_remove(view: PolicyView, memory: PolicyMemory, at: int) -> None:
    """Remove the request that :func:`queue_first` has returned."""
    front_remove(memory.state, front_of(view, at), memory.state[passed_at(view, at)])


@jit
def queue_end_walk(view: PolicyView, memory: PolicyMemory, at: int) -> None:
    """End the walk: remove passed requests without a score (NaN), and start at the best again."""
    state, reals, front = memory.state, memory.reals, front_of(view, at)
    passed, kept = state[passed_at(view, at)], 0
    if passed == 0:
        return
    for j in range(passed):
        i = state[front + 1 + j]
        if not math.isnan(reals[SCORES + i]):
            state[front + 1 + kept] = i
            kept += 1
    if kept < passed:
        for j in range(passed, state[front]):
            state[front + 1 + kept + j - passed] = state[front + 1 + j]
    state[front] -= passed - kept
    state[passed_at(view, at)] = 0


@jit
def queue_mend(view: PolicyView, memory: PolicyMemory, at: int) -> None:
    """Sort the front again, after a request was added before others that had been passed."""
    state, first = memory.state, front_of(view, at) + 1
    for j in range(1, state[first - 1]):
        i, k = state[first + j], j
        while k > 0 and ranked_before(memory.reals, SCORES, i, state[first + k - 1]):
            state[first + k] = state[first + k - 1]
            k -= 1
        state[first + k] = i


@jit
def queue_mix(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Empty a queue; return how many it held. Their ids follow ``at``, unordered, until others are added."""
    state, front, other = memory.state, front_of(view, at), at + 1 + view.requests.shape[0]
    count = state[at]
    for place in (other, front):
        for j in range(state[place]):
            state[at + 1 + count] = state[place + 1 + j]
            count += 1
    state[at] = state[other] = state[front] = state[passed_at(view, at) + 1] = 0
    return count


@jit
def queue_forget(view: PolicyView, memory: PolicyMemory, at: int) -> None:
    """Remove requests that a router has moved away."""
    state, front = memory.state, front_of(view, at)
    for j in range(view.worker.num_left):
        i = left_request(view, j)
        other = at + 1 + view.requests.shape[0]
        if not (
            ranked_forget(state, at, memory.reals, SCORES, i)
            or ranked_forget(state, other, memory.reals, SCORES, i)
        ):
            for k in range(state[front]):
                if state[front + 1 + k] == i:
                    front_remove(state, front, k)
                    break
