"""Training with Stable-Baselines3, and the files of its run folder.

A run folder has ``config.yaml`` (resolved), ``run.json`` (versions, seed, commands), ``tensorboard/``, ``curve.csv``
(a row per evaluation), ``train.log`` (progress, a line a minute), ``checkpoints/``, ``best.npz`` (plain weights of
the best agent by the evaluation metric) and, at the end, ``final.npz`` and ``model.zip`` (the last agent, as plain
weights and for Stable-Baselines3).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.agents.runs.evaluation import baseline_metrics
from kvgym.agents.runs.folder import check_free, context_of, note_resume, reopen, write_config, write_start
from kvgym.agents.runs.progress import Echo, TrainingLog
from kvgym.agents.runs.result import TrainingResult
from kvgym.agents.sb3.algorithms import make_environments
from kvgym.agents.sb3.config import TrainConfig
from kvgym.agents.sb3.run import Run
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
    echo: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Train an agent.

    Arguments are those of :func:`kvgym.agents.train`.

    Raises:
        ConfigError: the configuration is wrong, or the folder has a run already.
    """
    config = config.check()
    path = Path(folder)
    check_free(path)
    with _threads(config.threads):
        run = Run(config, path, _log(config, path, progress, echo))
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
    echo: Callable[[str], None] | None = None,
) -> TrainingResult:
    """Continue a run from its last checkpoint; arguments are those of :func:`kvgym.agents.resume`.

    Raises:
        ConfigError: the folder has no run or a longer one, or the last checkpoint cannot be read.
    """
    path, config, checkpoint, state = reopen(folder, length, TrainConfig, "steps")
    steps = int(state["steps"])
    with _threads(config.threads):
        run = Run(config, path, _log(config, path, progress, echo))
        if steps:
            run.restore(state)
            run.build(checkpoint)
        else:  # no checkpoint has the generators of a warm start, so it is repeated
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
    """Make environments and model of a new run, apply its warm start, and run the baselines."""
    run.build(None)
    _warm_start(run)
    run.baselines = baseline_metrics(run.config.evaluation, run.config.evaluation_config())


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
    config: TrainConfig, folder: Path, progress: Callable[[int], None] | None, echo: Echo | None
) -> TrainingLog:
    return TrainingLog(folder, config.total_steps, "steps", config.evaluation.metric, progress, echo)


def _context(command: str) -> dict[str, Any]:
    return context_of(command, LIBRARIES)


class _threads:  # noqa: N801
    """Set PyTorch's number of threads during a run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.number)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


__all__ = ["Run", "resume", "train"]
