"""Training with Stable-Baselines3.

The run folder also has ``model.zip``, the last agent for Stable-Baselines3. Columns of ``curve.csv``: ``steps``,
``return`` and metrics of the agent on the evaluation's requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.agents.runs.checkpoints import REMEDY
from kvgym.agents.runs.evaluation import SHOWN
from kvgym.agents.runs.learner import EnvironmentLearner, Evaluation, Reached, Row
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.tracker import Curves
from kvgym.agents.sb3.algorithms import make_environments, make_model, wrap
from kvgym.agents.sb3.callbacks import BetweenRollouts, CurriculumCallback, MetricsCallback, fresh_start
from kvgym.agents.sb3.config import TrainConfig
from kvgym.agents.sb3.export import export
from kvgym.agents.sb3.learner_state import load_learner, save_learner
from kvgym.agents.sb3.warm_start import clone
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.demonstrations.record import demonstrate
from kvgym.errors import ConfigError
from kvgym.utils.files import whole_file

try:
    import torch
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.logger import KVWriter, Logger
except ImportError as error:
    raise ConfigError(f'training needs Stable-Baselines3: pip install "kvgym[train]" ({error})') from error


class LoggerOutput(KVWriter):
    """An output of Stable-Baselines3's logger: the curves of the run."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Add the numbers that are for TensorBoard."""
        self._curves.write(
            step,
            {
                name: float(value)
                for name, value in key_values.items()
                if isinstance(value, int | float | np.integer | np.floating)
                and "tensorboard" not in (key_excluded[name] or ())
            },
        )

    def close(self) -> None:
        """Do nothing: the run closes its curves."""


class SB3Learner(EnvironmentLearner[TrainConfig]):
    """A model of Stable-Baselines3 in its environments; steps are environment steps."""

    libraries = ("torch", "stable-baselines3", "sb3-contrib", "tensorboard")

    def __init__(self, config: TrainConfig, folder: Path, log: TrainingLog, curves: Curves) -> None:
        """Make environments and model, and set PyTorch's number of threads until :meth:`close`."""
        super().__init__(config, folder, log, curves)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(config.threads)
        try:
            self.model = make_model(config, wrap(config, make_environments(config, config.seed)))
        except ConfigError:
            self.close()
            raise
        self.model.set_logger(Logger(None, [LoggerOutput(curves)]))

    def close(self) -> None:
        """Restore PyTorch's number of threads."""
        torch.set_num_threads(self._threads)

    @property
    def steps(self) -> int:
        """Environment steps done."""
        return int(self.model.num_timesteps)

    def prepare(self) -> None:
        """Apply the warm start, and log the configuration for TensorBoard's comparison of runs."""
        config, warm = self.config, self.config.warm_start
        if warm is not None:
            arguments = config.env_configs()[0].model_dump()
            demonstrations = demonstrate(warm.policy, steps=warm.steps, seed=config.seed, **arguments)
            clone(self.model, demonstrations, epochs=warm.epochs, seed=config.seed)
        super().prepare()
        if not self.curves.missing:
            from torch.utils.tensorboard.summary import hparams

            metrics = {"eval/mean_reward": 0.0, f"kv/eval/{self.metric}": 0.0}
            settings = flat(config.model_dump(mode="json", exclude={"name", "summary"}))
            for summary in hparams(settings, metrics):  # type: ignore[no-untyped-call]
                self.curves.files.add(summary)

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Restore the content of a checkpoint."""
        super().restore(state, checkpoint)
        try:
            load_learner(self.model, checkpoint / "model.pt")
        except ConfigError as error:
            raise ConfigError(f"{error}; {REMEDY}") from error

    def learn(self, reached: Reached) -> None:
        """Train until the configured number of steps, and save the model for Stable-Baselines3.

        After a milestone, training goes on with new random generators and episodes; a resumed run begins with the same.
        """
        config, start = self.config, self.steps

        def between(steps: int) -> None:
            if reached(steps):
                fresh_start(self.model, config.seed, steps)

        if start < config.total_steps:
            curriculum = CurriculumCallback(config)
            # The curriculum comes first, so that new episodes at a milestone follow it.
            callbacks = CallbackList([curriculum, BetweenRollouts(between), MetricsCallback()])
            callbacks.init_callback(self.model)
            curriculum.apply(start)
            if start:
                fresh_start(self.model, config.seed, start)
            try:
                self.model.learn(
                    config.total_steps - start, callback=callbacks, reset_num_timesteps=start == 0
                )
            except ValueError as error:
                if all(bool(p.isfinite().all()) for p in self.model.policy.parameters()):
                    raise
                raise ConfigError(
                    f"training diverged by step {self.steps:,}: weights of the network are not finite; "
                    "try a lower learning_rate or a larger batch_size"
                ) from error
        with whole_file(self.folder / "model.zip") as place:
            self.model.save(place)

    def evaluate(self) -> Evaluation:
        """Play the evaluation's requests, and write what Stable-Baselines3 has logged since the last rollout."""
        found = super().evaluate()
        self.model.logger.dump(self.steps)
        return found

    def row(self, found: Mapping[str, float]) -> Row:
        """Return the row of ``curve.csv``."""
        row = {"steps": float(self.steps), "return": found["return"], **{name: found[name] for name in SHOWN}}
        return {**row, self.metric: found[self.metric]}

    def score(self, row: Mapping[str, float]) -> float:
        """Return the return where the configuration selects by it, else the metric, larger is better."""
        by_return = self.config.evaluation.select == "return"
        return self.valid(row["return"], row) if by_return else super().score(row)

    def agent(self, metadata: Mapping[str, Any]) -> NumpyModel:
        """Return the current agent as plain weights."""
        return export(self.model, self.config.env_configs()[0].model_dump(mode="json"), dict(metadata))

    def save(self, place: Path) -> None:
        """Write the state of the model."""
        save_learner(self.model, place / "model.pt")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Return nested settings as one level, ``{"env": {"rate": 20}}`` as ``{"env.rate": 20}``; None is left out."""
    found: dict[str, bool | float | str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
