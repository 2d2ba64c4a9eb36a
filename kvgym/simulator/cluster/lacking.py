"""Requests of a fleet that have arrived before and lack a worker, in the order in which they came to lack one."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit
from kvgym.simulator.boundary import count_arrival
from kvgym.simulator.cluster.tables import Cluster, run_of
from kvgym.simulator.tables import OUTSIDE, UNKNOWN


@jit
def first_lacking(c: Cluster, arrival: float) -> int:
    """Return the request to be routed before the one that arrives at ``arrival``, UNKNOWN if there is none."""
    i = c.fleet[0].lacking_head
    if i != UNKNOWN and c.fleet[0].open_first > 0 and c.trips[i].since <= arrival:
        return int(i)
    return UNKNOWN


@jit
def take_in(c: Cluster, i: int) -> bool:
    """Take request ``i``, which gets a worker, from those that come; return whether it comes for the first time."""
    if c.requests[i].status != OUTSIDE:
        count_arrival(run_of(c, 0))
        return True
    c.fleet[0].lacking -= 1
    leave_lacking(c, i)
    return False


@jit
def join_lacking(c: Cluster, i: int, since: float) -> None:
    """Add request ``i`` to the list; it lacks a worker since then."""
    f, requests, trips = c.fleet[0], c.requests, c.trips
    trips[i].since = since
    before, after = UNKNOWN, f.lacking_head
    if after != UNKNOWN and trips[f.lacking_tail].since <= since:
        before, after = f.lacking_tail, UNKNOWN
    while after != UNKNOWN and trips[after].since <= since:
        before, after = after, requests[after].queue_next
    requests[i].queue_next = after
    if before == UNKNOWN:
        f.lacking_head = i
    else:
        requests[before].queue_next = i
    if after == UNKNOWN:
        f.lacking_tail = i


@jit
def leave_lacking(c: Cluster, i: int) -> None:
    """Remove request ``i`` from the list."""
    f = c.fleet[0]
    f.lacking_head, f.lacking_tail = leave_list(f.lacking_head, f.lacking_tail, c.requests, i)
    c.trips[i].since = np.nan


@jit
def leave_list(head: int, tail: int, requests: Any, i: int) -> tuple[int, int]:
    """Remove request ``i`` from a list with links ``queue_next``; return its head and tail, unchanged if not there."""
    before, at = UNKNOWN, head
    while at != UNKNOWN and at != i:
        before, at = at, requests[at].queue_next
    if at == UNKNOWN:
        return head, tail
    after = requests[i].queue_next
    if before == UNKNOWN:
        head = after
    else:
        requests[before].queue_next = after
    return head, before if after == UNKNOWN else tail
