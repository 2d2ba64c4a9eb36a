"""Runs of the trials of a search: points of a plan on the requests of the seeds, in one or several processes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from kvgym.errors import KVGymError
from kvgym.experiments.identity import run_key, setting_key
from kvgym.experiments.journal import UNFINISHED, Journal, play_kept
from kvgym.experiments.runs import Player, Run, RunRecord
from kvgym.experiments.scenario import Scenario
from kvgym.studies.capacity.targets import Target
from kvgym.studies.tuning.result import Trial
from kvgym.studies.tuning.search_space import SearchPlan
from kvgym.utils.execution import make_executor

Progress = Callable[[str, int, int], None]


class _Outcome(NamedTuple):
    value: float
    finished: int
    error: str
    others: tuple[float, ...] = ()


class TrialRunner:
    """Turns points into trials, in one or several processes, and counts the runs.

    Args:
        scenario: the scenario, with one memory for all seeds.
        player: executes the runs, and caches the requests of the seeds.
        seeds: the seeds.
        plan: the search plan.
        metric: the metric to optimise.
        num_requests: total number of requests of all seeds.
        targets: bounds on other metrics.
        also: further metrics to report.
        folder: folder that saves each run when it finishes; None = not saved.
        jobs: processes, see :func:`kvgym.utils.execution.make_executor`.
        ray: run on a Ray cluster instead, see the same function.
        progress: called after each run with its configuration, the number of completed runs, and the maximum number.
    """

    def __init__(
        self,
        scenario: Scenario,
        player: Player,
        seeds: tuple[int, ...],
        plan: SearchPlan,
        metric: str,
        *,
        num_requests: int,
        targets: tuple[Target, ...] = (),
        also: tuple[str, ...] = (),
        folder: str | Path | None = None,
        jobs: int | None = 1,
        ray: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.plan, self.metric, self.targets, self.num_requests = plan, metric, targets, num_requests
        self._others = tuple(dict.fromkeys([*(t.metric for t in targets), *also]))
        self._scenario, self._seeds, self._progress, self._done, self._total = scenario, seeds, progress, 0, 0
        self._executor = make_executor(player, jobs, ray=ray)
        self._journal = None if folder is None else Journal(folder, UNFINISHED)
        self._setting = "" if folder is None else setting_key(scenario)

    def __enter__(self) -> TrialRunner:
        """Return the runner; its processes end with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, and unlock the folder."""
        self._executor.close()
        if self._journal is not None:
            self._journal.close()

    def expect(self, trials: int) -> None:
        """Set the maximum number of trials, for the progress."""
        self._total = trials * len(self._seeds)

    def run(self, points: Sequence[dict[str, Any]]) -> list[Trial]:
        """Run all points on the first seed, and those that did not fail there on the other seeds."""
        others = self._seeds[1:]
        first = self._outcomes([(point, self._seeds[0]) for point in points])
        left = [i for i, outcome in enumerate(first) if not outcome.error]
        self._done += (len(points) - len(left)) * len(others)
        later = iter(self._outcomes([(points[i], seed) for i in left for seed in others]))
        skipped = [_Outcome(math.nan, 0, "")] * len(others)
        return [
            self._trial(point, [head, *(skipped if head.error else itertools.islice(later, len(others)))])
            for point, head in zip(points, first, strict=True)
        ]

    def _outcomes(self, tasks: Sequence[tuple[dict[str, Any], int]]) -> list[_Outcome]:
        """Run points on seeds."""
        found: dict[int, _Outcome] = {}
        runs, keys, places = [], [], []
        router = self._scenario.make_router()
        for place, (point, seed) in enumerate(tasks):
            try:
                policy = self.plan.make(point)
            except KVGymError as error:  # values that contradict each other
                found[place] = _Outcome(math.nan, 0, f"seed {seed}: {error}")
                continue
            runs.append(Run(self._scenario, policy, None, seed, self.plan.spec(point)))
            places.append(place)
            if self._journal is not None:
                keys.append(run_key(self._setting, policy, router, seed))
        self._done += len(found)
        for number, played in play_kept(runs, keys, self._executor, self._journal):
            found[places[number]] = self._outcome(played.record)
            self._done += 1
            if self._progress is not None:
                self._progress(runs[number].label, self._done, self._total)
        return [found[place] for place in range(len(tasks))]

    def _outcome(self, record: RunRecord) -> _Outcome:
        if record.error:
            return _Outcome(math.nan, 0, f"seed {record.seed}: {record.error}")
        metrics = record.metrics
        value = metrics[self.metric]
        nothing = "" if math.isfinite(value) else f"seed {record.seed}: the run has no {self.metric}"
        return _Outcome(
            value, int(metrics["finished"]), nothing, tuple(metrics[name] for name in self._others)
        )

    def _trial(self, point: dict[str, Any], outcomes: Sequence[_Outcome]) -> Trial:
        values, finished, errors = zip(*((o.value, o.finished, o.error) for o in outcomes), strict=True)
        error = next(filter(None, errors), "")
        spec = self.plan.spec(point)
        if error:
            return Trial(spec, point, math.nan, values, finished, error)
        means = {name: float(np.mean([o.others[k] for o in outcomes])) for k, name in enumerate(self._others)}
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
    """Return the relative violation of a bound, never zero."""
    far = abs(value - target.bound) / max(abs(target.bound), 1e-12)
    return max(far, 1e-12) if math.isfinite(far) else 1.0
