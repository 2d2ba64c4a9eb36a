"""The waiting requests of a ranking, in two queues, best first.

Requests with a deadline that can still be met press: their scores change with time. The scores of all others stand. A
request that loses its deadline moves from the first queue to the second, at the latest when it is the best of both.

Learning outdates all scores, and time those of requests that press. They are renewed in slices, so that the time of
a decision does not grow with the queue. Until then the outdated score of a request that presses stands for the current
one. The outdated score of another request bounds it, because learning notes by how much costs have changed. The request
is scored out of turn if it may be the best. So the best one is the best by all current scores, as long as a decision
needs no more than
``OUT_OF_TURN`` of these.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import (
    ALLOWANCE,
    CERTAIN,
    DUE,
    LEAST_CHANGE,
    MOST_CHANGE,
    OUT_OF_ORDER,
    PRESSED,
    RENEWING,
    SCORES,
    STANDING,
    UNSEEN,
    notes_of,
    pressing_at,
)
from kvgym.baselines.ranked.queue import (
    outdated_of,
    queue_add,
    queue_end_walk,
    queue_first,
    queue_forget,
    queue_halves,
    queue_length,
    queue_mend,
    queue_mix,
    queue_outdate,
    queue_pass,
    queue_remove,
    queue_take_outdated,
)
from kvgym.baselines.ranked.scoring import press, rate_request, time_to_spare
from kvgym.baselines.ranked.weights import weights_in
from kvgym.kernels import (
    UNKNOWN,
    WAITING,
    PolicyMemory,
    PolicyView,
    jit,
    jit_inline,
    ranked_before,
    ranked_pop,
)

SLICE, AT_ONCE, OUT_OF_TURN = 32, 256, 256
"""Most outdated scores that a decision renews: in turn, in turn of requests that press, and out of turn."""

MOST_MOVED = 512
"""Most requests that are outdated one by one, because others of their queue have been outdated before."""

DEADLINE, ALL = 1, 2
"""Values of state[RENEWING]: what is renewed of requests that press, the deadline's part of the score or all of it."""


@jit_inline
def presses(view: PolicyView, memory: PolicyMemory, i: int) -> bool:
    """Return whether a waiting request had a deadline that could be met at the last update."""
    return bool(memory.reals[notes_of(view, i) + DUE] < math.inf)


@jit_inline
def queue_of(view: PolicyView, memory: PolicyMemory, i: int) -> Any:
    """Return the index of the queue that a waiting request is in or belongs to."""
    return pressing_at(view) if presses(view, memory, i) else STANDING


@jit_inline
def add_waiting(view: PolicyView, memory: PolicyMemory, i: int) -> None:
    """Add a scored request."""
    queue_add(view, memory, queue_of(view, memory, i), i)


@jit_inline
def forget_waiting(view: PolicyView, memory: PolicyMemory) -> None:
    """Remove requests that a router has moved away."""
    queue_forget(view, memory, STANDING)
    queue_forget(view, memory, pressing_at(view))


@jit_inline
def least_change(memory: PolicyMemory) -> Any:
    """Return a lower bound of the change of a standing score, without a network, since it was current."""
    p, reals = weights_in(memory.params), memory.reals
    if memory.state[CERTAIN] > 0:
        return 0.0
    # The remaining output, in a logarithm of a sum, changes at most by the ratio of the costs.
    less, more = math.log(reals[LEAST_CHANGE]) - 1e-9, math.log(reals[MOST_CHANGE]) + 1e-9
    return less + p.footprint * (less if p.footprint >= 0.0 else more)


@jit
def score_again(view: PolicyView, memory: PolicyMemory, at: int, i: int) -> None:
    """Renew the score of a request that has been taken out of a queue, and add it to its queue."""
    row = view.requests[i]
    if row.status != WAITING:
        return
    if at != STANDING and memory.state[RENEWING] == DEADLINE:
        press(view, memory, row, i)
    else:
        rate_request(view, memory, i)
    add_waiting(view, memory, i)


@jit
def best_of(view: PolicyView, memory: PolicyMemory, at: int) -> Any:
    """Return the request of a queue with the best score that has not been passed, or UNKNOWN.

    Outdated scores that may be better are renewed first, as far as the decision's allowance goes.
    """
    state, reals = memory.state, memory.reals
    i = queue_first(view, memory, at)
    if state[outdated_of(view, memory, at)] == 0:
        return i
    change = least_change(memory) if at == STANDING else 0.0
    while state[outdated_of(view, memory, at)] > 0:
        old = outdated_of(view, memory, at)
        if i != UNKNOWN and (
            state[ALLOWANCE] == 0 or reals[SCORES + i] < reals[SCORES + state[old + 1]] + change
        ):
            break
        state[ALLOWANCE] = max(state[ALLOWANCE] - 1, 0)
        score_again(view, memory, at, ranked_pop(state, old, reals, SCORES))
        i = queue_first(view, memory, at)
    return i


