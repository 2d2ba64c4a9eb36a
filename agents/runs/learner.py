"""What a training run asks of a learner.

:mod:`kvgym.agents.runs.run` has all that every run needs: folder, checkpoints, the schedule of evaluations, the choice
of the best agent, curves and the log. A learner has what is its own: how it starts, updates, evaluates, saves its state
and exports its agent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvgym.agents.runs.config import TrainingConfig
from kvgym.agents.runs.evaluation import SHOWN, EvaluatedConfig, Evaluator, baseline_metrics
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.tracker import Curves
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.experiments.result_files import jsonable
from kvgym.metrics.catalogue import metric_info

Row = dict[str, float]
"""A row of ``curve.csv``; its first figure is the number of steps done."""

Reached = Callable[[int], bool]
"""Called with the steps done after each update; returns whether it was a milestone: an evaluation and a checkpoint."""

C = TypeVar("C", bound=TrainingConfig)
E = TypeVar("E", bound=EvaluatedConfig)


class Agent(Protocol):
    """A trained agent that can be written to a file."""

    def save(self, path: Path, /) -> None:
        """Write the file."""


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        row: of ``curve.csv``.
        score: larger is better; -inf for an agent that must not be chosen as the best.
        points: of the curves, by name.
    """

    row: Row
    score: float
    points: Mapping[str, float]


class Learner(ABC, Generic[C]):
    """The part of a run that learns. Steps are environment steps, updates or generations.

    A run calls :meth:`prepare` or :meth:`restore`, then :meth:`learn`, and :meth:`close` at the end. Before the first
    update and whenever ``reached`` is called it may call :meth:`evaluate`, :meth:`export`, :meth:`state` and
    :meth:`save`.

    Args:
        config: of the run.
        folder: the run folder.
        log: of the progress.
        curves: for points beyond those of evaluations.

    Attributes:
        baselines: metrics of each baseline on the requests of evaluations, by label.
        lower_is_better: whether lower values of :meth:`value` are better.
        libraries: distributions that results depend on, for ``run.json``.
    """

    lower_is_better = False
    libraries: tuple[str, ...] = ()

    def __init__(self, config: C, folder: Path, log: TrainingLog, curves: Curves) -> None:
        self.config, self.folder, self.log, self.curves = config, folder, log, curves
        self.baselines: dict[str, dict[str, float]] = {}

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps done."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the start of a new run, warm start included."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Make the start of a resumed run.

        Args:
            state: content of ``state.json``.
            checkpoint: folder that :meth:`save` has written into.

        Raises:
            ConfigError: a file cannot be read.
            LookupError: something is missing; likewise TypeError, ValueError and ArithmeticError for wrong values.
        """

    @abstractmethod
    def learn(self, reached: Reached) -> None:
        """Update until the configured length, and call ``reached`` between updates."""

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Evaluate the current agent."""

    @abstractmethod
    def score(self, row: Mapping[str, float]) -> float:
        """Return the score of the figures of an evaluation, see :class:`Evaluation`."""

    @abstractmethod
    def value(self, row: Row) -> float:
        """Return the figure that users compare agents by."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what ``state.json`` has of this learner, JSON-able."""

    @abstractmethod
    def save(self, place: Path) -> None:
        """Write the learner into the folder of a checkpoint."""

    @abstractmethod
    def export(self, row: Row) -> dict[str, Agent]:
        """Return the current agent by suffix of its file, the one to be used last.

        Args:
            row: of its evaluation, for its metadata.
        """

    @abstractmethod
    def report(self, rows: list[Row], best: Row | None) -> list[str]:
        """Return the result of the run as lines for users.

        Args:
            rows: of all evaluations.
            best: the best agent's; None if there is none.
        """

    def close(self) -> None:
        """End what the learner has begun, such as processes."""

    def metadata(self, figures: Mapping[str, Any], **counters: Any) -> dict[str, Any]:
        """Return the metadata of the current agent, JSON-able.

        They do not depend on the number of processes, or on the tracker.

        Args:
            figures: of its evaluation.
            **counters: beyond the steps.
        """
        config = self.config
        return {
            "name": config.name, "summary": config.summary, config.units: self.steps, **counters, "seed": config.seed,
            **figures, "training": config.model_dump(mode="json", exclude={"jobs", "ray", "tracker"}),
        }  # fmt: skip


