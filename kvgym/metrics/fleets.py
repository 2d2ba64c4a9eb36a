"""Metrics of fleets: what workers cost, and how they follow the load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.metrics.measured import Measured, ratio
from kvgym.simulator.cluster.changing import FleetRecord
from kvgym.simulator.cluster.members import DRAINS, OFF, STARTING, UP
from kvgym.simulator.tables import ABORTED, FAILED, SHED

HOUR = 3600.0


def gpu_hours(run: Measured) -> float:
    """Return the billed GPU-hours."""
    return float(run.fleet.gpu_seconds().sum()) / HOUR


def fleet_cost(run: Measured) -> float:
    """Return the GPU-hours by their prices, with the penalty for each request that has arrived and missed a target."""
    fleet = run.fleet
    prices = np.array([fleet.fleet.pools[g].price for g in fleet.fleet.pool_of])
    met = run.good(True)
    missed = 0.0 if math.isnan(met) else run.arrived.sum() - met
    return float((prices * fleet.gpu_seconds()).sum() + fleet.fleet.penalty * missed) / HOUR


def ready_workers(run: Measured) -> float:
    """Return the time mean of the ready workers."""
    fleet = run.fleet
    return ratio(fleet.seconds_in(UP).sum(), fleet.end)


def time_to_scale(run: Measured) -> float:
    """Return the mean time from the order to start a worker until it was ready; NaN if none has started."""
    times = [ended - began for _, began, ended, state in _starts(run.fleet) if state == UP]
    return ratio(sum(times), len(times))


def cancelled_time(run: Measured) -> float:
    """Return the seconds of starts that were cancelled."""
    return float(sum(ended - began for _, began, ended, state in _starts(run.fleet) if state == OFF))


def late_time(run: Measured) -> float:
    """Return the seconds in which a pool had fewer ready workers than its target."""
    fleet = run.fleet
    times, ready = ready_by_pool(fleet)
    at = np.searchsorted([time for time, _ in fleet.targets], times, side="right") - 1
    targets = np.array([target for _, target in fleet.targets])[np.maximum(at, 0)]
    late = (ready < targets).any(axis=1)
    return float((late * np.diff(times, append=fleet.end)).sum())


def wasted_warm_time(run: Measured) -> float:
    """Return the share of billed time in which workers could serve and no batch ran."""
    fleet = run.fleet
    serving = fleet.seconds_in(UP, DRAINS)
    idle = np.maximum(0.0, serving - run.result.worker["busy_time"])
    return ratio(idle.sum(), fleet.seconds_in(STARTING, UP, DRAINS).sum())


def unrouted_time(run: Measured) -> float:
    """Return the seconds that arriving requests spent outside because no place was open to them, summed."""
    fleet = run.fleet
    system = run.result.system
    pools = fleet.fleet.pool_of
    first = [system.workers[pools.index(g)].role != "decode" for g in range(len(fleet.fleet.pools))]
    times, ready = ready_by_pool(fleet)
    closed = ready[:, first].sum(axis=1) == 0
    edges = np.flatnonzero(
        np.diff(closed, prepend=False, append=False)
    )  # begin and end of each closed stretch
    bounds = np.append(times, fleet.end)
    arrival, total = run.table.arrival_time, 0.0
    for begin, end in bounds[edges].reshape(-1, 2):
        inside = arrival[(arrival >= begin) & (arrival < end)]
        total += float((end - inside).sum())
    return total


def target_changes(run: Measured) -> float:
    """Return how often the targets changed."""
    return float(len(run.fleet.targets) - 1)


def aborted(run: Measured) -> float:
    """Return how many requests users gave up."""
    return float((run.records["status"] == ABORTED).sum())


def failed(run: Measured) -> float:
    """Return how many requests ended with their worker."""
    return float((run.records["status"] == FAILED).sum())


def shed(run: Measured) -> float:
    """Return how many requests the router refused; NaN without a fleet, unless it refused any."""
    count = float((run.records["status"] == SHED).sum())
    return math.nan if run.result.fleet is None and count == 0 else count


def retries(run: Measured) -> float:
    """Return how often requests came again."""
    return float(sum(attempts - 1 for _, attempts in run.fleet.attempts))


def lost_tokens(run: Measured) -> float:
    """Return the KV tokens of requests that were lost with their workers."""
    return float(run.fleet.lost_tokens)


def goodput_per_gpu_hour(run: Measured) -> float:
    """Return the requests that met all of their targets for each GPU-hour; NaN without targets."""
    return ratio(run.good(True), gpu_hours(run))


def _starts(fleet: FleetRecord) -> Iterator[tuple[int, float, float, int]]:
    """Yield place, begin, end and next state of every start that has ended."""
    begun: dict[int, float] = {}
    for time, place, state in fleet.changes:
        if place in begun:
            yield place, begun.pop(place), time, state
        if state == STARTING:
            begun[place] = time


def ready_by_pool(fleet: FleetRecord) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return times, and the ready workers of each pool from then on, (times,) and (times, pools)."""
    return counts_by_pool(fleet, (UP,))


def counts_by_pool(
    fleet: FleetRecord, states: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return times, of changes of states and targets, and the workers of each pool in ``states`` from then on."""
    marks = [(change.time, change) for change in fleet.changes]
    times = sorted({0.0, *(time for time, _ in marks), *(time for time, _ in fleet.targets)})
    counts = np.zeros((len(times), len(fleet.fleet.pools)), np.int64)
    within, pool_of, j = np.zeros(fleet.fleet.num_places, np.bool_), np.array(fleet.fleet.pool_of), 0
    for row, time in enumerate(times):
        while j < len(marks) and marks[j][0] <= time:
            within[marks[j][1].place] = marks[j][1].state in states
            j += 1
        counts[row] = np.bincount(pool_of[within], minlength=counts.shape[1])
    return np.array(times), counts
