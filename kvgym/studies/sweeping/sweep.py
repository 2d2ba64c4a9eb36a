"""Sweeps: run policies at every point of a plan, and collect the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.journal import FILE, Journal, RunKeys, has_runs, play_kept
from kvgym.experiments.marks import Mark, find_marks, mark_notes, measure_marks
from kvgym.experiments.notes import merge_point_notes
from kvgym.experiments.result_files import run_context, write_json, write_table
from kvgym.experiments.runs import PlannedRun, Played, Player
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import Estimate, mean_interval
from kvgym.metrics.catalogue import metric_info, metric_names
from kvgym.policies.policy import REFERENCE_ONLY, Policy, clairvoyant_labels
from kvgym.studies.sweeping.fields import set_fields, with_hyperparameters
from kvgym.studies.sweeping.plan import SweepPlan, make_plan
from kvgym.utils.arguments import explained
from kvgym.utils.execution import make_executor
from kvgym.utils.files import write_text
from kvgym.utils.frame import Frame
from kvgym.utils.reading import mapping, parse_json, read_bytes

PLAN_FILE = "plan.json"

Progress = Callable[[str, int, int], None]
Place = tuple[int, int, int]
"""Index of the point, of the policy and of the seed."""


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep.

    Attributes:
        plan: the plan.
        points: values by swept field.
        policies: labels.
        seeds: seeds, the same at every point.
        runs: results by (index of the point, index of the policy, index of the seed).
        scenarios: the scenario of each point, as run.
        num_distinct: number of different runs; equal runs count once.
        num_new: number of runs that were executed; the others were known.
    """

    plan: SweepPlan
    points: tuple[dict[str, Any], ...]
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Mapping[Place, Played]
    scenarios: tuple[Scenario, ...]
    num_distinct: int
    num_new: int

    @property
    def fields(self) -> tuple[str, ...]:
        """The swept fields, in order."""
        return self.plan.swept

    def values(self, point: int, policy: str, metric: str) -> NDArray[np.float64]:
        """Return a metric of a policy at a point by seed, shape (seeds,); NaN for failed runs.

        Args:
            point: index in :attr:`points`.
            policy: label.
            metric: see :mod:`kvgym.metrics`.

        Raises:
            KeyError: the metric does not exist.
        """
        metric_info(metric)
        place = self.policies.index(policy)
        return np.array(
            [self.runs[point, place, k].record.metrics[metric] for k in range(len(self.seeds))], np.float64
        )

    def estimate(self, point: int, policy: str, metric: str) -> Estimate:
        """Return the mean of a metric over seeds, with its confidence interval; arguments as for :meth:`values`."""
        return mean_interval(self.values(point, policy, metric))

    def marks(self, point: int, policy: str) -> tuple[Mark, ...]:
        """Return the marks of a policy at a point; arguments as for :meth:`values`."""
        place = self.policies.index(policy)
        return find_marks([self.runs[point, place, k] for k in range(len(self.seeds))])

    def errors(self) -> list[str]:
        """Return a line for every policy and point that failed on a seed, with the error."""
        found = []
        for i, point in enumerate(self.points):
            for j, policy in enumerate(self.policies):
                failed = [k for k in range(len(self.seeds)) if self.runs[i, j, k].record.error]
                if failed:
                    first = self.runs[i, j, failed[0]].record
                    at = ", ".join(f"{name} = {value}" for name, value in point.items())
                    many = f" ({len(failed)} of {len(self.seeds)} seeds)" if len(failed) > 1 else ""
                    found.append(
                        f"{policy}{f' at {at}' if at else ''}{many}: seed {first.seed}: {first.error}"
                    )
        return found

    def notes(self) -> list[str]:
        """Return which policies are clairvoyant, notes on marks and workloads, and which defaults depend on the point.

        Each sentence appears once, with its points and seeds unless it applies to all.
        """
        known = [f"{p} is {REFERENCE_ONLY}." for p in self.policies if p in clairvoyant_labels(self.policies)]
        by_label = {
            label: [[self.runs[i, j, k] for k in range(len(self.seeds))] for i in range(len(self.points))]
            for j, label in enumerate(self.policies)
        }
        notes = [
            ((i, self.seeds[k]), note) for (i, _, k), played in self.runs.items() for note in played.notes
        ]
        specs = self.plan.policies or self.scenarios[0].policies
        policies = {
            label: with_hyperparameters(spec, self.plan.fixed)
            for label, spec in zip(self.policies, specs, strict=True)
        }
        return [
            *known,
            *mark_notes(by_label, policies),
            *merge_point_notes(notes, len(self.points), len(self.seeds)),
        ]

    def to_frame(self) -> Frame:
        """Return one row per point, policy and seed: fields, error, marks of the policy at the point, all metrics."""
        order = sorted(self.runs)
        marks = {
            (i, j): " ".join(mark.name for mark in self.marks(i, policy))
            for i in range(len(self.points))
            for j, policy in enumerate(self.policies)
        }
        swept = {name: [self.points[i][name] for i, _, _ in order] for name in self.fields}
        columns: dict[str, Any] = {
            **swept,
            "policy": [self.policies[j] for _, j, _ in order],
            "seed": [self.seeds[k] for _, _, k in order],
            "error": [self.runs[place].record.error for place in order],
            "marks": [marks[i, j] for i, j, _ in order],
            "num_requests": [self.runs[place].num_requests for place in order],
        }
        for name in metric_names():
            columns[name] = [self.runs[place].record.metrics[name] for place in order]
        columns |= swept  # a swept number of requests replaces the number drawn
        return Frame(columns)

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``runs.csv``, ``summary.json`` and ``config.json`` into a folder; with PyArrow ``runs.parquet``.

        Args:
            folder: created if missing.
            command: the command line, recorded in ``config.json``.

        Returns:
            The folder.
        """
        path = write_table(folder, "runs", self.to_frame())
        summary = [
            {
                **point,
                "policy": policy,
                "marks": [mark.name for mark in self.marks(i, policy)],
                **{name: vars(self.estimate(i, policy, name)) for name in self.plan.metrics},
            }
            for i, point in enumerate(self.points)
            for policy in self.policies
        ]
        write_json(path / "summary.json", {"points": summary, "errors": self.errors(), "notes": self.notes()})
        scenarios = [scenario.model_dump(mode="json") for scenario in self.scenarios]
        config = {"plan": self.plan.model_dump(mode="json"), "scenarios": scenarios, **run_context(command)}
        write_json(path / "config.json", config)
        return path


@explained
def sweep(
    plan: SweepPlan | Mapping[str, Any],
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Run policies at every point of a plan.

    A run is identified by a hash of everything that it depends on: scenario, files, policy with all hyperparameters,
    seed, and the code of the library. Equal runs are executed once, and runs saved in the folder are not repeated.

    Args:
        plan: the plan.
        folder: folder that saves each run when it finishes; None = not saved.
        resume: continue in a folder with runs; with another plan, the runs that both plans share are kept.
        jobs: processes to run on, see :func:`kvgym.utils.execution.make_executor`; any number gives the same result.
            Unless it is 1, a script must call this under ``if __name__ == "__main__":``.
        ray: run on a Ray cluster instead, see the same function.
        progress: called after each run, and once at the start, with the run, the completed runs and the total.

    Raises:
        ConfigError: the plan is wrong, or the folder has runs and ``resume`` is False; nothing has been run.
        KVGymError: a scenario of the plan is contradictory. Errors that only a run can detect, such as requests that do
            not fit, are recorded with the run, and the other runs continue.
    """
    chosen = make_plan(plan)
    chosen.check()
    laid_out = _lay_out(chosen)

    def play(journal: Journal | None) -> SweepResult:
        return _play(laid_out, journal, jobs, ray, progress)

    if folder is None:
        return play(None)
    if not resume and has_runs(folder):
        raise ConfigError(f"{folder} has runs of a sweep; resume it, or choose another folder")
    path = Path(folder) / PLAN_FILE
    new = not path.exists()
    if not new and not (Path(folder) / FILE).exists():
        if not resume:
            raise ConfigError(f"{path} exists already; resume its sweep, move it, or choose another folder")
        plan_of(folder)  # raises an error for another file, which would be replaced
    with Journal(folder) as journal:
        # Python's JSON supports infinity, which a horizon may be.
        write_text(path, json.dumps(chosen.model_dump(mode="json"), indent=2) + "\n")
        try:
            return play(journal)
        except BaseException:
            if new and not journal.known:  # nothing to resume
                path.unlink()
            raise


