"""A run of evolution: generations, evaluations on held-out services, curves and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.agents.evolution.config import EvolutionConfig
from kvgym.agents.evolution.imitation import imitate, network_of
from kvgym.agents.evolution.model import EvolvedModel
from kvgym.agents.evolution.objective import (
    Measurement,
    best_value,
    counts,
    improvement,
    mean,
    objective,
    weighted,
)
from kvgym.agents.evolution.playing import Players
from kvgym.agents.evolution.predictor import Predictor
from kvgym.agents.evolution.space import SearchSpace, Value
from kvgym.agents.evolution.strategies import Averaging, Vector
from kvgym.agents.runs.checkpoints import save_checkpoint, write_json
from kvgym.agents.runs.folder import write_curve
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.tracker import Curves
from kvgym.experiments.result_files import jsonable
from kvgym.policies.policy import Weight
from kvgym.utils.files import remove_left, write_text

SHOWN = (
    "e2e_latency_mean",
    "ttft_mean",
    "ttft_p99",
    "tbt_p99",
    "token_throughput",
    "goodput",
    "slo_attainment",
)
"""Metrics reported in addition to the trained one."""

PREDICTOR = "predictor.npz"
"""File of the predictor in a run folder."""

Row = dict[str, float]


@dataclass(frozen=True)
class EvolutionResult:
    """Result of a finished run.

    Attributes:
        folder: the run folder.
        generations: number of generations.
        best: gain of the best agent over the best references on the held-out services, per cent.
        best_generation: generation of the best agent.
        start: the same gain of the initial weights.
        stopped_early: whether patience ended the run.
        curve: rows of ``curve.csv``.
        metric: trained metric.
        reference: specs of the references.
        services: number of held-out services.
        notes: notes for the user, a sentence each.
        file: of the best agent in the folder.
    """

    folder: Path
    generations: int
    best: float
    best_generation: int
    start: float
    stopped_early: bool
    curve: tuple[Row, ...]
    metric: str
    reference: tuple[str, ...]
    services: int
    notes: tuple[str, ...] = ()
    file: str = "best.json"

    def report(self) -> list[str]:
        """Return the result as lines; the last one is the file of the agent."""
        early = f"; stopped early after {self.generations:,}" if self.stopped_early else ""
        after = f"best of {len(self.curve)}, after {self.best_generation:,} generations{early}"
        return [
            *(f"note: {note}" for note in self.notes),
            f"{self.metric} on {self.services} held-out services, against the best of {', '.join(self.reference)}:",
            f"  start: {self.start:+.2f} %",
            f"  agent: {self.best:+.2f} % ({after})",
            f"agent: {self.folder / self.file}",
        ]


class Run:
    """A run of evolution in its folder; see :func:`kvgym.agents.evolution.training.train`."""

    def __init__(
        self,
        config: EvolutionConfig,
        folder: Path,
        players: Players,
        log: TrainingLog | None = None,
        predictor: Predictor | None = None,
        note: str = "",
    ) -> None:
        """Prepare a new or resumed run.

        Args:
            config: the configuration.
            folder: the run folder.
            players: that run candidates and references.
            log: of the progress.
            predictor: that the players use for candidates.
            note: what was found about the predictor, "" without one in the configuration.
        """
        self.config, self.folder, self.players, self.log = config, folder, players, log
        self.predictor, self._prediction = predictor, note
        self.checkpoints = folder / "checkpoints"
        self.generation = 0
        self.average: Averaging | None = None
        self.rows: list[Row] = []
        self.best, self.best_generation = math.inf, 0
        self._latest: list[list[float]] = []  # objectives of the generations since the last evaluation
        self._seconds = 0.0  # of CPU time, before this process
        self._episodes = 0
        self._held_out: list[list[Measurement]] | None = None  # of the references
        self._imitation = ""  # its report
        self.curves: Curves

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of evaluations."""
        return tuple(dict.fromkeys((self.config.metric, *SHOWN)))

    def build(self, state: Mapping[str, Any] | None) -> None:
        """Make the search, from the state of a checkpoint if there is one.

        Raises:
            ConfigError: the start file does not fit, or the checkpoint is damaged.
        """
        learned, starts = self.config.learned()
        if state is None:
            self.starts = self._imitated(learned, {**starts, **self.config.read_start()})
        else:
            self.starts = {
                name: tuple(x) if isinstance(x, list) else x for name, x in state["starts"].items()
            }
        self.space = SearchSpace(learned, self.starts)
        self.strategy = self.config.make_strategy(self.space.size)
        if self.config.average is not None:
            self.average = Averaging(self.space.size, self.config.average)
        remove_left(self.folder)
        if state is not None:
            self.strategy.restore(state["strategy"])
            self.generation = int(state["steps"])
            if self.average is not None:
                self.average.restore(state["average"], self.generation)
            self.rows = [
                {name: math.nan if x is None else x for name, x in row.items()} for row in state["rows"]
            ]
            self.best = math.inf if state["best"] is None else float(state["best"])
            self.best_generation = int(state["best_generation"])
            self._seconds, self._episodes = float(state["cpu_seconds"]), int(state["episodes"])
            self._imitation = str(state.get("imitation", ""))
        self.curves = Curves(self.config, self.folder)

    def _imitated(self, learned: Sequence[Weight], starts: dict[str, Value]) -> dict[str, Value]:
        """Return the start of the search, with the network fitted by imitation if configured."""
        config = self.config
        if config.imitate is None:
            return starts
        network, began = network_of(config.policy, learned, starts), time.process_time()
        numbers, report = imitate(
            config.services,
            config.policy,
            {**config.fixed, **starts},
            network,
            config.imitate,
            config.seed,
            None if self.log is None else self.log.note,
        )
        self._imitation = str(report)
        self._seconds += time.process_time() - began
        self._episodes += config.imitate.services
        return {**starts, network.name: numbers}

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all episodes so far, over all processes."""
        return self._seconds + self.players.cpu_seconds

    @property
    def centre(self) -> Vector:
        """Vector of the agent: the centre of the search, or the average of its centres."""
        return self.strategy.mean if self.average is None else self.average.mean

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        patience = self.config.held_out.patience
        since = (self.generation - self.best_generation) // self.config.held_out.interval
        return patience is not None and since >= patience

    def hyperparameters(self, vector: Any) -> dict[str, Any]:
        """Return the hyperparameters of a candidate at a vector of the search."""
        return {**self.config.fixed, **self.space.values(vector)}

    def learn(self) -> None:
        """Run generations until the configured number, or until patience runs out."""
        config = self.config
        if not self.rows:
            self.milestone()
        while self.generation < config.generations and not self.exhausted:
            self.play()
            if self.log is not None:
                self.log.passed(self.generation)
            if self.generation % config.held_out.interval == 0 or self.generation == config.generations:
                self.milestone()

    def play(self) -> None:
        """Run one generation: all candidates on the same new services."""
        config = self.config
        seeds = generation_seeds(config.seed, self.generation, config.services_per_generation)
        candidates = [self.hyperparameters(vector) for vector in self.strategy.propose()]
        found, references = self.players.compete(
            seeds, config.learner, candidates, config.reference, [config.metric], config.role
        )
        self._episodes += len(seeds) * (len(candidates) + len(config.reference))
        by_service = self._objectives(found, references, config.metric, config.behind)
        objectives = np.mean(by_service, axis=0).tolist()
        self.strategy.learn(objectives)
        if self.average is not None:
            self.average.add(self.space.inside(self.strategy.mean))
        self._latest.append(objectives)
        self.generation += 1

    def milestone(self) -> None:
        """Evaluate :attr:`centre`, keep it if it is the best so far, and save a checkpoint."""
        self.evaluate()
        self.save()

    def evaluate(self) -> None:
        """Evaluate :attr:`centre` on the held-out services."""
        config = self.config
        seeds = config.held_out.seeds
        reference = config.reference if self._held_out is None else ()  # only once
        if not self.rows:
            self._episodes += len(seeds) * len(reference)
        weights = self.space.values(self.centre)
        found, references = self.players.compete(
            seeds, config.learner, [{**config.fixed, **weights}], reference, self.shown, config.role
        )
        if self._held_out is None:
            self._held_out = references
        self._episodes += len(seeds)
        objectives = self._objectives(found, self._held_out, config.metric, config.behind)
        held_out = mean([row[0] for row in objectives])
        better = held_out < self.best
        if better:
            self.best, self.best_generation = held_out, self.generation
        row: Row = {
            "generation": self.generation,
            "episodes": self._episodes,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "objective": mean([mean(x) for x in self._latest]),
            "objective_best": mean([min(x) for x in self._latest]),
            "held_out": held_out,
            "best": self.best,
            "failed": sum(not counts(m, config.metric) for [m] in found) / len(found),
            "spread": self.strategy.spread,
        }
        for name in self.shown:
            own = mean([row[0] for row in self._objectives(found, self._held_out, name)])
            row[f"improvement_{name}"] = improvement(own, name)
        self._latest = []
        self.rows.append(row)
        if better:
            self.keep("best", weights)
        write_curve(self.folder, self.rows)
        self.curves.write(self.generation, {f"evolution/{k}": x for k, x in row.items() if k != "generation"})
        self.curves.flush()
        if self.log is not None:
            self.log.evaluated(self.generation, row[f"improvement_{config.metric}"])

    def _objectives(
        self,
        found: Sequence[Sequence[Measurement]],
        references: Sequence[Sequence[Measurement]],
        metric: str,
        behind: float = 1.0,
    ) -> list[list[float]]:
        """Return objectives, (services, candidates); losses are multiplied by ``behind``."""
        return [
            [weighted(objective(m, metric, best_value(ours, metric)), behind) for m in row]
            for row, ours in zip(found, references, strict=True)
        ]

    def agent(self, weights: Mapping[str, Value]) -> EvolvedModel:
        """Return the agent with some weights."""
        config, row = self.config, self.rows[-1]
        held_out = {name: x for name, x in row.items() if name.startswith(("held_out", "improvement"))}
        metadata = {
            "name": config.name,
            "summary": config.summary,
            "generations": self.generation,
            "episodes": row["episodes"],
            "seed": config.seed,
            "held_out": jsonable(held_out),
            # The agent does not depend on the number of processes, or on the tracker.
            "training": config.model_dump(mode="json", exclude={"jobs", "ray", "tracker"}),
        }
        return EvolvedModel(config.learner, config.fixed, weights, metadata, config.role.kind)

    def keep(self, name: str, weights: Mapping[str, Value]) -> None:
        """Write the agent with some weights, and the agent that also has the predictor, if there is one."""
        agent = self.agent(weights)
        write_text(self.folder / f"{name}.json", agent.to_json())
        if self.predictor is not None:
            both = self.predictor.agent(agent.name, {**agent.fixed, **agent.weights}, agent.metadata)
            both.save(self.folder / f"{name}.npz")

    def save(self) -> None:
        """Save a checkpoint."""
        state = {
            "steps": self.generation,
            "episodes": self._episodes,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "best": self.best,
            "best_generation": self.best_generation,
            "starts": self.starts,
            "imitation": self._imitation,
            "predictor": self._prediction,
            **({} if self.average is None else {"average": self.average.mean.tolist()}),
            "rows": jsonable(self.rows),
        }

        def write(place: Path) -> None:
            write_json(place / "strategy.json", self.strategy.state())

        save_checkpoint(self.checkpoints, self.generation, write, state, self.config.keep_checkpoints)

    def finish(self) -> EvolutionResult:
        """Save the last agent and return the result."""
        self.keep("final", self.space.values(self.centre))
        self.curves.close()
        config = self.config
        best = next(row for row in self.rows if row["generation"] == self.best_generation)
        return EvolutionResult(
            folder=self.folder,
            generations=self.generation,
            best=best[f"improvement_{config.metric}"],
            best_generation=self.best_generation,
            start=self.rows[0][f"improvement_{config.metric}"],
            stopped_early=self.generation < config.generations,
            curve=tuple(self.rows),
            metric=config.metric,
            reference=config.reference,
            services=config.held_out.services,
            notes=tuple(note for note in (self._imitation, self._prediction, self.curves.missing) if note),
            file="best.json" if self.predictor is None else "best.npz",
        )


def generation_seeds(seed: int, generation: int, count: int) -> list[int]:
    """Return the seeds of a generation's services, a function of the run's seed and the generation."""
    words = np.random.SeedSequence(seed, spawn_key=(generation,)).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in words]
