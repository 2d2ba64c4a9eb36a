"""Runs of the trials of a search: points of a plan on the requests of the seeds, here or in other processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from kvgym.errors import KVGymError
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


class _Runner:
    """Runs points of a plan on the tables of the seeds; made anew in each process."""

    def __init__(
        self,
        scenario: Scenario,
        tables: tuple[RequestTable, ...],
        seeds: tuple[int, ...],
        plan: SearchPlan,
        metric: str,
    ) -> None:
        self.scenario, self.tables, self.seeds, self.plan, self.metric = scenario, tables, seeds, plan, metric
        self.system = scenario.make_system()

    def run(self, point: dict[str, Any], k: int) -> _Outcome:
        """Return the metric on seed number ``k``."""
        seed = self.seeds[k]
        try:
            policy, router = self.plan.make(point), self.scenario.make_router()
            result = simulate(self.system, self.tables[k], policy, router=router, seed=seed)
        except KVGymError as error:
            return _Outcome(math.nan, 0, f"seed {seed}: {error}")
        metrics = compute_metrics(result)
        value = metrics[self.metric]
        nothing = "" if math.isfinite(value) else f"seed {seed}: the run has no {self.metric}"
        return _Outcome(value, int(metrics["finished"]), nothing)


_runner: _Runner | None = None  # of a worker process


def _start_worker(*arguments: Any) -> None:
    global _runner
    _runner = _Runner(*arguments)


def _work(task: tuple[dict[str, Any], int]) -> _Outcome:
    assert _runner is not None
    return _runner.run(*task)


class Bench:
    """Turns points into trials, here or in a pool of processes, and counts the runs."""

    def __init__(
        self,
        scenario: Scenario,
        tables: tuple[RequestTable, ...],
        seeds: tuple[int, ...],
        plan: SearchPlan,
        metric: str,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self.plan, self.metric = plan, metric
        self.num_requests = sum(len(table) for table in tables)
        self._arguments = (scenario, tables, seeds, plan, metric)
        self._seeds, self._progress, self._done, self._total = len(seeds), progress, 0, 0
        self._runner = _Runner(*self._arguments)
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            self._pool = ProcessPoolExecutor(
                workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=self._arguments
            )

    def __enter__(self) -> Bench:
        """Return the bench; its processes end with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

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
        if self._pool is None:
            outcomes: Iterator[_Outcome] = itertools.starmap(self._runner.run, tasks)
        else:
            outcomes = self._pool.map(_work, tasks)
        collected = []
        try:
            for (point, _), outcome in zip(tasks, outcomes, strict=True):
                collected.append(outcome)
                self._done += 1
                if self._progress is not None:
                    self._progress(self.plan.spec(point), self._done, self._total)
        except BrokenProcessPool:
            raise KVGymError(
                "a worker process has ended early; in a script, call tune under "
                'if __name__ == "__main__":, or with workers=1'
            ) from None
        return collected

    def _trial(self, point: dict[str, Any], outcomes: Sequence[_Outcome]) -> Trial:
        values, finished, errors = zip(*outcomes, strict=True)
        error = next(filter(None, errors), "")
        mean = math.nan if error else float(np.mean(values))
        return Trial(self.plan.spec(point), point, mean, values, finished, error)