def plan_of(folder: str | Path) -> SweepPlan:
    """Return the plan of a folder with runs of a sweep.

    Raises:
        ConfigError: the folder has no plan.
    """
    path = Path(folder) / PLAN_FILE
    if not path.is_file():
        raise ConfigError(f"{folder}: not the folder of a sweep, as it has no {PLAN_FILE}")
    where = f"sweep {path}"
    return make_plan(mapping(parse_json(read_bytes(path, "sweep"), where), where), str(path))


class _Layout(NamedTuple):
    """The runs of a plan and their keys by (point, policy, seed) index, and the result without them."""

    runs: dict[Place, PlannedRun]
    keys: dict[Place, str]
    result: SweepResult


def _lay_out(plan: SweepPlan) -> _Layout:
    """Return the runs of a plan; every error in the plan is raised here."""
    base, points = plan.make_scenario(), plan.make_points()
    specs = plan.policies or base.policies
    labels = tuple(label_of(with_hyperparameters(spec, plan.fixed)) for spec in specs)
    if len(set(labels)) < len(labels):
        raise ConfigError(f"policies {', '.join(labels)}: one is listed twice")
    scenarios: list[Scenario] = []
    policies: list[list[Policy]] = []
    keys = RunKeys()
    for point in points:
        values = {**plan.fixed, **point}
        try:
            scenario = set_fields(base, values).resolved()
            scenario.make_system()
            keys.setting(scenario)
            policies.append([with_hyperparameters(spec, values) for spec in specs])
            scenario.make_router()
        except ConfigError as error:
            at = ", ".join(f"{name} = {value}" for name, value in point.items())
            raise ConfigError(f"at {at}: {error}" if at else str(error)) from None
        scenarios.append(scenario)
    seeds = plan.all_seeds(scenarios)
    runs = {
        (i, j, k): PlannedRun(scenario, policy, None, seed, labels[j], measure=measure_marks)
        for i, scenario in enumerate(scenarios)
        for k, seed in enumerate(seeds)
        for j, policy in enumerate(policies[i])
    }
    result = SweepResult(plan, points, labels, seeds, {}, tuple(scenarios), 0, 0)
    return _Layout(runs, dict(zip(runs, keys.of([*runs.values()]), strict=True)), result)


def _play(
    laid_out: _Layout, journal: Journal | None, jobs: int | None, ray: str | None, progress: Progress | None
) -> SweepResult:
    """Return the result of a plan; equal runs are executed once."""
    distinct = {key: laid_out.runs[place] for place, key in laid_out.keys.items()}
    names, todo, total = list(distinct), list(distinct.values()), len(distinct)
    known = 0 if journal is None else len(distinct.keys() & journal.known.keys())
    found: dict[str, Played] = {}
    if progress is not None:
        progress("", known, total)
    with make_executor(Player(), jobs, ray=ray) as executor:
        for place, played in play_kept(todo, names, executor, journal):
            found[names[place]] = played
            if progress is not None and len(found) > known:
                progress(f"{todo[place].label}, seed {todo[place].seed}", len(found), total)
    runs = {place: found[key] for place, key in laid_out.keys.items()}
    return replace(laid_out.result, runs=runs, num_distinct=total, num_new=total - known)