class EnvironmentLearner(Learner[E]):
    """A learner in environments. Its agent, a network, is evaluated on the same requests as baselines."""

    def __init__(self, config: E, folder: Path, log: TrainingLog, curves: Curves) -> None:
        super().__init__(config, folder, log, curves)
        self.metric = config.evaluation.metric
        self.lower_is_better = bool(metric_info(self.metric).lower_is_better)
        self.evaluator = Evaluator(config.evaluation_config(), config.evaluation.workload_seeds)

    @abstractmethod
    def agent(self, metadata: Mapping[str, Any]) -> NumpyModel:
        """Return the current agent with metadata, as plain weights."""

    @abstractmethod
    def row(self, found: Mapping[str, float]) -> Row:
        """Return the row of ``curve.csv`` for the mean metrics of an evaluation."""

    def prepare(self) -> None:
        """Run the baselines."""
        self.baselines = baseline_metrics(self.config.evaluation, self.config.evaluation_config())

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Restore the figures of the baselines."""
        self.baselines = {label: numbers(values) for label, values in state["baselines"].items()}
        for figures in self.baselines.values():
            if missing := {*SHOWN, self.metric} - figures.keys():
                raise KeyError(min(missing))

    def evaluate(self) -> Evaluation:
        """Play the evaluation's requests, greedily and masked."""
        found = {name: _mean(values) for name, values in self.evaluator.play(self.agent({})).items()}
        points = {f"kv/eval/{name}": found[name] for name in (*SHOWN, self.metric, "return")}
        # The names of Stable-Baselines3's own evaluations.
        points |= {"eval/mean_reward": found["return"], "eval/mean_ep_length": found["length"]}
        names = [self.metric, *(name for name in SHOWN if name != self.metric)]
        self.curves.write_rivals(self.steps, self.baselines, names)
        return Evaluation(self.row(found), self.score(found), points)

    def score(self, row: Mapping[str, float]) -> float:
        """Return the metric, larger is better; -inf if requests were left unserved or there is no value."""
        return self.valid(-row[self.metric] if self.lower_is_better else row[self.metric], row)

    def valid(self, score: float, row: Mapping[str, float]) -> float:
        """Return a score, but -inf if it is NaN, or if requests that were left unserved flatter the metric."""
        flattered = self.lower_is_better and row.get("unfinished", 0.0) > 0
        return -math.inf if flattered or math.isnan(score) else score

    def value(self, row: Row) -> float:
        """Return the metric."""
        return row[self.metric]

    def state(self) -> dict[str, Any]:
        """Return the figures of the baselines."""
        return {"baselines": jsonable(self.baselines)}

    def export(self, row: Row) -> dict[str, Agent]:
        """Return the network as plain weights."""
        measured = {name: value for name, value in row.items() if name != "cpu_seconds"}
        return {".npz": self.agent(self.metadata({"evaluation": jsonable(measured)}))}

    def report(self, rows: list[Row], best: Row | None) -> list[str]:
        """Return the metric of the baselines and of the best agent as lines."""
        lines = [f"{self.metric} on the evaluation's requests:"]
        for label, values in self.baselines.items():
            value = values[self.metric]
            lines.append(f"  {label}: {'failed' if math.isnan(value) else f'{value:.4g}'}")
        if best is None:
            return [*lines, "  agent: left requests unserved in every evaluation; the last one is kept"]
        after = f"best of {len(rows)}, after {step_of(best):,} {self.config.units}"
        return [*lines, f"  agent: {best[self.metric]:.4g} ({after})"]


def step_of(row: Row) -> int:
    """Return the steps done at the evaluation of a row."""
    return int(next(iter(row.values())))


def numbers(values: Mapping[str, float | None]) -> Row:
    """Return figures from JSON, with NaN for None.

    Raises:
        TypeError: something is not a number.
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TypeError(f"{name} is not a number")
    return {name: math.nan if value is None else value for name, value in values.items()}


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean over the seeds; NaN if a seed has no value."""
    return float(np.mean(values)) if not np.isnan(values).any() else math.nan
