"""REINFORCE with groups (R. J. Williams, Machine Learning 8, 1992).

An update plays one episode in each environment. The environments of a group have the same requests. Every request has
noise of its own, which it keeps for its life, since it is decided on once; the noise of every second environment is
the noise of the one before it with the opposite sign. The advantage of an episode is its return minus the mean return
of the others of its group (W. Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!", 2019), divided by the
advantages' standard deviation over the latest updates. Returns are not discounted.

The network's inputs are standardised by the observations of one update before the first; the exported agent has this in
the weights of its first layer and reads plain observations.

Columns of ``curve.csv``: ``updates``, ``episodes``, ``cpu_seconds`` without evaluations, ``return`` of the training
episodes since the last row, and the evaluation metric.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.agents.reinforce.config import ReinforceConfig
from kvgym.agents.reinforce.export import as_agent
from kvgym.agents.reinforce.network import Adam, Array, Network, fit, standard
from kvgym.agents.runs.checkpoints import read_part, write_json
from kvgym.agents.runs.learner import EnvironmentLearner, Evaluation, Reached, Row
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.tracker import Curves
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv

MEMORY = 0.9
"""Weight of earlier updates in the scale of advantages."""

_INITIAL, _STANDARD, _FIT = 0, 1, (0, 1)  # parts of the run's random numbers; update k has part 2 + k


class ReinforceLearner(EnvironmentLearner[ReinforceConfig]):
    """REINFORCE with groups; steps are updates."""

    libraries = ("tensorboard",)

    def __init__(self, config: ReinforceConfig, folder: Path, log: TrainingLog, curves: Curves) -> None:
        """Make environments, network and optimiser."""
        super().__init__(config, folder, log, curves)
        self.env = config.env_config()
        self.envs = ServingVectorEnv(
            config.groups * config.group_size, group_size=config.group_size, **self.env.model_dump()
        )
        self.places = config.places()
        initial = self._generator(_INITIAL)
        self.network = Network(len(self.places), config.hidden, initial, sharp=not config.fit)
        self.optimiser = Adam(self.network.numbers)
        self.centre, self.spread = np.zeros(len(self.places)), np.ones(len(self.places))
        usual = self.env.usual_action()
        assert usual is not None
        self.usual = float(usual[0][0]), float(usual[1][0])
        self.updates, self.scale, self.seconds = 0, 0.0, 0.0
        self.returns: list[float] = []  # mean returns of the updates since the last evaluation

    @property
    def steps(self) -> int:
        """Updates done."""
        return self.updates

    def _generator(self, *part: int) -> np.random.Generator:
        """Return the generator of a part of the run, a function of the run's seed."""
        return np.random.default_rng(np.random.SeedSequence(self.config.seed, spawn_key=part))

    def play(self, rng: np.random.Generator) -> tuple[Array, list[Array], list[Array], list[Array]]:
        """Play one episode in each environment.

        Args:
            rng: draws requests and noise.

        Returns:
            Returns (N,), and for each step inputs (N, number of inputs), noise (N,), and 1 where an episode goes on,
            else 0, (N,).
        """
        envs, noise = self.envs, self.config.noise
        count = envs.num_envs
        seeds = rng.integers(2**31, size=count)
        observation, _ = envs.reset(seed=seeds.tolist())
        self.tables = envs.tables
        returns, running = np.zeros(count), np.ones(count, bool)
        inputs, noises, alive = [], [], []
        while running.any():
            x = (observation[:, self.places] - self.centre) / self.spread
            drawn = rng.standard_normal((count // 2, 1)) * np.array([1.0, -1.0])
            inputs.append(x)
            noises.append(drawn.ravel())
            alive.append(running.astype(np.float64))
            numbers = self.network.outputs(x)[0] + noise * noises[-1]
            actions = np.clip(self.usual[0] + self.usual[1] * numbers, -1.0, 1.0).astype(np.float32)[:, None]
            observation, rewards, terminated, truncated, _ = envs.step(actions)
            returns += np.where(running, rewards, 0.0)
            running &= ~(terminated | truncated)
        return returns, inputs, noises, alive

    def prepare(self) -> None:
        """Measure mean and deviation of the inputs in one episode of each environment, and fit the output lengths."""
        super().prepare()
        began = time.process_time()
        _, inputs, _, alive = self.play(self._generator(_STANDARD))
        goes_on = np.stack(alive) > 0
        seen = np.stack(inputs)[goes_on]
        self.centre, self.spread = standard(seen)
        if self.config.fit:
            # The k-th question is for the k-th request.
            outputs = np.zeros(goes_on.shape)
            for k, table in enumerate(self.tables):
                outputs[: len(table), k] = table.output_len[: len(outputs)]
            self._fit((seen - self.centre) / self.spread, np.log2(outputs[goes_on]))
        self.seconds += time.process_time() - began

    def _fit(self, x: Array, logs: Array) -> None:
        """Fit the network to the logarithms to base 2 of output lengths, by least squares."""
        usual = self.env.kind.usual(self.env)
        assert usual is not None
        fit(self.network, x, (logs - usual[0]) / usual[1], self.config.fit, self._generator(*_FIT))

    def update(self) -> None:
        """Play episodes and move the network along the gradient."""
        config, began = self.config, time.process_time()
        returns, inputs, noises, alive = self.play(self._generator(2 + self.updates))
        groups = returns.reshape(-1, config.group_size)
        others = (groups.sum(1, keepdims=True) - groups) / (config.group_size - 1)
        advantages = (groups - others).ravel()
        now = float(np.sqrt(np.mean(advantages**2)))
        self.scale = MEMORY * self.scale + (1 - MEMORY) * now if self.updates else now
        weights = np.concatenate([advantages * n * a for n, a in zip(noises, alive, strict=True)])
        weights /= max(self.scale, 1e-12) * len(returns) ** 0.5
        _, layers = self.network.outputs(np.concatenate(inputs))
        rate = config.learning_rate * (1.0 - self.updates / config.updates)
        self.optimiser.step(self.network.gradient(layers, weights), rate)
        self.returns.append(float(returns.mean()))
        self.updates += 1
        self.seconds += time.process_time() - began

    def learn(self, reached: Reached) -> None:
        """Update until the configured number."""
        while self.updates < self.config.updates:
            self.update()
            reached(self.updates)

    def evaluate(self) -> Evaluation:
        """Play the evaluation's requests without noise."""
        found = super().evaluate()
        self.returns = []
        points = {**found.points, "train/return": found.row["return"]}
        return dataclasses.replace(found, points=points)

    def row(self, found: Mapping[str, float]) -> Row:
        """Return the row of ``curve.csv``."""
        return {
            "updates": self.updates,
            "episodes": self.updates * self.envs.num_envs,
            "cpu_seconds": round(self.seconds, 3),
            "return": float(np.mean(self.returns)) if self.returns else math.nan,
            self.metric: found[self.metric],
        }

    def agent(self, metadata: Mapping[str, Any]) -> NumpyModel:
        """Return the network as an agent that reads plain observations."""
        return as_agent(
            self.env, self.network, self.places, self.centre, self.spread,
            algorithm=self.config.algorithm, noise=self.config.noise, metadata=metadata,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return the counters."""
        return {**super().state(), "cpu_seconds": round(self.seconds, 3)}

    def save(self, place: Path) -> None:
        """Write network, optimiser and scales."""
        learner = {
            **self.optimiser.state(),
            "updates": self.updates,
            "scale": self.scale,
            "centre": self.centre.tolist(),
            "spread": self.spread.tolist(),
        }
        write_json(place / "learner.json", learner)

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Restore the content of a checkpoint."""
        super().restore(state, checkpoint)
        learner = read_part(checkpoint, "learner.json")
        self.optimiser.restore({**learner, "steps": learner["updates"]})
        self.updates, self.scale = int(learner["updates"]), float(learner["scale"])
        for name in ("centre", "spread"):
            array = np.asarray(learner[name], np.float64)
            if array.shape != self.places.shape:
                raise ValueError(f"{name} has shape {array.shape}; expected {self.places.shape}")
            setattr(self, name, array)
        self.seconds = float(state["cpu_seconds"])
