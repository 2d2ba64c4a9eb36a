"""Search the hyperparameters of a policy on training seeds, so that learned agents meet tuned baselines.

The value of the winner on the seeds it was chosen on is optimistic: compare it on others, e.g. with
:func:`kvgym.experiments.comparison.compare`, whose seeds begin at 0 where training seeds begin at :data:`FIRST_SEED`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from kvgym.errors import ConfigError, KVGymError, UnknownNameError
from kvgym.experiments.comparison import jsonable, merge_notes, run_context
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.experiments.search_space import SEARCH_SPACES, SearchPlan, Space, plan_search
from kvgym.experiments.statistics import Estimate, mean_interval, ratio_interval
from kvgym.metrics import LATENCIES, compute_metrics, metric_info, metric_names
from kvgym.policy import Policy
from kvgym.runner import check_needs, simulate
from kvgym.workloads.table import RequestTable

Progress = Callable[[str, int, int], None]

__all__ = ["FIRST_SEED", "SEARCH_SPACES", "SearchPlan", "Trial", "TuningResult", "plan_search", "tune"]

FIRST_SEED = 1000
"""The first training seed unless told otherwise; ``compare`` begins at 0, which keeps the two apart."""

OPTUNA_TRIALS = 50

# Metrics that look better when requests are left undone: compared only between runs that finished as many.
_FLATTERED = ("evictions", "recomputed_tokens", "jain_fairness")


@dataclass(frozen=True)
class Trial:
    """One configuration on all seeds.

    Attributes:
        spec: the configuration for :func:`~kvgym.policy.make_policy`; defaults are left out.
        hyperparameters: the searched ones.
        value: mean of the metric over seeds, in the metric's unit; NaN where a seed failed.
        values: the metric by seed; NaN where the run failed. What fails on the first seed runs on no other.
        finished: requests finished by seed; 0 where the run failed or there was none.
        error: why the configuration is out of the running, or "".
    """

    spec: str
    hyperparameters: dict[str, Any]
    value: float
    values: tuple[float, ...]
    finished: tuple[int, ...]
    error: str = ""


@dataclass(frozen=True)
class TuningResult:
    """The outcome of :func:`tune`.

    Attributes:
        policy: the policy as given, with the hyperparameters that stayed fixed.
        metric: what was optimised.
        scenario: the scenario as run.
        seeds: training seeds; every trial saw the same requests under each.
        trials: all trials; the first is the policy as given, the others are in the order of the search.
        space: the values searched, by hyperparameter; empty where there was nothing to search.
        search: ``"grid"`` or ``"optuna"``.
        num_requests: requests per seed.
        notes: what a reader should know, one sentence each.
        provenance: what the workload was made from.
        hyperparameters: all hyperparameters of the best trial, defaults included.
    """

    policy: str
    metric: str
    scenario: Scenario
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    space: dict[str, tuple[Any, ...]]
    search: str
    num_requests: tuple[int, ...]
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)

    @property
    def default(self) -> Trial:
        """The policy as given: the first trial."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The best trial, of equals the first; ``best.spec`` is what :func:`make_policy` takes."""
        return self.ranking()[0]

    def ranking(self) -> list[Trial]:
        """Return the trials in the running, best first, equals in the order of the search."""
        sign = 1.0 if metric_info(self.metric).lower_is_better else -1.0
        return sorted((t for t in self.trials if not t.error), key=lambda t: sign * t.value)

    def estimate(self, trial: Trial) -> Estimate:
        """Return the mean of the metric over seeds, with its 95 % interval."""
        return mean_interval(trial.values)

    def ratio(self, trial: Trial) -> Estimate:
        """Return the ratio of a trial's mean to the default's, paired by seed, with its 95 % interval.

        NaN where the default is out of the running.
        """
        nothing = (math.nan,) * len(self.seeds)
        return ratio_interval(trial.values, nothing if self.default.error else self.default.values)

    def to_frame(self) -> Any:
        """Return one row per trial as a polars DataFrame: hyperparameters, mean, values by seed, error."""
        import polars as pl

        columns: dict[str, list[Any]] = {
            "trial": list(range(len(self.trials))),
            "spec": [t.spec for t in self.trials],
        }
        for name in self.space:
            columns[name] = _column([t.hyperparameters[name] for t in self.trials])
        columns[self.metric] = [t.value for t in self.trials]
        for k, seed in enumerate(self.seeds):
            columns[f"seed_{seed}"] = [t.values[k] for t in self.trials]
        columns["finished"] = [sum(t.finished) for t in self.trials]
        columns["error"] = [t.error for t in self.trials]
        return pl.DataFrame(columns)

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``trials.csv``, ``best.json`` and ``config.json`` into ``folder``.

        Args:
            folder: created if missing.
            command: the command line that led here, kept in ``config.json``.

        Returns:
            The folder.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.to_frame().write_csv(path / "trials.csv")
        default = {"spec": self.default.spec, "error": self.default.error}
        best = {
            "spec": self.best.spec,
            "hyperparameters": self.hyperparameters,
            "metric": self.metric,
            "lower_is_better": metric_info(self.metric).lower_is_better,
            "value": vars(self.estimate(self.best)),
            "default": {**default, "value": vars(self.estimate(self.default))},
            "ratio_to_default": vars(self.ratio(self.best)),
            "trials": len(self.trials),
            "out_of_the_running": sum(bool(t.error) for t in self.trials),
            "seeds": list(self.seeds),
        }
        context = run_context(command)
        if self.search == "optuna":
            context["libraries"]["optuna"] = _import_optuna().__version__
        config = {
            "policy": self.policy,
            "metric": self.metric,
            "scenario": self.scenario.model_dump(mode="json"),
            "seeds": list(self.seeds),
            "num_requests": list(self.num_requests),
            "space": self.space,
            "search": self.search,
            "workload": self.provenance,
            "notes": list(self.notes),
            **context,
        }
        for name, content in (("best.json", best), ("config.json", config)):
            text = json.dumps(jsonable(content), indent=2, allow_nan=False)
            (path / name).write_text(text + "\n", encoding="utf-8")
        return path


