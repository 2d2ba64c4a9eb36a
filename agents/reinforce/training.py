"""REINFORCE with groups (R. J. Williams, Machine Learning 8, 1992), and the files of its run folder.

An update plays one episode in each environment. The environments of a group have the same requests. Every request has
noise of its own, which it keeps for its life, since it is decided on once; the noise of every second environment is
that of the one before it with the opposite sign. The advantage of an episode is its return minus the mean return of the
others of its group (W. Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!", 2019), divided by the
advantages' standard deviation over the latest updates. Returns are not discounted.

The network's inputs are standardised by the observations of one update before the first; the exported agent has this in
the weights of its first layer and reads plain observations.

A run folder has ``config.yaml`` (resolved), ``run.json`` (versions, seed, commands), ``tensorboard/``, ``curve.csv``
(a row per evaluation), ``train.log``, ``checkpoints/``, ``best.npz`` (the best agent by the evaluation metric) and, at
the end, ``final.npz`` (the last one). Columns of ``curve.csv``: ``updates``, ``episodes``, ``cpu_seconds`` without
evaluations, ``return`` of the training episodes since the last row, and the evaluation metric.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.agents.reinforce.config import ReinforceConfig
from kvgym.agents.reinforce.export import as_agent
from kvgym.agents.reinforce.network import Adam, Array, Network, fit, standard
from kvgym.agents.runs.checkpoints import REMEDY, read_part, save_checkpoint, write_json
from kvgym.agents.runs.evaluation import Evaluator, baseline_metrics
from kvgym.agents.runs.folder import (
    check_free,
    context_of,
    note_resume,
    reopen,
    write_config,
    write_curve,
    write_start,
)
from kvgym.agents.runs.progress import Echo, TrainingLog
from kvgym.agents.runs.result import TrainingResult
from kvgym.agents.runs.tracker import Curves
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, shown
from kvgym.experiments.result_files import jsonable
from kvgym.metrics.compute import metric_info
from kvgym.utils.files import remove_left

LIBRARIES = ("tensorboard",)

MEMORY = 0.9
"""Weight of earlier updates in the scale of advantages."""

_INITIAL, _STANDARD, _FIT = 0, 1, (0, 1)  # parts of the run's random numbers; update k has part 2 + k


def train(
    config: ReinforceConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    echo: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Train an agent; arguments are those of :func:`kvgym.agents.train`.

    Raises:
        ConfigError: the configuration is wrong, or the folder has a run already.
    """
    config, path = config.check(), Path(folder)
    check_free(path)
    run = Run(config, path, _log(config, path, progress, echo))
    run.baselines = baseline_metrics(config.evaluation, config.evaluation_config())
    run.prepare()
    path.mkdir(parents=True, exist_ok=True)
    write_start(path, config, context_of(command, LIBRARIES))
    run.milestone()
    return run.learn()


