"""The least total latency of a few requests by looking at all schedules: a check on the integer program.

Shares nothing with the program, its relaxations or the local search but the requests: schedules are built in order of
their starts, and a part of them is left out where what is placed and the least that the rest can still cost reach
the best schedule found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvgym.errors import ConfigError
from kvgym.theory.hindsight.slotted.exact_kernels import search
from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests

MOST_REQUESTS = 14


class Optimum(NamedTuple):
    """The least total latency in slots, and the starts of a schedule that has it, int64 (n,)."""

    total: int
    starts: Ints


def exact_search(requests: SlottedRequests, *, patience: int = 2_000_000_000) -> Optimum | None:
    """Return the optimum, or ``None`` where patience ends before the search does.

    Args:
        requests: at most :data:`MOST_REQUESTS`, at least one.
        patience: how many places (a request at a moment) are looked at; some ten million a second.

    Raises:
        ConfigError: too many requests, or none.
    """
    n = len(requests)
    if not 1 <= n <= MOST_REQUESTS:
        raise ConfigError(
            f"the exact search is for 1 to {MOST_REQUESTS} requests, got {n}; use the integer program"
        )
    one_by_one = np.zeros(n, np.int64)  # a schedule to begin with: one after the other, shortest first
    clock = int(requests.arrival.max())
    for i in np.argsort(requests.output, kind="stable"):
        one_by_one[i] = clock
        clock += int(requests.output[i])
    total = int((one_by_one + requests.output - requests.arrival).sum())
    order = np.lexsort((requests.prompt, requests.output, requests.arrival))  # twins side by side
    columns = [np.ascontiguousarray(c[order]) for c in (requests.arrival, requests.prompt, requests.output)]
    starts = one_by_one[order]
    longest = int(requests.arrival.max()) + total + int(requests.volume.sum()) + 2
    scratch = [np.zeros(size, np.int64) for size in (longest, n, n, n, n + 1)]
    found = search(
        *columns,
        requests.volume[order],
        requests.memory,
        total,
        patience,
        *scratch,
        np.zeros((2, n), np.int64),
        starts,
    )
    if found < 0:
        return None
    in_place = np.zeros(n, np.int64)
    in_place[order] = starts
    return Optimum(int(found), requests.check(in_place))