def tune(
    policy: str | Policy,
    scenario: str | Path | Scenario | None = None,
    *,
    space: Space | None = None,
    metric: str = "e2e_latency_mean",
    seeds: int | Iterable[int] = 5,
    search: str = "grid",
    trials: int | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> TuningResult:
    """Search the hyperparameters of a policy for the best mean of a metric over training seeds.

    The policy as given is always the first trial, so that the best one is never worse on these seeds. A trial
    that fails on a seed (a livelock, an impossible decision, no value) is out of the running and keeps its
    message. So is, for latencies and other metrics that leave out what is undone (evictions, fairness), a trial
    that finished fewer requests by the horizon, over all seeds, than another one did: where runs end at a
    horizon, a metric such as ``goodput`` or ``token_throughput`` says more.

    Args:
        policy: policy or spec; the hyperparameters it names stay as they are.
        scenario: a scenario, its name or file; None = the default scenario.
        space: values to search by hyperparameter; None = :data:`SEARCH_SPACES`.
        metric: what to optimise, see :mod:`kvgym.metrics`, which also knows the direction.
        seeds: number of seeds (from :data:`FIRST_SEED` on) or the seeds; their workloads are sampled once.
        search: ``"grid"``, every point, or ``"optuna"``, a tree of Parzen estimators (TPE, seed 0) on it.
        trials: at most so many configurations besides the policy as given. A larger grid is sampled without
            replacement, always alike. None = the whole grid; with ``"optuna"`` 50.
        workers: processes to run on; any number gives the same result. With more than one, a script calls
            this under ``if __name__ == "__main__":``.
        progress: called after each run with its configuration, the runs done, and the runs there may be.

    Raises:
        ConfigError: an argument is wrong, or optuna is not installed.
        KVGymError: the workload cannot be served, or every trial failed.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario or DEFAULT_SCENARIO)
    plan = plan_search(policy, space)
    _check_metric(metric)
    if search not in ("grid", "optuna"):
        raise ConfigError(f"search = {search!r}; expected grid or optuna")
    for name, count in (("trials", 1 if trials is None else trials), ("workers", workers)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"{name} = {count!r}; expected a whole number ≥ 1")
    if search == "optuna":
        _import_optuna()
    numbers = tuple(map(int, seeds if isinstance(seeds, Iterable) else range(FIRST_SEED, FIRST_SEED + seeds)))
    if not numbers or len(set(numbers)) < len(numbers) or any(s < 0 for s in numbers):
        raise ConfigError(f"seeds {list(numbers)}; expected at least one, all different whole numbers ≥ 0")
    workload, system = chosen.make_workload(), chosen.make_system()
    tables = tuple(chosen.sample(workload, seed, system.kv_capacity) for seed in numbers)
    for table in tables:
        check_needs(plan.make({}), table)
        system.check_fits(table)
    notes = [
        *merge_notes(
            [(s, note) for s, table in zip(numbers, tables, strict=True) for note in table.notes],
            len(numbers),
        )
    ]
    if workload.spec.replays:
        notes.append("Every seed replays the same trace: judge the result on another one.")
    if not plan.space:
        notes.append(f"{plan.spec({})} has nothing to search.")
    with _Bench(chosen, tables, numbers, plan, metric, workers, progress) as bench:
        if search == "grid":
            if trials is not None and trials < plan.size:
                notes.append(f"{trials:,} of the grid's {plan.size:,} points, drawn at random (seed 0).")
            points = [p for p in plan.grid(trials) if p != plan.start]
            bench.expect(1 + len(points))
            found = bench.run([plan.start, *points])
        else:
            found = _search_optuna(bench, trials or OPTUNA_TRIALS)
    fair = _fair(found, metric)
    if all(t.error for t in fair):
        raise KVGymError(f"{plan.spec({})}: every trial failed; the first, {fair[0].spec}: {fair[0].error}")
    unfair = [new for old, new in zip(found, fair, strict=True) if new.error and not old.error]
    for out, why in ([t for t in found if t.error], "failed"), (unfair, "left more requests undone"):
        if out:
            what = f"{len(out):,} of {len(found):,} trials {why}"
            notes.append(f"{what}; the first, {out[0].spec}: {out[0].error}")
    result = TuningResult(
        policy=plan.spec({}),
        metric=metric,
        scenario=chosen,
        seeds=numbers,
        trials=tuple(fair),
        space=plan.space,
        search=search,
        num_requests=tuple(len(table) for table in tables),
        notes=tuple(notes),
        provenance=workload.provenance(),
    )
    return replace(result, hyperparameters=plan.defaults | plan.fixed | result.best.hyperparameters)


def _check_metric(name: str) -> None:
    try:
        info = metric_info(name)
    except KeyError:
        raise UnknownNameError("metric", name, metric_names()) from None
    if info.lower_is_better is None:
        judged = [m for m in metric_names() if metric_info(m).lower_is_better is not None]
        raise ConfigError(
            f"metric {name}: neither more nor less of it is better; choose of {', '.join(judged)}"
        )


def _counts_finished_only(metric: str) -> bool:
    """Whether a metric looks better the more requests are left undone."""
    return metric in _FLATTERED or metric.rpartition("_")[0] in LATENCIES


def _fair(trials: list[Trial], metric: str) -> list[Trial]:
    """Put out of the running what finished fewer requests than another trial, where that flatters."""
    if not _counts_finished_only(metric):
        return trials
    most = max((sum(t.finished) for t in trials if not t.error), default=0)
    return [
        replace(
            t, error=f"finished {done:,} requests where another trial did {most:,}; {metric} hides the rest"
        )
        if not t.error and (done := sum(t.finished)) < most
        else t
        for t in trials
    ]


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


class _Bench:
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

    def __enter__(self) -> _Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def _import_optuna() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise ConfigError(
            "search=optuna needs optuna; pip install optuna (or kvgym[tune]), or search the grid"
        ) from None


def _search_optuna(bench: _Bench, trials: int) -> list[Trial]:
    """Search the grid by TPE, one trial after the other; a point proposed again is not run again."""
    optuna, plan = _import_optuna(), bench.plan
    most = min(trials, plan.size - plan.on_grid)
    bench.expect(1 + most)
    found = {_key(plan.start): bench.run([plan.start])[0]}
    sign = 1.0 if metric_info(bench.metric).lower_is_better else -1.0

    def score(trial: Trial) -> float:
        """Smaller is better; where that counts, first of all to finish more."""
        if trial.error:
            return math.inf
        undone = bench.num_requests - sum(trial.finished) if _counts_finished_only(bench.metric) else 0
        return sign * trial.value + 1e9 * undone

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), direction="minimize")
        if plan.on_grid:
            study.enqueue_trial({name: values.index(plan.start[name]) for name, values in plan.space.items()})
        for _ in range(20 * trials):  # in a small space, many proposals are known
            if len(found) > most:
                break
            asked = study.ask()
            point = {name: values[_suggest(asked, name, values)] for name, values in plan.space.items()}
            if _key(point) not in found:
                found[_key(point)] = bench.run([point])[0]
            study.tell(asked, score(found[_key(point)]))
    finally:
        optuna.logging.set_verbosity(verbosity)
    return list(found.values())


def _suggest(asked: Any, name: str, values: Sequence[Any]) -> int:
    """Return the place of a value: places of numbers are ordered, those of choices are not."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return int(asked.suggest_int(name, 0, len(values) - 1))
    return int(asked.suggest_categorical(name, list(range(len(values)))))


def _key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point.values())


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: whole numbers, numbers, or texts; None stays where these are numbers."""
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int} or kinds <= {bool}:
        return values
    if kinds <= {int, float}:
        return [None if v is None else float(v) for v in values]
    return [str(v) for v in values]
