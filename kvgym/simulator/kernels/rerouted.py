"""Building blocks for requests that a router moves to another worker."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.kernels.heap import heap_forget, ranked_forget
from kvgym.simulator.policy_interface import PolicyView
from kvgym.simulator.tables import UNKNOWN


@jit
def move_to(workers: Any, i: int, k: int) -> int:
    """Return the value by which a router's second kernel moves request ``i`` to worker ``k``."""
    return int(i * workers.shape[0] + k)


@jit_inline
def left_request(view: PolicyView, j: int) -> int:
    """Return the j-th request, from 0, that a router has moved away since the last decision, waiting or active.

    It may have returned since; then it is also in ``view.queued``. Its row may describe its state on another worker.
    """
    request: int = view.queued[view.queued.shape[0] - 1 - j]
    return request


@jit
def unlink(state: Any, head: int, tail: int, following: int, i: int) -> bool:
    """Remove request ``i`` from a linked queue in a policy's state, in time proportional to its length.

    Args:
        state: ``state[head]`` and ``state[tail]`` are the ends, UNKNOWN if the queue is empty, and
            ``state[following + j]`` is the request after j.
        head: place of the first request.
        tail: place of the last request.
        following: place of the successor of request 0.
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
def forget_left(view: PolicyView, heap: Any, at: int) -> None:
    """Remove the requests that a router has moved away from a heap of :func:`request_key` at place ``at``."""
    for j in range(view.worker.num_left):
        heap_forget(heap, at, left_request(view, j))


@jit_inline
def forget_ranked(view: PolicyView, heap: Any, at: int, ranks: Any, base: int) -> None:
    """Remove the requests that a router has moved away from a heap of :func:`ranked_push`."""
    for j in range(view.worker.num_left):
        ranked_forget(heap, at, ranks, base, left_request(view, j))
