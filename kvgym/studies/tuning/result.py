"""Results of a search for hyperparameters: trials, ranking, files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvgym.experiments.result_files import run_context, write_json
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import Estimate, mean_interval, ratio_interval
from kvgym.metrics.catalogue import metric_info
from kvgym.utils.frame import Frame


@dataclass(frozen=True)
class Trial:
    """One configuration on all seeds.

    Attributes:
        spec: the configuration for :func:`~kvgym.policies.policy.make_policy`, without defaults.
        hyperparameters: the searched hyperparameters.
        value: mean of the metric over seeds, in the metric's unit; NaN if a seed failed.
        values: the metric by seed; NaN if the run failed. A configuration that fails on the first seed is not run on
            others.
        finished: finished requests by seed; 0 if the run failed or was skipped.
        error: why the configuration is disqualified, or "".
        others: the bounded metrics and the others that are reported, as means over seeds.
        excess: sum of the relative violations of bounds; 0 if all are met.
    """

    spec: str
    hyperparameters: dict[str, Any]
    value: float
    values: tuple[float, ...]
    finished: tuple[int, ...]
    error: str = ""
    others: dict[str, float] = field(default_factory=dict)
    excess: float = 0.0


@dataclass(frozen=True)
class TuningResult:
    """The outcome of :func:`tune`.

    Attributes:
        policy: the policy as given, with its fixed hyperparameters.
        metric: the optimised metric.
        scenario: the scenario as run.
        seeds: training seeds; all trials ran the same requests under each.
        trials: all trials; the first is the policy as given, the others are in the order of the search.
        space: the searched values by hyperparameter; empty if there was nothing to search.
        search: ``"grid"`` or ``"optuna"``.
        num_requests: requests per seed.
        notes: remarks for readers, one sentence each.
        provenance: sources of the workload.
        hyperparameters: all hyperparameters of the best trial, defaults included.
        subject_to: the bounds that a trial must meet, as texts.
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
    subject_to: tuple[str, ...] = ()

    @property
    def default(self) -> Trial:
        """The policy as given: the first trial."""
        return self.trials[0]

    @property
    def best(self) -> Trial:
        """The best trial, the first among equals; ``best.spec`` is an argument of :func:`make_policy`."""
        return self.ranking()[0]

    def ranking(self) -> list[Trial]:
        """Return the trials that qualify, best first, equals in the order of the search."""
        sign = 1.0 if metric_info(self.metric).lower_is_better else -1.0
        return sorted((t for t in self.trials if not t.error), key=lambda t: sign * t.value)

    def estimate(self, trial: Trial) -> Estimate:
        """Return the mean of the metric over seeds, with its 95 % interval."""
        return mean_interval(trial.values)

    def ratio(self, trial: Trial) -> Estimate:
        """Return the ratio of a trial's mean to the default's, paired by seed, with its 95 % interval.

        NaN if the default is disqualified.
        """
        nothing = (math.nan,) * len(self.seeds)
        return ratio_interval(trial.values, nothing if self.default.error else self.default.values)

    def to_frame(self) -> Frame:
        """Return one row per trial: hyperparameters, mean, values by seed, error."""
        columns: dict[str, list[Any]] = {
            "trial": list(range(len(self.trials))),
            "spec": [t.spec for t in self.trials],
        }
        for name in self.space:
            columns[name] = [t.hyperparameters[name] for t in self.trials]
        columns[self.metric] = [t.value for t in self.trials]
        for k, seed in enumerate(self.seeds):
            columns[f"seed_{seed}"] = [t.values[k] for t in self.trials]
        for name in dict.fromkeys(name for t in self.trials for name in t.others):
            columns[name] = [t.others.get(name, math.nan) for t in self.trials]
        columns["finished"] = [sum(t.finished) for t in self.trials]
        columns["error"] = [t.error for t in self.trials]
        return Frame(columns)

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``trials.csv``, ``best.json`` and ``config.json`` into ``folder``.

        Args:
            folder: created if missing.
            command: the command line, recorded in ``config.json``.

        Returns:
            The folder.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.to_frame().write_csv(path / "trials.csv")
        best = {
            "spec": self.best.spec, "hyperparameters": self.hyperparameters, "metric": self.metric,
            "lower_is_better": metric_info(self.metric).lower_is_better, "value": vars(self.estimate(self.best)),
            "default": {
                "spec": self.default.spec, "error": self.default.error, "value": vars(self.estimate(self.default))
            },
            "ratio_to_default": vars(self.ratio(self.best)), "subject_to": list(self.subject_to),
            "others": self.best.others, "trials": len(self.trials),
            "out_of_the_running": sum(bool(t.error) for t in self.trials), "seeds": list(self.seeds),
        }  # fmt: skip
        context = run_context(command)
        if self.search == "optuna":
            context["libraries"]["optuna"] = version("optuna")
        config = {
            "policy": self.policy, "metric": self.metric, "subject_to": list(self.subject_to),
            "scenario": self.scenario.resolved().model_dump(mode="json"), "seeds": list(self.seeds),
            "num_requests": list(self.num_requests), "space": self.space, "search": self.search,
            "workload": self.provenance, "notes": list(self.notes), **context,
        }  # fmt: skip
        write_json(path / "best.json", best)
        write_json(path / "config.json", config)
        return path
