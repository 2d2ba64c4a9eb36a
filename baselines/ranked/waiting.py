"""The waiting requests of a ranking, the best first.

Two heaps hold them: one those that press, as their deadlines can still be met, so that their scores change with time;
the other all others, whose scores stand. Who is lost moves from the first to the second, at the latest when it is the
best of both.
"""

from __future__ import annotations

import math
from typing import Any

from kvgym.baselines.ranked.layout import PRESSED, SCORES, UNSEEN, WAITING_HEAP, dues_at, pressing_at
from kvgym.baselines.ranked.scoring import press, rate_request, time_to_spare
from kvgym.kernels import (
    UNKNOWN,
    WAITING,
    RuleMemory,
    RuleView,
    forget_ranked,
    jit,
    jit_inline,
    ranked_before,
    ranked_pop,
    ranked_push,
)


@jit_inline
def presses(view: RuleView, memory: RuleMemory, i: int) -> bool:
    """Return whether a waiting request had a deadline that could be met when this was last looked at."""
    return bool(memory.reals[dues_at(view) + i] < math.inf)


@jit_inline
def heap_of(view: RuleView, memory: RuleMemory, i: int) -> Any:
    """Return the place of the heap that a waiting request is in, or belongs into."""
    return pressing_at(view) if presses(view, memory, i) else WAITING_HEAP


@jit_inline
def add_waiting(view: RuleView, memory: RuleMemory, i: int) -> None:
    """Add a request, which has a score."""
    ranked_push(memory.state, heap_of(view, memory, i), memory.reals, SCORES, i)


@jit_inline
def forget_waiting(view: RuleView, memory: RuleMemory) -> None:
    """Remove those that a router has taken away."""
    forget_ranked(view, memory.state, WAITING_HEAP, memory.reals, SCORES)
    forget_ranked(view, memory.state, pressing_at(view), memory.reals, SCORES)


@jit
def best_waiting(view: RuleView, memory: RuleMemory) -> Any:
    """Return the waiting request with the best score, by scores as they are; UNKNOWN if nobody waits."""
    state, reals, pressing = memory.state, memory.reals, pressing_at(view)
    for heap in (WAITING_HEAP, pressing):
        while state[heap] > 0 and view.requests[state[heap + 1]].status != WAITING:
            ranked_pop(state, heap, reals, SCORES)
    if state[pressing] == 0:
        return state[WAITING_HEAP + 1] if state[WAITING_HEAP] > 0 else UNKNOWN
    if state[WAITING_HEAP] == 0:
        return state[pressing + 1]
    i, other = state[pressing + 1], state[WAITING_HEAP + 1]
    return i if ranked_before(reals, SCORES, i, other) else other


@jit_inline
def take_first(view: RuleView, memory: RuleMemory, i: int) -> None:
    """Remove the one that :func:`first_waiting` or :func:`best_waiting` has just returned."""
    ranked_pop(memory.state, heap_of(view, memory, i), memory.reals, SCORES)


@jit
def first_waiting(view: RuleView, memory: RuleMemory) -> Any:
    """Return the waiting request with the best score, UNKNOWN if nobody waits.

    If it is lost by now it is scored anew, and the best looked for again.
    """
    i = best_waiting(view, memory)
    while i != UNKNOWN and presses(view, memory, i):
        row = view.requests[i]
        if time_to_spare(view, memory, row, row) >= 0.0:
            break
        take_first(view, memory, i)
        press(view, memory, row, i)
        add_waiting(view, memory, i)
        i = best_waiting(view, memory)
    return i


@jit
def rate_waiting(view: RuleView, memory: RuleMemory, heap: int, everybody: bool) -> None:
    """Score the requests of a heap anew, and bring them into order.

    Args:
        view: what the rule sees.
        memory: what it remembers.
        heap: place of the heap.
        everybody: else only those without a score, which is NaN.
    """
    state = memory.state
    count = state[heap]
    state[heap] = 0
    for j in range(count):
        i = state[heap + 1 + j]
        if view.requests[i].status == WAITING:
            if everybody or math.isnan(memory.reals[SCORES + i]):
                rate_request(view, memory, i)
            add_waiting(view, memory, i)


@jit_inline
def rate_queue(view: RuleView, memory: RuleMemory, everybody: bool) -> None:
    """Score waiting requests anew: everybody, or those without a score, which is NaN."""
    rate_waiting(view, memory, WAITING_HEAP, everybody)
    rate_waiting(view, memory, pressing_at(view), everybody)


@jit_inline
def note_pressing(view: RuleView, memory: RuleMemory) -> None:
    """Note how many press, when all have been looked at."""
    memory.state[UNSEEN], memory.state[PRESSED] = 0, memory.state[pressing_at(view)]


@jit
def press_queue(view: RuleView, memory: RuleMemory) -> None:
    """Reckon anew what deadlines add to the scores of those that press."""
    state, heap = memory.state, pressing_at(view)
    count = state[heap]
    state[heap] = 0
    for j in range(count):
        i = state[heap + 1 + j]
        row = view.requests[i]
        if row.status == WAITING:
            press(view, memory, row, i)
            add_waiting(view, memory, i)
    note_pressing(view, memory)