def resume(
    folder: str | Path,
    *,
    length: int | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    echo: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Continue a run from its last checkpoint; arguments are those of :func:`kvgym.agents.resume`.

    Raises:
        ConfigError: the folder has no run or a longer one, or the last checkpoint cannot be read.
    """
    path, config, checkpoint, state = reopen(folder, length, ReinforceConfig, "updates")
    run = Run(config, path, _log(config, path, progress, echo))
    if checkpoint is None:
        run.baselines = baseline_metrics(config.evaluation, config.evaluation_config())
        run.prepare()
    else:
        try:
            run.restore({**state, **read_part(checkpoint, "learner.json")})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"the latest checkpoint of {path} is damaged: {shown(error)}; {REMEDY}"
            ) from error
    note_resume(path, {"updates": state["steps"], **context_of(command, LIBRARIES)})
    if length is not None:
        write_config(path, config)
    if checkpoint is None:
        run.milestone()
    return run.learn()


class Run:
    """A run in its folder."""

    def __init__(self, config: ReinforceConfig, folder: Path, log: TrainingLog | None = None) -> None:
        """Make environments, network and optimiser."""
        self.config, self.folder, self.log = config, folder, log
        self.env = config.env_config()
        self.envs = ServingVectorEnv(
            config.groups * config.group_size, group_size=config.group_size, **self.env.model_dump()
        )
        self.evaluator = Evaluator(config.evaluation_config(), config.evaluation.workload_seeds)
        self.places = config.places()
        self.network = Network(len(self.places), config.hidden, self._generator(_INITIAL))
        self.optimiser = Adam(self.network.numbers)
        self.centre, self.spread = np.zeros(len(self.places)), np.ones(len(self.places))
        usual = self.env.usual_action()
        assert usual is not None
        self.usual = float(usual[0][0]), float(usual[1][0])
        self.updates, self.scale, self.seconds = 0, 0.0, 0.0
        self.returns: list[float] = []  # mean returns of the updates since the last evaluation
        self.baselines: dict[str, dict[str, float]] = {}
        self.rows: list[dict[str, float]] = []
        self.best, self.best_update = math.nan, 0
        remove_left(folder)
        self.curves = Curves(config, folder)

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

    def learn(self) -> TrainingResult:
        """Update until the configured number; save the last agent."""
        config = self.config
        while self.updates < config.updates:
            self.update()
            if self.log is not None:
                self.log.passed(self.updates)
            if self.updates % config.evaluation.interval == 0 or self.updates == config.updates:
                self.milestone()
        self.agent(self.rows[-1]).save(self.folder / "final.npz")
        self.curves.close()
        metric = config.evaluation.metric
        return TrainingResult(
            folder=self.folder,
            steps=self.updates,
            best=self.best,
            best_step=self.best_update,
            baselines={label: values[metric] for label, values in self.baselines.items()},
            curve=tuple(self.rows),
            metric=metric,
            unit="updates",
        )

    def milestone(self) -> None:
        """Evaluate the agent, keep it if it is the best so far, and save a checkpoint."""
        metric = self.config.evaluation.metric
        played = self.evaluator.play(self.agent())
        found = {name: float(np.mean(values)) for name, values in played.items()}
        row = {
            "updates": self.updates,
            "episodes": self.updates * self.envs.num_envs,
            "cpu_seconds": round(self.seconds, 3),
            "return": float(np.mean(self.returns)) if self.returns else math.nan,
            metric: found[metric],
        }
        self.returns = []
        self.rows.append(row)
        if self._better(found):
            self.best, self.best_update = found[metric], self.updates
            self.agent(row).save(self.folder / "best.npz")
        write_curve(self.folder, self.rows)
        points = {f"kv/eval/{metric}": found[metric], "eval/mean_reward": found["return"]}
        rivals = {f"baselines/{label}": values[metric] for label, values in self.baselines.items()}
        self.curves.write(self.updates, {**points, "train/return": row["return"], **rivals})
        self.curves.flush()
        self.save()
        if self.log is not None:
            self.log.evaluated(self.updates, found[metric])

    def _better(self, found: Mapping[str, float]) -> bool:
        """Return whether an agent is the best so far; not if it left requests unserved."""
        value, lower = (
            found[self.config.evaluation.metric],
            metric_info(self.config.evaluation.metric).lower_is_better,
        )
        if math.isnan(value) or (lower and found["unfinished"] > 0):
            return False
        return math.isnan(self.best) or (value < self.best if lower else value > self.best)

    def agent(self, row: Mapping[str, float] | None = None) -> NumpyModel:
        """Return the network as an agent that reads plain observations."""
        config = self.config
        measured = {name: x for name, x in (row or {}).items() if name != "cpu_seconds"}
        metadata = {
            "name": config.name, "summary": config.summary, "updates": self.updates, "seed": config.seed,
            "evaluation": jsonable(measured), "training": config.model_dump(mode="json", exclude={"tracker"}),
        }  # fmt: skip
        return as_agent(
            self.env, self.network, self.places, self.centre, self.spread,
            algorithm=config.algorithm, noise=config.noise, metadata=metadata,
        )  # fmt: skip

    def save(self) -> None:
        """Save a checkpoint."""
        state = {
            "steps": self.updates,
            "cpu_seconds": round(self.seconds, 3),
            "best": None if math.isnan(self.best) else self.best,
            "best_update": self.best_update,
            "rows": jsonable(self.rows),
            "baselines": jsonable(self.baselines),
        }
        learner = {
            **self.optimiser.state(),
            "updates": self.updates,
            "scale": self.scale,
            "centre": self.centre.tolist(),
            "spread": self.spread.tolist(),
        }

        def write(place: Path) -> None:
            write_json(place / "learner.json", learner)

        save_checkpoint(self.folder / "checkpoints", self.updates, write, state, self.config.keep_checkpoints)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the content of a checkpoint.

        Raises:
            LookupError: something is missing.
            TypeError: something is of another type.
            ValueError: something is of another shape.
        """
        self.optimiser.restore({**state, "steps": state["updates"]})
        self.updates, self.scale = int(state["updates"]), float(state["scale"])
        for name in ("centre", "spread"):
            array = np.asarray(state[name], np.float64)
            if array.shape != self.places.shape:
                raise ValueError(f"{name} has shape {array.shape}; expected {self.places.shape}")
            setattr(self, name, array)
        self.seconds = float(state["cpu_seconds"])
        self.best = math.nan if state["best"] is None else float(state["best"])
        self.best_update = int(state["best_update"])
        self.rows = [_numbers(row) for row in state["rows"]]
        self.baselines = {label: _numbers(values) for label, values in state["baselines"].items()}


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return values from JSON, with NaN for None."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _log(
    config: ReinforceConfig, folder: Path, progress: Callable[[int], None] | None, echo: Echo | None
) -> TrainingLog:
    return TrainingLog(folder, config.updates, "updates", config.evaluation.metric, progress, echo)
