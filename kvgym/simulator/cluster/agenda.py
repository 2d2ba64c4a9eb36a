"""When which worker of a cluster has something to do next, found without a look at all of them.

An agenda is a tournament: its second half holds the time of each worker, in order, and every entry ``k`` before that,
down to 1, the earlier time of the entries ``2 k`` and ``2 k + 1``. A change costs one step a level, and so does finding
the first worker, in the order of the workers, whose time has come. Entry 1 is the time of the whole cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.simulator.tables import UNKNOWN

NOW, NEVER = -np.inf, np.inf
"""Times of workers that can decide, and of those that have nothing to do until a request comes."""


def empty_agenda(workers: int) -> NDArray[np.float64]:
    """Return the agenda of workers that have nothing to do, float64 (twice the next power of two,)."""
    return np.full(2 << (workers - 1).bit_length(), NEVER)


@jit
def put_down(agenda: Any, k: int, time: float) -> None:
    """Note when worker ``k`` has something to do next."""
    place = agenda.shape[0] // 2 + k
    agenda[place] = time
    while place > 1:
        place //= 2
        earlier = min(agenda[2 * place], agenda[2 * place + 1])
        if agenda[place] == earlier:
            break
        agenda[place] = earlier


@jit
def first_due(agenda: Any, start: int, time: float) -> int:
    """Return the first worker from ``start`` on whose time is at most ``time``, UNKNOWN if there is none."""
    half = agenda.shape[0] // 2
    if start >= half:
        return UNKNOWN
    place = half + start if start > 0 else 1
    while agenda[place] > time:
        while place % 2 == 1:  # nothing further right below the entry above
            place //= 2
        if place == 0:
            return UNKNOWN
        place += 1
    while place < half:
        place *= 2
        if agenda[place] > time:
            place += 1
    return place - half
