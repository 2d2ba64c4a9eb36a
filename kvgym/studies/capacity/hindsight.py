"""Plans of a fleet that a search finds on the very requests that they then serve: a reference, not a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvgym.baselines.autoscalers.given import Plan, Steps
from kvgym.errors import ConfigError
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.policies.scaling import Autoscaler
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

STEP = 60.0
"""Seconds for which a plan keeps a size."""

EFFORT = 150
"""Runs of a search."""


@dataclass(frozen=True)
class FleetRuns:
    """Runs of a fleet on the same requests.

    Attributes:
        system: the fleet.
        table: the requests.
        policy: the scheduler of each worker.
        router: the router.
        seed: seed of policies, router and start-up times.
    """

    system: System
    table: RequestTable
    policy: str | Policy
    router: str | Router
    seed: int = 0

    @classmethod
    def of(cls, scenario: Scenario, seed: int) -> FleetRuns:
        """Return the runs of a scenario with its first policy."""
        table = scenario.make_workload().sample(seed)
        return cls(scenario.make_system(), table, scenario.policies[0], scenario.router, seed)

    @property
    def fleet(self) -> Fleet:
        """The fleet's settings."""
        if self.system.fleet is None:
            raise ConfigError("the system has no fleet: no group of workers with most")
        return self.system.fleet

    def starting_with(self, sizes: Sequence[int]) -> FleetRuns:
        """Return the runs with other sizes at the start."""
        pools = tuple(replace(pool, count=n) for pool, n in zip(self.fleet.pools, sizes, strict=True))
        return replace(self, system=replace(self.system, fleet=replace(self.fleet, pools=pools)))

    def play(self, autoscaler: str | Autoscaler | None = None) -> SimulationResult:
        """Return the run with an autoscaler."""
        return simulate(
            self.system, self.table, self.policy, router=self.router, autoscaler=autoscaler, seed=self.seed
        )

    def metrics(self, autoscaler: str | Autoscaler | None = None) -> dict[str, float]:
        """Return the metrics of the run with an autoscaler."""
        return compute_metrics(self.play(autoscaler))


def plan_in_hindsight(
    runs: FleetRuns,
    first: str | Autoscaler,
    cost: Callable[[dict[str, float]], float] = lambda metrics: metrics["fleet_cost"],
    *,
    step: float = STEP,
    effort: int = EFFORT,
) -> tuple[Steps, dict[str, float]]:
    """Search for the targets over time with the lowest cost on some requests.

    It begins with the targets of an autoscaler, and adds or takes away a worker for spans of time, long ones first, as
    long as that is cheaper. Spans begin at multiples of ``step``.

    Args:
        runs: the fleet and the requests.
        first: an autoscaler to begin with.
        cost: what is to be low, from the metrics of a run.
        step: seconds of the shortest span.
        effort: most runs.

    Returns:
        The plan, and the metrics of its run.
    """
    result = runs.play(first)
    record = result.fleet
    assert record is not None
    blocks = max(1, math.ceil(float(runs.table.arrival_time[-1]) / step))
    times, targets = [time for time, _ in record.targets], np.array([sizes for _, sizes in record.targets])
    # The most of each block, so that the plan orders no later than its model did.
    edges = np.arange(blocks + 1) * step
    starts = np.searchsorted(times, edges[:-1], side="right") - 1
    ends = np.maximum(np.searchsorted(times, edges[1:], side="left"), starts + 1)
    sizes = np.array([targets[a:b].max(axis=0) for a, b in zip(starts, ends, strict=True)])
    found = runs.metrics(_plan(sizes, step))
    best, left, better = cost(found), effort - 1, True
    while better and left > 0:
        better = False
        for change in _changes(blocks, sizes.shape[1]):
            tried = _limited(sizes + change, runs.fleet)
            if np.array_equal(tried, sizes):
                continue
            if left == 0:
                break
            left -= 1
            metrics = runs.metrics(_plan(tried, step))
            if cost(metrics) < best:
                sizes, found, best, better = tried, metrics, cost(metrics), True
    return _steps(sizes, step), found


def _changes(blocks: int, pools: int) -> Iterator[NDArray[np.int64]]:
    """Yield changes of a plan: a worker fewer or more of a pool for a span, long spans first, (blocks, pools)."""
    length = blocks
    while True:
        for start in range(0, blocks, length):
            for pool in range(pools):
                for sign in (-1, 1):
                    change = np.zeros((blocks, pools), np.int64)
                    change[start : start + length, pool] = sign
                    yield change
        if length == 1:
            return
        length = (length + 1) // 2


def _limited(sizes: NDArray[np.int64], fleet: Fleet) -> NDArray[np.int64]:
    low, high = ([getattr(pool, name) for pool in fleet.pools] for name in ("least", "most"))
    return np.clip(sizes, low, high)


def _steps(sizes: NDArray[np.int64], step: float) -> Steps:
    """Return the times at which a plan changes, and its sizes from then on."""
    kept = [0, *(np.flatnonzero((sizes[1:] != sizes[:-1]).any(axis=1)) + 1).tolist()]
    return tuple((k * step, tuple(sizes[k].tolist())) for k in kept)


def _plan(sizes: NDArray[np.int64], step: float) -> Plan:
    return Plan(file=_steps(sizes, step))
