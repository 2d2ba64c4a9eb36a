"""Runs of the trials of a search: points of a plan on the requests of the seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvgym.errors import KVGymError
from kvgym.experiments.journal import Play
from kvgym.experiments.runs import PlannedRun, RunRecord
from kvgym.experiments.scenario import Scenario
from kvgym.studies.capacity.targets import Target
from kvgym.studies.tuning.result import Trial
from kvgym.studies.tuning.search_space import SearchPlan

Progress = Callable[[str, int, int], None]


Points = Generator[Sequence[dict[str, Any]], Sequence[Trial], None]
"""A source of points: yields those to run next, and receives their trials."""


class _Outcome(NamedTuple):
    """A point on a seed: why it does not count, or "", and the metrics of its run."""

    error: str
    metrics: Mapping[str, float] = {}


class TrialRunner:
    """Turns points of a search plan into trials, and counts the runs.

    Args:
        scenario: the scenario, with one memory for all seeds.
        seeds: the seeds.
        plan: the search plan.
        metric: the metric to optimise.
        play: executes the runs, see :func:`kvgym.experiments.journal.kept_runs`.
        targets: bounds on other metrics.
        also: further metrics to report.
        progress: called after each run with its configuration, the number of completed runs, and the maximum number.
    """

    def __init__(
        self,
        scenario: Scenario,
        seeds: tuple[int, ...],
        plan: SearchPlan,
        metric: str,
        play: Play,
        *,
        targets: tuple[Target, ...] = (),
        also: tuple[str, ...] = (),
        progress: Progress | None = None,
    ) -> None:
        self._plan, self._metric = plan, metric
        self._scenario, self._seeds, self._play, self._targets = scenario, seeds, play, targets
        self._others = tuple(dict.fromkeys([*(t.metric for t in targets), *also]))
        self._progress, self._done, self._total = progress, 0, 0

    def follow(self, source: Points, most: int) -> list[Trial]:
        """Run all points of a source.

        Args:
            source: the source.
            most: maximum number of its points, for the progress.
        """
        self._total = most * len(self._seeds)
        found: list[Trial] = []
        points = next(source, None)
        while points is not None:
            trials = self._run(points)
            found += trials
            try:
                points = source.send(trials)
            except StopIteration:
                points = None
        return found

    def _run(self, points: Sequence[dict[str, Any]]) -> list[Trial]:
        """Run all points on the first seed, and those that did not fail there on the other seeds."""
        others = self._seeds[1:]
        first = self._outcomes([(point, self._seeds[0]) for point in points])
        left = [i for i, outcome in enumerate(first) if not outcome.error]
        self._done += (len(points) - len(left)) * len(others)
        later = iter(self._outcomes([(points[i], seed) for i in left for seed in others]))
        skipped = [_Outcome("")] * len(others)
        return [
            self._trial(point, [head, *(skipped if head.error else itertools.islice(later, len(others)))])
            for point, head in zip(points, first, strict=True)
        ]

    def _outcomes(self, tasks: Sequence[tuple[dict[str, Any], int]]) -> list[_Outcome]:
        """Run points on seeds."""
        found: dict[int, _Outcome] = {}
        runs, places = [], []
        for place, (point, seed) in enumerate(tasks):
            try:
                policy = self._plan.make(point)
            except KVGymError as error:  # values that contradict each other
                found[place] = _Outcome(f"seed {seed}: {error}")
                continue
            runs.append(PlannedRun(self._scenario, policy, None, seed, self._plan.spec(point)))
            places.append(place)
        self._done += len(found)
        for number, played in self._play(runs):
            found[places[number]] = self._outcome(played.record)
            self._done += 1
            if self._progress is not None:
                self._progress(runs[number].label, self._done, self._total)
        return [found[place] for place in range(len(tasks))]

    def _outcome(self, record: RunRecord) -> _Outcome:
        if record.error:
            return _Outcome(f"seed {record.seed}: {record.error}")
        has_value = math.isfinite(record.metrics[self._metric])
        return _Outcome(
            "" if has_value else f"seed {record.seed}: the run has no {self._metric}", record.metrics
        )

    def _trial(self, point: dict[str, Any], outcomes: Sequence[_Outcome]) -> Trial:
        values = tuple(o.metrics.get(self._metric, math.nan) for o in outcomes)
        finished = tuple(int(o.metrics.get("finished", 0)) for o in outcomes)
        error = next(filter(None, (o.error for o in outcomes)), "")
        spec = self._plan.spec(point)
        if error:
            return Trial(spec, point, math.nan, values, finished, error)
        means = {name: float(np.mean([o.metrics[name] for o in outcomes])) for name in self._others}
        missed = [t for t in self._targets if not t.met(means)]
        named = ", ".join(f"{t} ({means[t.metric]:.4g})" for t in missed)
        return Trial(
            spec,
            point,
            float(np.mean(values)),
            values,
            finished,
            f"misses {named}" if missed else "",
            means,
            sum(_excess(t, means[t.metric]) for t in missed),
        )


def _excess(target: Target, value: float) -> float:
    """Return the relative violation of a bound, never zero."""
    far = abs(value - target.bound) / max(abs(target.bound), 1e-12)
    return max(far, 1e-12) if math.isfinite(far) else 1.0
