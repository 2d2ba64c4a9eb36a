"""Good schedules in slotted time by local search over orders: an upper bound on the optimum."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike

from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests
from kvgym.theory.hindsight.slotted.search_kernels import END, LONGEST, TOTAL, anneal, place

COOLING = 0.02  # last temperature / first
CHUNK = 50_000  # tries per draw of random numbers


class Goal(IntEnum):
    """What to minimise, in slots."""

    TOTAL = TOTAL  # total latency
    END = END  # the last completion
    LONGEST = LONGEST  # the longest latency

    def reached_by(self, requests: SlottedRequests, starts: ArrayLike) -> int:
        """Return what a schedule reaches."""
        done = np.asarray(starts, np.int64) + requests.output
        if self is Goal.END:
            return int(done.max())
        latency = done - requests.arrival
        return int(latency.sum() if self is Goal.TOTAL else latency.max())


def insert_in_order(requests: SlottedRequests, order: ArrayLike, goal: Goal = Goal.TOTAL) -> Ints:
    """Return the schedule in which each request, in this order, starts where it fits first, int64 (n,).

    Args:
        requests: the requests.
        order: their ids, (n,).
        goal: does not affect the schedule.
    """
    starts = np.zeros(len(requests), np.int64)
    ids, delay = np.array(order, np.int64), np.zeros(len(requests), np.int64)
    place(ids, *_columns(requests, delay), int(goal), _scratch(requests), starts)
    return starts


def local_search(
    requests: SlottedRequests,
    goal: Goal = Goal.TOTAL,
    *,
    rng: np.random.Generator,
    tries: int = 50_000,
    best: ArrayLike | None = None,
) -> Ints:
    """Return the best schedule found by simulated annealing over orders of insertion and delays, int64 (n,).

    It begins with the best of these orders: of ``best``, ascending outputs, peaks and volumes, arrivals. The
    temperature falls from a tenth of the mean latency (one slot, for the other goals) to a fiftieth of that. Inserting
    at the first fit does not reach every schedule: a request may have to wait although there is room, so that its
    memory is small where another needs more. Hence the delays.

    Args:
        requests: the requests, at least one.
        goal: what to minimise.
        rng: the random generator; equal generators give equal schedules.
        tries: number of changes tried; each takes about n times the slots of a request, in nanoseconds.
        best: a known schedule, (n,), checked; the result is never worse.

    Raises:
        ConfigError: ``best`` is not a schedule of these requests.
    """
    orders = [np.argsort(key, kind="stable") for key in _keys(requests)]
    found = [insert_in_order(requests, order) for order in orders]
    if best is not None:
        given = requests.check(best)
        found.append(given)
        orders.append(np.lexsort((requests.output, given)))
        found.append(insert_in_order(requests, orders[-1]))
    schedule = min(found, key=lambda starts: goal.reached_by(requests, starts))
    inserted = [goal.reached_by(requests, insert_in_order(requests, order)) for order in orders]
    order = np.ascontiguousarray(orders[int(np.argmin(inserted))], np.int64)
    if len(requests) < 2:
        return schedule
    n, scratch = len(requests), _scratch(requests)
    columns = _columns(requests, np.zeros(n, np.int64))
    arrays = (np.zeros(n, np.int64), np.zeros(n, np.int64))
    hot = goal.reached_by(requests, schedule) / (10 * n) if goal is Goal.TOTAL else 1.0
    for begin in range(0, tries, CHUNK):
        end = min(begin + CHUNK, tries)
        heat = [hot * COOLING ** (at / tries) for at in (begin, end)]
        better = np.zeros(n, np.int64)
        uniforms = rng.random((end - begin, 4))
        anneal(order, *columns, int(goal), scratch, *arrays, better, uniforms, *heat)
        schedule = min(schedule, better, key=lambda starts: goal.reached_by(requests, starts))
    return schedule


def _keys(requests: SlottedRequests) -> tuple[Ints, ...]:
    return (requests.output, requests.peak, requests.volume, requests.arrival)


def _columns(requests: SlottedRequests, delay: Ints) -> tuple[Ints, Ints, Ints, Ints, int]:
    return requests.arrival, delay, requests.prompt, requests.output, requests.memory


def _scratch(requests: SlottedRequests) -> Ints:
    return np.zeros(requests.end_of_any + 3 * int(requests.output.max(initial=0)) + 2, np.int64)
