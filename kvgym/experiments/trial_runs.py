"""Runs of the trials of a search: points of a plan on the requests of the seeds, here or elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from kvgym.errors import KVGymError
from kvgym.execution import make_executor
from kvgym.experiments.capacity.targets import Target
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.search_space import SearchPlan
from kvgym.experiments.tuning_result import Trial
from kvgym.metrics import compute_metrics
from kvgym.runner import simulate
from kvgym.workloads.table import RequestTable

Progress = Callable[[str, int, int], None]


class _Outcome(NamedTuple):
    value: float
    finished: int
    error: str
    bounded: tuple[float, ...] = ()


class _Runner:
    """Runs points of a plan on the tables of the seeds; work for an executor."""

    def __init__(
        self,
        scenario: Scenario,
        tables: tuple[RequestTable, ...],
        seeds: tuple[int, ...],
        plan: SearchPlan,
        metric: str,
        targets: tuple[Target, ...] = (),
    ) -> None:
        self.scenario, self.tables, self.seeds, self.plan, self.metric = scenario, tables, seeds, plan, metric
        self.targets = targets
        self.system = scenario.make_system()

    def __call__(self, task: tuple[dict[str, Any], int], /) -> _Outcome:
        """Return the metric of a point on a seed, given by its place."""
        point, k = task
        seed = self.seeds[k]
        try:
            policy, router = self.plan.make(point), self.scenario.make_router()
            result = simulate(
                self.system, self.tables[k], policy, router=router, seed=seed, window=self.scenario.window
            )
        except KVGymError as error:
            return _Outcome(math.nan, 0, f"seed {seed}: {error}")
        metrics = compute_metrics(result)
        value = metrics[self.metric]
        nothing = "" if math.isfinite(value) else f"seed {seed}: the run has no {self.metric}"
        return _Outcome(
            value, int(metrics["finished"]), nothing, tuple(metrics[t.metric] for t in self.targets)
        )


class Bench:
    """Turns points into trials, here or in other processes, and counts the runs."""

    def __init__(
        self,
        scenario: Scenario,
        tables: tuple[RequestTable, ...],
        seeds: tuple[int, ...],
        plan: SearchPlan,
        metric: str,
        jobs: int | None,
        ray: str | None,
        progress: Progress | None,
        targets: tuple[Target, ...] = (),
    ) -> None:
        self.plan, self.metric, self.targets = plan, metric, targets
        self.num_requests = sum(len(table) for table in tables)
        self._seeds, self._progress, self._done, self._total = len(seeds), progress, 0, 0
        self._executor = make_executor(_Runner(scenario, tables, seeds, plan, metric, targets), jobs, ray=ray)

    def __enter__(self) -> Bench:
        """Return the bench; its processes end with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        self._executor.close()

    def expect(self, trials: int) -> None:
        """Say how many trials there may be, for the progress."""
        self._total = trials * self._seeds

    def run(self, points: Sequence[dict[str, Any]]) -> list[Trial]:
        """Run points on all seeds: the first one for all, the others for those that did not fail there."""
        first = self._map([(point, 0) for point in points])
        left = [i for i, outcome in enumerate(first) if not outcome.error]
        self._done += (len(points) - len(left)) * (self._seeds - 1)
        tasks = [(points[i], k) for i in left for k in range(1, self._seeds)]
        others = iter(self._map(tasks))
        skipped = [_Outcome(math.nan, 0, "")] * (self._seeds - 1)
        return [
            self._trial(
                point, [head, *(skipped if head.error else itertools.islice(others, self._seeds - 1))]
            )
            for point, head in zip(points, first, strict=True)
        ]

    def _map(self, tasks: Sequence[tuple[dict[str, Any], int]]) -> list[_Outcome]:
        """Run points on seeds, each given by its place."""
        found: dict[int, _Outcome] = {}
        for place, outcome in self._executor.stream(tasks):
            found[place] = outcome
            self._done += 1
            if self._progress is not None:
                self._progress(self.plan.spec(tasks[place][0]), self._done, self._total)
        return [found[place] for place in range(len(tasks))]

    def _trial(self, point: dict[str, Any], outcomes: Sequence[_Outcome]) -> Trial:
        values, finished, errors = zip(*((o.value, o.finished, o.error) for o in outcomes), strict=True)
        error = next(filter(None, errors), "")
        spec = self.plan.spec(point)
        if error:
            return Trial(spec, point, math.nan, values, finished, error)
        means = {
            t.metric: float(np.mean([o.bounded[k] for o in outcomes])) for k, t in enumerate(self.targets)
        }
        missed = [f"{t} ({means[t.metric]:.4g})" for t in self.targets if not t.met(means)]
        return Trial(
            spec,
            point,
            float(np.mean(values)),
            values,
            finished,
            f"misses {', '.join(missed)}" if missed else "",
            means,
            sum(_excess(t, means[t.metric]) for t in self.targets if not t.met(means)),
        )


def _excess(target: Target, value: float) -> float:
    """Return how far a bound is missed, as a share of it and never zero."""
    far = abs(value - target.bound) / max(abs(target.bound), 1e-12)
    return max(far, 1e-12) if math.isfinite(far) else 1.0
