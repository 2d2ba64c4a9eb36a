"""The waiting queue in order of arrival: the place of a returning request is found in few steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.records import records
from kvgym.simulator.queue import queue_insert, queue_return
from kvgym.simulator.tables import (
    ACTIVE,
    ADMITTING,
    FINISHED,
    REQUEST,
    REQUEUE_ARRIVAL,
    ROLE_DECODE,
    ROLE_MIXED,
    UNKNOWN,
    WAITING,
    WORKER,
)


def queue_of(waiting: list[int], num_requests: int) -> tuple[Any, Any]:
    """Return a worker and requests: those in ``waiting`` wait in this order, and all others have finished."""
    w, requests = records(WORKER, 1)[0], records(REQUEST, num_requests)
    w.queue_head = w.queue_tail = UNKNOWN
    requests["status"] = FINISHED
    for i in waiting:
        uncompiled(queue_insert)(w, requests, i, UNKNOWN)
        requests[i].status = WAITING
    return w, requests


def listed(w: Any, requests: Any) -> list[int]:
    """Return the queue, as read from both ends."""
    forward: list[int] = []
    backward: list[int] = []
    i, j = int(w.queue_head), int(w.queue_tail)
    while i != UNKNOWN:
        forward, backward = [*forward, i], [j, *backward]
        i, j = int(requests[i].queue_next), int(requests[j].queue_prev)
    assert forward == backward
    assert j == UNKNOWN
    assert len(forward) == w.num_waiting
    return forward


def put_back(w: Any, requests: Any, i: int) -> None:
    uncompiled(queue_return)(w, requests, i, REQUEUE_ARRIVAL)
    requests[i].status = WAITING


def test_requests_return_in_order_of_arrival() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(2, 40))
        state = rng.choice(
            4, n, p=rng.dirichlet(np.ones(4))
        )  # waits here, waits elsewhere, is active, has finished
        w, requests = queue_of(np.flatnonzero(state == 0).tolist(), n)
        requests["worker"][state == 1] = 1
        requests["status"][state == 1] = WAITING
        requests["status"][np.flatnonzero(state == 0)[::3]] = ADMITTING  # still in the queue
        expected = np.flatnonzero(state == 0).tolist()
        requests["status"][state == 2] = ACTIVE
        for i in rng.permutation(np.flatnonzero(state == 2)).tolist():
            put_back(w, requests, i)
            expected = sorted([*expected, i])
            assert listed(w, requests) == expected


@pytest.mark.parametrize(
    ("waiting", "i", "steps"),
    [
        (range(0, 1000, 2), 501, 0),  # the next by arrival waits
        (range(0, 1000, 10), 501, 8),  # the ninth after it does
        ([*range(10), *range(500, 1000)], 20, 10),  # ten older ones from the head; 480 have finished since
        ([*range(500), *range(990, 1000)], 900, 10),  # ten younger ones from the tail
        (range(10, 1000), 3, 0),  # the oldest
        (range(900), 950, 0),  # the youngest
    ],
)
def test_insertion_searches_from_the_nearest_side(waiting: Any, i: int, steps: int) -> None:
    w, requests = queue_of(list(waiting), 1000)
    put_back(w, requests, i)
    assert listed(w, requests) == sorted([*waiting, i])
    assert w.total_queue_steps == steps


@pytest.mark.parametrize(("role", "received"), [(ROLE_DECODE, 0), (ROLE_MIXED, 1)])
def test_in_a_queue_of_another_order_the_first_younger_request_counts(role: int, received: int) -> None:
    w, requests = queue_of([4, 2, 7, 1, 6], 10)
    w.role, w.total_received = role, received
    put_back(w, requests, 5)
    assert listed(w, requests) == [4, 2, 5, 7, 1, 6]
