"""The waiting requests of a ranking, in two queues, best first.

Requests with a deadline that can still be met press: their scores change with time. The scores of all others stand. A
request that loses its deadline moves from the first queue to the second, at the latest when it is the best of both.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import (
    DUE,
    OUT_OF_ORDER,
    PRESSED,
    SCORES,
    STANDING,
    UNSEEN,
    notes_of,
    pressing_at,
)
from kvgym.baselines.ranked.queue import (
    queue_add,
    queue_end_walk,
    queue_first,
    queue_forget,
    queue_length,
    queue_mix,
    queue_pass,
    queue_remove,
)
from kvgym.baselines.ranked.scoring import press, rate_request, time_to_spare
from kvgym.kernels import UNKNOWN, WAITING, RuleMemory, RuleView, jit, jit_inline, ranked_before


@jit_inline
def presses(view: RuleView, memory: RuleMemory, i: int) -> bool:
    """Return whether a waiting request had a deadline that could be met at the last update."""
    return bool(memory.reals[notes_of(view, i) + DUE] < math.inf)


@jit_inline
def queue_of(view: RuleView, memory: RuleMemory, i: int) -> Any:
    """Return the index of the queue that a waiting request is in or belongs to."""
    return pressing_at(view) if presses(view, memory, i) else STANDING


@jit_inline
def add_waiting(view: RuleView, memory: RuleMemory, i: int) -> None:
    """Add a scored request."""
    queue_add(view, memory, queue_of(view, memory, i), i)


@jit_inline
def forget_waiting(view: RuleView, memory: RuleMemory) -> None:
    """Remove requests that a router has moved away."""
    queue_forget(view, memory, STANDING)
    queue_forget(view, memory, pressing_at(view))


@jit
def best_waiting(view: RuleView, memory: RuleMemory) -> Any:
    """Return the waiting request with the best stored score that has not been passed, or UNKNOWN."""
    i, other = queue_first(view, memory, pressing_at(view)), queue_first(view, memory, STANDING)
    if i == UNKNOWN or (other != UNKNOWN and ranked_before(memory.reals, SCORES, other, i)):
        return other
    return i


@jit_inline
def pass_first(view: RuleView, memory: RuleMemory, i: int) -> None:
    """Pass the request that :func:`first_waiting` or :func:`best_waiting` has just returned."""
    queue_pass(view, memory, queue_of(view, memory, i))


@jit
def end_walk(view: RuleView, memory: RuleMemory) -> None:
    """End the walk: remove admitted requests, which no longer have a score, and start at the best again."""
    queue_end_walk(view, memory, STANDING)
    queue_end_walk(view, memory, pressing_at(view))
    if memory.state[OUT_OF_ORDER] == 1:  # a deadline was lost during the walk, and its request fell back
        memory.state[OUT_OF_ORDER] = 0
        rate_queue(view, memory, False)


@jit
def first_waiting(view: RuleView, memory: RuleMemory) -> Any:
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
def rate_waiting(view: RuleView, memory: RuleMemory, at: int, rescore: bool) -> None:
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
def rate_queue(view: RuleView, memory: RuleMemory, rescore: bool) -> None:
    """Score waiting requests again: all of them, or only those without a score (NaN)."""
    rate_waiting(view, memory, STANDING, rescore)
    rate_waiting(view, memory, pressing_at(view), rescore)


@jit_inline
def note_pressing(view: RuleView, memory: RuleMemory) -> None:
    """Store how many requests press, after all have been scored."""
    memory.state[UNSEEN], memory.state[PRESSED] = 0, queue_length(view, memory, pressing_at(view))


@jit
def press_queue(view: RuleView, memory: RuleMemory) -> None:
    """Update the deadline's part of the scores of requests that press."""
    at = pressing_at(view)
    for j in range(queue_mix(view, memory, at)):
        i = memory.state[at + 1 + j]
        row = view.requests[i]
        if row.status == WAITING:
            press(view, memory, row, i)
            add_waiting(view, memory, i)
    note_pressing(view, memory)
