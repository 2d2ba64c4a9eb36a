"""Compiled building blocks for requests that leave a worker because a router takes them away."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.kernels.heap import heap_forget, ranked_forget
from kvgym.simulator.policy_interface import RuleView
from kvgym.simulator.tables import UNKNOWN


@jit
def move_to(workers: Any, i: int, k: int) -> int:
    """Return what the second kernel of a router returns to move request ``i`` to worker ``k``."""
    return int(i * workers.shape[0] + k)


@jit_inline
def left_request(view: RuleView, j: int) -> int:
    """Return the j-th request, from 0, that a router has taken away since the last decision, waiting or active.

    It may have come back since, and is among ``view.queued`` then. What its row says may be of another worker.
    """
    request: int = view.queued[view.queued.shape[0] - 1 - j]
    return request


@jit
def unlink(state: Any, head: int, tail: int, following: int, i: int) -> bool:
    """Take request ``i`` out of a queue linked in a rule's state, in time proportional to its length.

    Args:
        state: where ``state[head]`` and ``state[tail]`` are the ends, UNKNOWN if it is empty, and
            ``state[following + j]`` comes after j.
        head: place of the first.
        tail: place of the last.
        following: place of what comes after request 0.
        i: the request.

    Returns:
        Whether it was there.
    """
    before, at = UNKNOWN, state[head]
    while at != UNKNOWN and at != i:
        before, at = at, state[following + at]
    if at == UNKNOWN:
        return False
    if before == UNKNOWN:
        state[head] = state[following + i]
    else:
        state[following + before] = state[following + i]
    if state[tail] == i:
        state[tail] = before
    return True


@jit_inline
def forget_left(view: RuleView, heap: Any, at: int) -> None:
    """Remove those that a router has taken away from a heap of :func:`request_key` at place ``at``."""
    for j in range(view.worker.num_left):
        heap_forget(heap, at, left_request(view, j))


@jit_inline
def forget_ranked(view: RuleView, heap: Any, at: int, ranks: Any, base: int) -> None:
    """Remove those that a router has taken away from a heap of :func:`ranked_push`."""
    for j in range(view.worker.num_left):
        ranked_forget(heap, at, ranks, base, left_request(view, j))
