"""A training run with Stable-Baselines3: model, evaluations, curves and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from kvgym.agents.runs.checkpoints import REMEDY, save_checkpoint
from kvgym.agents.runs.evaluation import Evaluator
from kvgym.agents.runs.folder import write_curve
from kvgym.agents.runs.limits import MAX_STEPS
from kvgym.agents.runs.progress import TrainingLog
from kvgym.agents.runs.result import TrainingResult
from kvgym.agents.runs.tracker import Tracker
from kvgym.agents.sb3.algorithms import make_environments, make_model, wrap
from kvgym.agents.sb3.callbacks import (
    SHOWN,
    CurriculumCallback,
    MetricsCallback,
    MilestoneCallback,
    fresh_start,
)
from kvgym.agents.sb3.config import TrainConfig
from kvgym.agents.sb3.export import export
from kvgym.agents.sb3.learner_state import load_learner, save_learner
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.errors import ConfigError, shown
from kvgym.experiments.result_files import jsonable
from kvgym.metrics.compute import metric_info
from kvgym.utils.files import remove_left, whole_file
from kvgym.utils.reading import validate_fields

try:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import CallbackList
    from stable_baselines3.common.logger import HParam, KVWriter, configure
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise ConfigError(
        f'training needs Stable-Baselines3 and TensorBoard: pip install "kvgym[train]" ({error})'
    ) from error

LIBRARIES = ("torch", "stable-baselines3", "sb3-contrib", "tensorboard")


class _Counters(BaseModel):
    """Content of ``state.json`` of a checkpoint; None stands for values that are not finite."""

    steps: int = Field(ge=0, le=MAX_STEPS)
    best: float | None
    best_step: int = Field(ge=0)
    best_score: float | None
    rows: list[dict[str, float | None]] = Field(min_length=1)
    baselines: dict[str, dict[str, float | None]]


class TrackerOutput(KVWriter):
    """An output of Stable-Baselines3's logger that sends to a tracker what TensorBoard gets."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Send the numbers that TensorBoard gets."""
        self._tracker.write(
            step,
            {
                name: float(value)
                for name, value in key_values.items()
                if isinstance(value, int | float | np.integer | np.floating)
                and "tensorboard" not in (key_excluded[name] or ())
            },
        )

    def close(self) -> None:
        """End the run."""
        self._tracker.close()


