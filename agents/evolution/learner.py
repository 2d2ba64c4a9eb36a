"""Evolution: generations of candidates on random services.

An agent is the centre of the search, or the average of its centres if the configuration has ``average``. It is
``best.json`` and ``final.json``. With a predictor (:mod:`.predictor`) the run folder also has ``best.npz`` and
``final.npz``, the agents that have both, and ``predictor.npz``.

Columns of ``curve.csv``; smaller objectives (:mod:`kvgym.agents.evolution.objective`) are better:

- ``generation``; ``episodes`` and ``cpu_seconds`` so far, including those of the references;
- ``objective`` and ``objective_best``: of all candidates and of the best one on training services, means over the
  generations since the last row;
- ``held_out``: objective of the agent on the held-out services; ``best``: the least so far;
- ``failed``: share of the held-out services on which the agent fails;
- ``spread``: mean standard deviation of the search, in steps;
- ``improvement_<metric>``: gain over the best reference of each service in that metric, per cent.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
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
from kvgym.agents.evolution.predictor import Predictor, fit_predictor
from kvgym.agents.evolution.space import SearchSpace, Value
from kvgym.agents.evolution.strategies import STRATEGIES, Averaging, Vector
from kvgym.agents.runs.checkpoints import read_part, write_json
from kvgym.agents.runs.learner import Agent, Evaluation, Learner, Reached, Row, step_of
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.tracker import Curves
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.experiments.result_files import jsonable

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


class EvolutionLearner(Learner[EvolutionConfig]):
    """Evolution of the weights of a policy or a router; steps are generations."""

    def __init__(self, config: EvolutionConfig, folder: Path, log: TrainingLog, curves: Curves) -> None:
        super().__init__(config, folder, log, curves)
        self.libraries = STRATEGIES[config.algorithm].libraries
        self.generation = 0
        self.predictor: Predictor | None = None
        self.average: Averaging | None = None
        self.best, self.best_generation = math.inf, 0  # held-out objective
        self._latest: list[list[float]] = []  # objectives of the generations since the last evaluation
        self._seconds = 0.0  # of CPU time, before this process
        self._episodes = 0
        self._held_out: list[list[Measurement]] | None = None  # of the references
        self._processes = contextlib.ExitStack()
        self._imitation = self._prediction = ""  # sentences for users

    @property
    def steps(self) -> int:
        """Generations done."""
        return self.generation

    @property
    def shown(self) -> tuple[str, ...]:
        """Metrics of evaluations."""
        return tuple(dict.fromkeys((self.config.metric, *SHOWN)))

    def prepare(self) -> None:
        """Make the search from the configured start, after fitting the predictor and imitation that are configured."""
        config = self.config
        learned, starts = config.learned()
        starts = {**starts, **config.read_start()}
        (self.folder / PREDICTOR).unlink(missing_ok=True)
        if config.predictor is not None:
            self.predictor, self._prediction = fit_predictor(
                config.services,
                config.policy,
                {**config.fixed, **starts},
                config.metric,
                config.predictor,
                config.seed,
            )
            self.log.note(self._prediction)
        if self.predictor is not None:
            self.predictor.model.save(self.folder / PREDICTOR)
        if config.imitate is not None:
            network, began = network_of(config.policy, learned, starts), time.process_time()
            numbers, report = imitate(
                config.services, config.policy, {**config.fixed, **starts}, network, config.imitate, config.seed,
                self.log.note,
            )  # fmt: skip
            self._imitation = str(report)
            self._seconds += time.process_time() - began
            self._episodes += config.imitate.services
            starts = {**starts, network.name: numbers}
        self._begin(starts)

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Restore the content of a checkpoint."""
        file = self.folder / PREDICTOR
        self.predictor = Predictor(NumpyModel.load(file)) if file.is_file() else None
        self._begin({name: tuple(x) if isinstance(x, list) else x for name, x in state["starts"].items()})
        self.strategy.restore(read_part(checkpoint, "strategy.json"))
        self.generation = int(state["steps"])
        if self.average is not None:
            self.average.restore(state["average"], self.generation)
        self.best, self.best_generation = float(state["best"]), int(state["best_generation"])
        self._seconds, self._episodes = float(state["cpu_seconds"]), int(state["episodes"])
        self._imitation, self._prediction = str(state["imitation"]), str(state["predictor"])

    def _begin(self, starts: Mapping[str, Value]) -> None:
        """Make the search around the start of each weight, and the processes that play."""
        config = self.config
        self.starts = starts
        self.space = SearchSpace(config.learned()[0], starts)
        self.strategy = config.make_strategy(self.space.size)
        self.average = None if config.average is None else Averaging(self.space.size, config.average)
        self.players = self._processes.enter_context(
            Players(config.services, config.jobs, config.ray, self.predictor)
        )

    def close(self) -> None:
        """End the processes."""
        self._processes.close()

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

    def learn(self, reached: Reached) -> None:
        """Run generations until the configured number, or until patience runs out."""
        while self.generation < self.config.generations and not self.exhausted:
            self.play()
            reached(self.generation)

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

    def evaluate(self) -> Evaluation:
        """Evaluate :attr:`centre` on the held-out services."""
        config = self.config
        seeds = config.held_out.seeds
        reference = config.reference if self._held_out is None else ()  # only once
        if self.generation == 0:
            self._episodes += len(seeds) * len(reference)
        found, references = self.players.compete(
            seeds, config.learner, [self.hyperparameters(self.centre)], reference, self.shown, config.role
        )
        if self._held_out is None:
            self._held_out = references
        self._episodes += len(seeds)
        objectives = self._objectives(found, self._held_out, config.metric, config.behind)
        held_out = mean([row[0] for row in objectives])
        if held_out < self.best:
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
        points = {f"evolution/{name}": x for name, x in row.items() if name != "generation"}
        return Evaluation(row, self.score(row), points)

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

    def score(self, row: Mapping[str, float]) -> float:
        """Return minus the held-out objective."""
        return -row["held_out"]

    def value(self, row: Row) -> float:
        """Return the gain over the references on the held-out services, per cent."""
        return row[f"improvement_{self.config.metric}"]

    def export(self, row: Row) -> dict[str, Agent]:
        """Return the policy or router at :attr:`centre`, and the agent that also has the predictor, if there is one."""
        config, weights = self.config, self.space.values(self.centre)
        held_out = {name: x for name, x in row.items() if name.startswith(("held_out", "improvement"))}
        metadata = self.metadata({"held_out": jsonable(held_out)}, episodes=row["episodes"])
        agents: dict[str, Agent] = {
            ".json": EvolvedModel(config.learner, config.fixed, weights, metadata, config.role.kind)
        }
        if self.predictor is not None:
            agents[".npz"] = self.predictor.agent(config.learner, {**config.fixed, **weights}, metadata)
        return agents

    def state(self) -> dict[str, Any]:
        """Return counters, start and sentences for users; ``best`` is an objective."""
        return {
            "episodes": self._episodes,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "best": self.best,
            "starts": self.starts,
            "imitation": self._imitation,
            "predictor": self._prediction,
            **({} if self.average is None else {"average": self.average.mean.tolist()}),
        }

    def save(self, place: Path) -> None:
        """Write the search."""
        write_json(place / "strategy.json", self.strategy.state())

    def report(self, rows: list[Row], best: Row | None) -> list[str]:
        """Return the gain over the references at the start and of the best agent as lines."""
        config, chosen = self.config, rows[0] if best is None else best
        early = f"; stopped early after {self.generation:,}" if self.generation < config.generations else ""
        after = f"best of {len(rows)}, after {step_of(chosen):,} generations{early}"
        held_out = f"{config.held_out.services} held-out services"
        return [
            *(f"note: {note}" for note in (self._imitation, self._prediction) if note),
            f"{config.metric} on {held_out}, against the best of {', '.join(config.reference)}:",
            f"  start: {self.value(rows[0]):+.2f} %",
            f"  agent: {self.value(chosen):+.2f} % ({after})",
        ]


def generation_seeds(seed: int, generation: int, count: int) -> list[int]:
    """Return the seeds of a generation's services, a function of the run's seed and the generation."""
    words = np.random.SeedSequence(seed, spawn_key=(generation,)).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in words]