@jit
def best_waiting(view: PolicyView, memory: PolicyMemory) -> Any:
    """Return the waiting request with the best score that has not been passed, or UNKNOWN."""
    i, other = best_of(view, memory, pressing_at(view)), best_of(view, memory, STANDING)
    if i == UNKNOWN or (other != UNKNOWN and ranked_before(memory.reals, SCORES, other, i)):
        return other
    return i


@jit_inline
def pass_first(view: PolicyView, memory: PolicyMemory, i: int) -> None:
    """Pass the request that :func:`first_waiting` or :func:`best_waiting` has just returned."""
    queue_pass(view, memory, queue_of(view, memory, i))


@jit
def end_walk(view: PolicyView, memory: PolicyMemory) -> None:
    """End the walk: remove admitted requests, which no longer have a score, and start at the best again."""
    queue_end_walk(view, memory, STANDING)
    queue_end_walk(view, memory, pressing_at(view))
    if memory.state[OUT_OF_ORDER] == 1:  # a deadline was lost during the walk, and its request fell back
        memory.state[OUT_OF_ORDER] = 0
        queue_mend(view, memory, STANDING)
        queue_mend(view, memory, pressing_at(view))


@jit
def first_waiting(view: PolicyView, memory: PolicyMemory) -> Any:
    """Return the waiting request with the best score that has not been passed, UNKNOWN if there is none.

    If its deadline has been lost meanwhile, it is scored again and the search is repeated.
    """
    i = best_waiting(view, memory)
    while i != UNKNOWN and presses(view, memory, i):
        row = view.requests[i]
        if time_to_spare(view, memory, row, row) >= 0.0:
            break
        queue_remove(view, memory, pressing_at(view))
        press(view, memory, row, i)
        add_waiting(view, memory, i)
        i = best_waiting(view, memory)
    return i


@jit
def rate_waiting(view: PolicyView, memory: PolicyMemory, at: int, rescore: bool) -> None:
    """Score the requests of a queue again, and sort it.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        at: index of the queue.
        rescore: whether to score all requests again; else only those without a score (NaN).
    """
    for j in range(queue_mix(view, memory, at)):
        i = memory.state[at + 1 + j]
        if view.requests[i].status == WAITING:
            if rescore or math.isnan(memory.reals[SCORES + i]):
                rate_request(view, memory, i)
            add_waiting(view, memory, i)


@jit_inline
def rate_queue(view: PolicyView, memory: PolicyMemory, rescore: bool) -> None:
    """Score waiting requests again, at once: all of them, or only those without a score (NaN).

    If scores are outdated, all are scored.
    """
    rescore = rescore or not all_current(view, memory)
    rate_waiting(view, memory, STANDING, rescore)
    rate_waiting(view, memory, pressing_at(view), rescore)


@jit_inline
def all_current(view: PolicyView, memory: PolicyMemory) -> bool:
    """Return whether no score is outdated."""
    standing, pressing = outdated_of(view, memory, STANDING), outdated_of(view, memory, pressing_at(view))
    return bool(memory.state[standing] == 0 and memory.state[pressing] == 0)


@jit_inline
def outdate(view: PolicyView, memory: PolicyMemory, what: int) -> None:
    """Outdate all scores (ALL), or those of requests that press (DEADLINE)."""
    memory.state[RENEWING] = what
    queue_outdate(view, memory, pressing_at(view))
    if what == ALL:
        queue_outdate(view, memory, STANDING)


@jit_inline
def may_outdate(view: PolicyView, memory: PolicyMemory) -> bool:
    """Return whether all scores can be outdated in little time."""
    pressing = pressing_at(view)
    return bool(max(queue_halves(view, memory, STANDING), queue_halves(view, memory, pressing)) <= MOST_MOVED)


@jit
def renew_slice(view: PolicyView, memory: PolicyMemory, fresh: bool) -> None:
    """Renew outdated scores in turn; once those of requests that press are renewed, count these.

    Args:
        view: what the policy observes.
        memory: the policy's memory.
        fresh: whether lengths have just been learned. Standing scores then wait for the next decision, or all are
            renewed if there is a network, because its changes have no bound.
    """
    state, pressing = memory.state, pressing_at(view)
    standing = SLICE
    if fresh:
        standing = state[outdated_of(view, memory, STANDING)] if weights_in(memory.params).hidden > 0 else 0
    for at, most in ((STANDING, standing), (pressing, AT_ONCE)):
        for _ in range(min(state[outdated_of(view, memory, at)], most)):
            score_again(view, memory, at, queue_take_outdated(view, memory, at))
    if state[RENEWING] > 0 and state[outdated_of(view, memory, pressing)] == 0:
        state[RENEWING] = state[UNSEEN] = 0
        state[PRESSED] = queue_length(view, memory, pressing)
    state[ALLOWANCE] = OUT_OF_TURN
