"""Training: from a configuration to a run folder with checkpoints, curves and the best agent.

A run folder holds ``config.yaml`` (resolved), ``run.json`` (versions, seed, commands), ``tensorboard/``,
``curve.csv`` (a row per evaluation), ``train.log`` (how far it is, a line a minute), ``checkpoints/``, ``best.npz``
(the best agent by the evaluation's metric, plain weights) and, at the end, ``final.npz`` and ``model.zip`` (the last
agent; plain weights, and for Stable-Baselines3).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.agents.runs.checkpoints import resumable
from kvgym.agents.runs.config import read_run_config
from kvgym.agents.runs.folder import check_free, context_of, note_resume, write_config, write_start
from kvgym.agents.runs.progress import Tell, TrainingLog
from kvgym.agents.sb3.algorithms import make_environments
from kvgym.agents.sb3.config import TrainConfig
from kvgym.agents.sb3.evaluation import baseline_metrics
from kvgym.agents.sb3.run import Run, TrainingResult
from kvgym.errors import ConfigError

try:
    import torch
except ImportError as error:
    raise ConfigError(f'training needs PyTorch: pip install "kvgym[train]" ({error})') from error

LIBRARIES = ("torch", "stable-baselines3", "sb3-contrib", "tensorboard")


def train(
    config: TrainConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Train an agent.

    Args:
        config: what to train, and how.
        folder: the run folder; must not hold another run.
        command: the command line that led here, kept in ``run.json``.
        progress: called with the environment steps done, after every rollout.
        tell: called with the lines of ``train.log``.

    Returns:
        What was reached; the agent is in ``best.npz``.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds a run already.
    """
    config = config.check()
    path = Path(folder)
    check_free(path)
    with _threads(config.threads):
        run = Run(config, path, _log(config, path, progress, tell))
        path.mkdir(parents=True, exist_ok=True)
        _prepare(run)
        write_start(path, config, _context(command))
        return _begin(run)


def resume(
    folder: str | Path,
    *,
    length: int | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Go on with a run that was interrupted, from its last checkpoint; without one, from the beginning.

    With the same number of steps the result equals, bit for bit, that of a run that was not interrupted.

    Args:
        folder: the run folder.
        length: environment steps in all, instead of the run's own number.
        command: the command line that led here, added to ``run.json``.
        progress: called with the environment steps done, after every rollout.
        tell: called with the lines of ``train.log``.

    Raises:
        ConfigError: the folder holds no run, or one of more steps, or the last checkpoint cannot be read.
    """
    path = Path(folder)
    config = read_run_config(path, length)
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"{path} holds a run of {config.algorithm}; go on with kvgym.agents.resume")
    checkpoint, state = resumable(path, length, "steps")
    steps = int(state["steps"])
    with _threads(config.threads):
        run = Run(config, path, _log(config, path, progress, tell))
        if steps:
            run.restore(state)
            run.build(checkpoint)
        else:  # the generators behind a warm start are in no checkpoint: it is repeated
            _prepare(run)
        note_resume(path, {"steps": steps, **_context(command)})
        if length is not None:
            write_config(path, config)
        if not steps:
            return _begin(run)
        if steps < config.total_steps:
            run.learn(steps)
        return run.finish()


def _prepare(run: Run) -> None:
    """Make environments and model of a new run, with its warm start, and measure the baselines."""
    run.build(None)
    _warm_start(run)
    run.baselines = baseline_metrics(run.config)


def _begin(run: Run) -> TrainingResult:
    """Train from the beginning."""
    run.log_hyperparameters()
    run.evaluate(0)
    run.save(0)
    run.learn(0)
    return run.finish()


def _warm_start(run: Run) -> None:
    """Start from a cloned baseline, or from a fixed action."""
    config, warm = run.config, run.config.warm_start
    if warm is None:
        return
    from kvgym.agents.sb3.cloning import clone
    from kvgym.agents.sb3.preference import prefer
    from kvgym.envs.demonstrations.record import demonstrate

    if warm.policy is not None:
        arguments = config.env_configs()[0].model_dump()
        demonstrations = demonstrate(warm.policy, steps=warm.steps, seed=config.seed, **arguments)
        clone(run.model, demonstrations, epochs=warm.epochs, seed=config.seed)
        return
    assert warm.action is not None
    envs = make_environments(config, config.seed)
    prefer(run.model, warm.action, envs, probability=warm.probability, steps=warm.steps, seed=config.seed)


def _log(
    config: TrainConfig, folder: Path, progress: Callable[[int], None] | None, tell: Tell | None
) -> TrainingLog:
    return TrainingLog(folder, config.total_steps, "steps", config.evaluation.metric, progress, tell)


def _context(command: str) -> dict[str, Any]:
    return context_of(command, LIBRARIES)


class _threads:  # noqa: N801
    """Sets PyTorch's number of threads for the time of a run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.number)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


__all__ = ["Run", "TrainingResult", "resume", "train"]