class Run:
    """A training run in its folder; see :func:`train` and :func:`resume`."""

    def __init__(self, config: TrainConfig, folder: Path, log: TrainingLog | None = None) -> None:
        """Prepare a new or resumed run."""
        self.config, self.folder, self.log = config, folder, log
        self.checkpoints = folder / "checkpoints"
        self.evaluator = Evaluator(config.evaluation_config(), config.evaluation.workload_seeds)
        self.baselines: dict[str, dict[str, float]] = {}
        self.rows: list[dict[str, float]] = []
        self.best, self.best_step, self.best_score = float("nan"), 0, -math.inf
        self.saved = -1
        self.model: BaseAlgorithm
        self.tracker: Tracker | None = None
        self._writers: dict[str, SummaryWriter] = {}

    def build(self, checkpoint: Path | None) -> None:
        """Make environments and model, from a checkpoint if there is one."""
        config = self.config
        remove_left(self.folder)
        envs = make_environments(config, config.seed)
        self.model = make_model(config, wrap(config, envs))
        if checkpoint is not None:
            try:
                load_learner(self.model, checkpoint / "model.pt")
            except ConfigError as error:
                raise ConfigError(f"{error}; {REMEDY}") from error
        logger = configure(str(self.folder / "tensorboard"), ["tensorboard"])
        if config.tracker is not None:
            self.tracker = Tracker(config, self.folder)
            logger.output_formats.append(TrackerOutput(self.tracker))
        self.model.set_logger(logger)

    def save(self, steps: int) -> None:
        """Save a checkpoint."""

        def write(place: Path) -> None:
            save_learner(self.model, place / "model.pt")

        state = {
            "steps": steps,
            "best": None if math.isnan(self.best) else self.best,
            "best_step": self.best_step,
            "best_score": self.best_score if math.isfinite(self.best_score) else None,
            "rows": jsonable(self.rows),
            "baselines": jsonable(self.baselines),
        }
        save_checkpoint(self.checkpoints, steps, write, state, self.config.keep_checkpoints)
        self.saved = steps

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the counters of a checkpoint.

        Raises:
            ConfigError: they are damaged.
        """
        origin = f"the latest checkpoint of {self.folder}"
        found = validate_fields(_Counters, state, origin)
        expected = {*SHOWN, self.config.evaluation.metric}
        for figures in found.rows:
            if figures.keys() != {"steps", "return", *expected} or figures["steps"] is None:
                raise ConfigError(f"{origin}: rows with other figures; {REMEDY}")
        for label, figures in found.baselines.items():
            if not expected <= figures.keys():
                raise ConfigError(f"{origin}: baseline {shown(label)} without its figures; {REMEDY}")
        self.saved, self.best_step = found.steps, found.best_step
        self.rows = [_numbers(row) for row in found.rows]
        self.best = float("nan") if found.best is None else found.best
        self.best_score = -math.inf if found.best_score is None else found.best_score
        self.baselines = {label: _numbers(values) for label, values in found.baselines.items()}

    def agent(self, steps: int, metrics: Mapping[str, float] | None = None) -> NumpyModel:
        """Return the current agent as plain weights."""
        config = self.config
        metadata = {
            "name": config.name,
            "summary": config.summary,
            "steps": steps,
            "seed": config.seed,
            "evaluation": jsonable(dict(metrics or {})),
            "training": config.model_dump(mode="json", exclude={"tracker"}),
        }
        return export(self.model, config.env_configs()[0].model_dump(mode="json"), metadata)

    def evaluate(self, steps: int) -> None:
        """Evaluate the current agent, log the result, and keep the agent if it is the best so far."""
        metric = self.config.evaluation.metric
        agent = self.agent(steps)
        found = {name: _mean(values) for name, values in self.evaluator.play(agent).items()}
        row = {"steps": float(steps), "return": found["return"], **{name: found[name] for name in SHOWN}}
        row[metric] = found[metric]
        self.rows.append(row)
        if self.score(found) > self.best_score:
            self.best, self.best_step, self.best_score = found[metric], steps, self.score(found)
            self.agent(steps, row).save(self.folder / "best.npz")
        write_curve(self.folder, [{**row, "steps": int(row["steps"])} for row in self.rows])
        logger = self.model.logger
        for name in dict.fromkeys((*SHOWN, metric, "return")):
            if not math.isnan(found[name]):
                logger.record(f"kv/eval/{name}", found[name])
        # The names of Stable-Baselines3's own evaluations.
        logger.record("eval/mean_reward", found["return"])
        logger.record("eval/mean_ep_length", found["length"])
        logger.dump(steps)
        self._log_baselines(steps)
        if self.log is not None:
            self.log.evaluated(steps, found[metric])

    def log_hyperparameters(self) -> None:
        """Log the configuration and the metrics to compare runs by, for TensorBoard."""
        metrics = {"eval/mean_reward": 0.0, f"kv/eval/{self.config.evaluation.metric}": 0.0}
        shown = flat(self.config.model_dump(mode="json", exclude={"name", "summary"}))
        self.model.logger.record("hparams", HParam(shown, metrics))

    def score(self, found: Mapping[str, float]) -> float:
        """Return the score of an agent, larger is better; -inf if requests were left or there is no value."""
        evaluation = self.config.evaluation
        lower = metric_info(evaluation.metric).lower_is_better
        value = found["return"]
        if evaluation.select == "metric":
            value = -found[evaluation.metric] if lower else found[evaluation.metric]
        incomplete = bool(lower) and found["unfinished"] > 0
        return -math.inf if incomplete or math.isnan(value) else value

    def _log_baselines(self, steps: int) -> None:
        """Log each baseline's value as a separate line in the agent's charts, and as a curve of the tracker."""
        metric = self.config.evaluation.metric
        if self.tracker is not None:
            self.tracker.write(
                steps, {f"baselines/{label}": values[metric] for label, values in self.baselines.items()}
            )
        for label, values in self.baselines.items():
            if label not in self._writers:
                place = "".join(c if c.isalnum() or c in "_-." else "-" for c in label)
                self._writers[label] = SummaryWriter(str(self.folder / "tensorboard" / f"baseline-{place}"))
            for name in dict.fromkeys((*SHOWN, metric)):
                if not math.isnan(values[name]):
                    self._writers[label].add_scalar(f"kv/eval/{name}", values[name], steps)
            self._writers[label].flush()

    def milestone(self, steps: int) -> None:
        """Evaluate, save a checkpoint, and continue with new random generators and episodes."""
        self.evaluate(steps)
        self.save(steps)
        fresh_start(self.model, self.config.seed, steps)

    def learn(self, start: int) -> None:
        """Train until the configured number of steps."""
        config = self.config
        curriculum = CurriculumCallback(config)
        milestones = MilestoneCallback(
            config.evaluation.interval, start, self.milestone, None if self.log is None else self.log.passed
        )
        # The curriculum comes first, so that new episodes at a milestone follow it.
        callbacks = CallbackList([curriculum, milestones, MetricsCallback()])
        remaining = config.total_steps - start
        callbacks.init_callback(self.model)
        curriculum.apply(start)
        if start:
            fresh_start(self.model, config.seed, start)
        try:
            self.model.learn(remaining, callback=callbacks, reset_num_timesteps=start == 0)
        except ValueError as error:
            if all(bool(p.isfinite().all()) for p in self.model.policy.parameters()):
                raise
            raise ConfigError(
                f"training diverged by step {self.model.num_timesteps:,}: weights of the network are not finite; "
                "try a lower learning_rate or a larger batch_size"
            ) from error

    def finish(self) -> TrainingResult:
        """Evaluate and save the last agent."""
        steps = int(self.model.num_timesteps)
        if not self.rows or self.rows[-1]["steps"] < steps:
            self.evaluate(steps)
        if self.saved != steps:
            self.save(steps)
        self.agent(steps, self.rows[-1]).save(self.folder / "final.npz")
        with whole_file(self.folder / "model.zip") as place:
            self.model.save(place)
        self.model.logger.close()
        for writer in self._writers.values():
            writer.close()
        return self.result(steps)

    def result(self, steps: int) -> TrainingResult:
        """Return the result of the run."""
        metric = self.config.evaluation.metric
        return TrainingResult(
            folder=self.folder,
            steps=steps,
            best=self.best,
            best_step=self.best_step,
            baselines={label: values[metric] for label, values in self.baselines.items()},
            curve=tuple(self.rows),
            metric=metric,
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | str]:
    """Return nested settings as one level, ``{"env": {"rate": 20}}`` as ``{"env.rate": 20}``; None is left out."""
    found: dict[str, bool | float | str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, bool | int | float | str) else str(value)
    return found


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return values from JSON, with NaN for None."""
    return {name: float("nan") if value is None else value for name, value in values.items()}


def _mean(values: Any) -> float:
    """Return the mean over the seeds; NaN if a seed has no value."""
    return float(np.mean(values)) if not np.isnan(values).any() else float("nan")
