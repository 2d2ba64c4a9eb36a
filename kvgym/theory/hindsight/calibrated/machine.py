"""One preemptive machine that works at unit rate: the relaxation in which batches share nothing but their time.

All functions are exact for that machine; that its optimum is below every schedule of a system is shown in
:mod:`kvgym.theory.hindsight.calibrated.bounds`.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def least_mean_times(
    release: Floats, work: Floats, owner: NDArray[np.int64], rank: NDArray[np.int64], weight: Floats
) -> float:
    """Return the least Σ weight · ∫ t dX(t) over all ways to do the work, where weights fall with the rank.

    X is the work of a piece done by t. A unit of work at t costs weight · t, so it is best to always do the released
    work of highest weight. (For every threshold of the weight, the pieces above it are then done as early as their
    releases allow, and the sum is composed of such sums.)

    Args:
        release: when each piece can be worked on, seconds, float64 (p,), ascending.
        work: seconds of the machine, float64 (p,).
        owner: request of each piece, int64 (p,).
        rank: place of each request when ordered by falling weight, int64 (n,).
        weight: per unit of work of each request, float64 (n,).
    """
    releases, left = release.tolist(), work.tolist()
    places, weights, owners = rank[owner].tolist(), weight[owner].tolist(), len(release)
    waiting: list[tuple[int, int]] = []
    total, now, following = 0.0, 0.0, 0
    while following < owners or waiting:
        if not waiting:
            now = max(now, releases[following])
        while following < owners and releases[following] <= now:
            heappush(waiting, (places[following], following))
            following += 1
        piece = waiting[0][1]
        done = left[piece]
        if following < owners and now + done > releases[following]:
            done = releases[following] - now
            left[piece] -= done
        else:
            heappop(waiting)
        total += weights[piece] * done * (now + done / 2)
        now += done
    return total


def least_completions(release: Floats, work: Floats) -> float:
    """Return the least sum of completion times: shortest remaining work first (Schrage 1968).

    Args:
        release: when each request can be worked on, seconds, float64 (n,), ascending.
        work: seconds of the machine, float64 (n,).
    """
    releases, works, count = release.tolist(), work.tolist(), len(release)
    waiting: list[float] = []
    total, now, following = 0.0, 0.0, 0
    while following < count or waiting:
        if not waiting:
            now = max(now, releases[following])
        while following < count and releases[following] <= now:
            heappush(waiting, works[following])
            following += 1
        shortest = heappop(waiting)
        if following < count and now + shortest > releases[following]:
            heappush(waiting, shortest - (releases[following] - now))
            now = releases[following]
        else:
            now += shortest
            total += now
    return total


def last_completion(release: Floats, work: Floats) -> float:
    """Return the earliest end of all work: the largest sum of a release and all work released from then on.

    Args:
        release: seconds, float64 (n,), ascending.
        work: seconds of the machine, float64 (n,).
    """
    later = np.cumsum(work[::-1])[::-1]
    return float((release + later).max(initial=0.0))
