"""Requests that must miss their targets under every schedule.

A request within its TTFT target has its prefill's work done between its arrival and the target, and a request within
its deadline all of its work. Of the requests with arrivals from a and targets until d, the machine of
:mod:`kvgym.theory.hindsight.calibrated.bounds` therefore completes at most those with d - a seconds of work in sum; it
could release them all at a. Then the algorithm of Moore and Hodgson leaves out as few as possible, for all d at once
(Moore 1968). Windows that do not overlap contain different requests, so that their numbers add up; the best windows are
found by dynamic programming. Whatever else the machine does can only make more requests late.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from kvgym.theory.hindsight.calibrated.lines import Floats
from kvgym.theory.hindsight.interval import TOLERANCE

STARTS = 100
"""Moments at which windows begin, at most; each gives a bound."""


def least_late(release: Floats, work: Floats, deadline: Floats) -> int:
    """Return how many requests are late at least, on a machine of unit rate that may interrupt its work.

    Args:
        release: earliest beginning of each request, seconds, (n,).
        work: seconds of work, (n,).
        deadline: latest end of the work, seconds, (n,).
    """
    order = np.argsort(deadline, kind="stable")
    release, work, deadline = release[order], work[order], deadline[order]
    starts = np.unique(release)
    if len(starts) > STARTS:
        starts = starts[np.linspace(0, len(starts) - 1, STARTS).round().astype(np.int64)]
    before = np.zeros(len(starts) + 1, np.int64)  # late in windows that end before each start, and in all
    for k, start in enumerate(starts):
        before[k + 1] = max(before[k + 1], before[k])
        inside = release >= start
        late = _late_until(work[inside], deadline[inside] - start)
        ends = np.searchsorted(deadline[inside], [*starts[k + 1 :], np.inf], side="right")
        found = before[k] + np.where(ends > 0, late[np.maximum(ends, 1) - 1], 0)
        before[k + 1 :] = np.maximum(before[k + 1 :], found)
    return int(before[-1])


def _late_until(work: Floats, due: Floats) -> NDArray[np.int64]:
    """Return the fewest late requests of the first 1, 2, … by target, if all are released at 0, int64 (n,)."""
    late, kept, total = np.zeros(len(work), np.int64), list[float](), 0.0
    for j, (seconds, end) in enumerate(zip(work.tolist(), due.tolist(), strict=True)):
        heapq.heappush(kept, -seconds)
        total += seconds
        if total > end * (1 + TOLERANCE) + TOLERANCE:
            total += heapq.heappop(kept)
            late[j] = 1
    return np.cumsum(late)
