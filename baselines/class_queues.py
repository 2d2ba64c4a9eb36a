"""Queues of waiting requests, one for each class seen so far, in the state of a policy; together the waiting queue.

For n requests the state begins with the number of classes, followed by four rows of n numbers: class ids in ascending
order, the head and the tail of each class's queue, and by request the next one of its class.
"""

from __future__ import annotations

from typing import Any

from kvgym.kernels import REQUEUE_ARRIVAL, REQUEUE_BACK, UNKNOWN, PolicyView, jit, jit_inline, unlink

NUM_CLASSES, CLASS_IDS = 0, 1


@jit_inline
def head_at(n: int, row: int) -> int:
    """Return the index of the first request of a class, UNKNOWN if there is none."""
    return CLASS_IDS + n + row


@jit_inline
def tail_at(n: int, row: int) -> int:
    """Return the index of the last request of a class, UNKNOWN if there is none."""
    return CLASS_IDS + 2 * n + row


@jit_inline
def next_at(n: int, i: int) -> int:
    """Return the index of the request that follows request ``i`` in its queue."""
    return CLASS_IDS + 3 * n + i


def queues_size(n: int) -> int:
    """Return the length of the queues for n requests."""
    return CLASS_IDS + 4 * n


@jit
def class_row(state: Any, n: int, class_id: int) -> int:
    """Return the row of a class among those seen so far; insert a row for a new class."""
    low, high = 0, state[NUM_CLASSES]
    while low < high:
        middle = (low + high) // 2
        if state[CLASS_IDS + middle] < class_id:
            low = middle + 1
        else:
            high = middle
    if low == state[NUM_CLASSES] or state[CLASS_IDS + low] != class_id:
        for row in range(state[NUM_CLASSES], low, -1):
            state[CLASS_IDS + row] = state[CLASS_IDS + row - 1]
            state[head_at(n, row)] = state[head_at(n, row - 1)]
            state[tail_at(n, row)] = state[tail_at(n, row - 1)]
        state[CLASS_IDS + low] = class_id
        state[head_at(n, low)] = state[tail_at(n, low)] = UNKNOWN
        state[NUM_CLASSES] += 1
    return low


@jit
def join_class(view: PolicyView, state: Any, n: int, i: int) -> None:
    """Insert request ``i`` into the queue of its class, in the order of the waiting queue."""
    r, requeue = view.requests[i], view.problem.requeue
    row = class_row(state, n, r.class_id)
    head, tail, following = head_at(n, row), tail_at(n, row), next_at(n, 0)
    before, after = state[head], UNKNOWN  # neighbours: UNKNOWN = none
    if r.num_evictions == 0 or requeue == REQUEUE_BACK:
        before, after = UNKNOWN, state[tail]
    elif requeue == REQUEUE_ARRIVAL:
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
    """Remove the first request from the queue of a class."""
    head = head_at(n, row)
    state[head] = state[next_at(n, state[head])]
    if state[head] == UNKNOWN:
        state[tail_at(n, row)] = UNKNOWN


@jit
def forget_of_row(state: Any, n: int, row: int, i: int) -> None:
    """Remove request ``i``, which a router has moved away, from the queue of a class if it is there."""
    unlink(state, head_at(n, row), tail_at(n, row), next_at(n, 0), i)
