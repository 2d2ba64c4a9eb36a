"""The event queue of a cluster: when each worker has something to do next.

It is a tournament tree. Its second half holds the time of each worker, in order. Every entry ``k`` before
that, down to 1, holds the earlier time of the entries ``2 k`` and ``2 k + 1``. A change costs one step per
level; so does finding the first worker, in the order of the workers, that is due. Entry 1 is the earliest
time of all workers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.simulator.tables import UNKNOWN

NOW, NEVER = -np.inf, np.inf
"""Times of workers that can decide, and of workers that have nothing to do until a request arrives."""


def empty_event_queue(workers: int) -> NDArray[np.float64]:
    """Return the event queue of workers that have nothing to do, float64 (twice the next power of two,)."""
    return np.full(2 << (workers - 1).bit_length(), NEVER)


@jit
def set_time(events: Any, k: int, time: float) -> None:
    """Set the time at which worker ``k`` has something to do next."""
    place = events.shape[0] // 2 + k
    events[place] = time
    while place > 1:
        place //= 2
        earlier = min(events[2 * place], events[2 * place + 1])
        if events[place] == earlier:
            break
        events[place] = earlier


@jit
def first_due(events: Any, start: int, time: float) -> int:
    """Return the first worker from ``start`` on that is due at ``time``, UNKNOWN if there is none."""
    half = events.shape[0] // 2
    if start >= half:
        return UNKNOWN
    place = half + start if start > 0 else 1
    while events[place] > time:
        while place % 2 == 1:  # nothing further right below the entry above
            place //= 2
        if place == 0:
            return UNKNOWN
        place += 1
    while place < half:
        place *= 2
        if events[place] > time:
            place += 1
    return place - half
