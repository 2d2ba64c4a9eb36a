"""Training by whatever algorithm a configuration names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.agents.runs.config import TrainingConfig, kind_of, read_run_config
from kvgym.utils.arguments import explained
from kvgym.utils.files import alone_in


@explained
def train(
    config: TrainingConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Any:
    """Train an agent, by whatever algorithm its configuration names.

    Args:
        config: what to train, and how (:func:`kvgym.agents.load_training`).
        folder: the run folder; must not hold another run.
        command: the command line that led here, kept in ``run.json``.
        progress: called with what is done so far, in environment steps or generations.
        tell: called with the lines of ``train.log``: how far the run is, once a minute and at evaluations.

    Returns:
        What was reached: a :class:`kvgym.agents.sb3.run.TrainingResult`, or
        :class:`kvgym.agents.evolution.run.EvolutionResult`.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds a run already, or another process trains there.
    """
    runner = importlib.import_module(kind_of(config.algorithm).runner)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        return runner.train(config, folder, command=command, progress=progress, tell=tell)


@explained
def resume(
    folder: str | Path,
    *,
    length: int | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Any:
    """Go on with a run that was interrupted, from its last checkpoint; without one, from the beginning.

    With the same length the result equals, bit for bit, that of a run that was not interrupted.

    Args:
        folder: the run folder.
        length: environment steps or generations in all, instead of the run's own number.
        command: the command line that led here, added to ``run.json``.
        progress: called with what is done so far.
        tell: called with the lines of ``train.log``.

    Raises:
        ConfigError: the folder holds no run, or a longer one, or the last checkpoint cannot be read, or another
            process trains there.
    """
    config = read_run_config(Path(folder))
    runner = importlib.import_module(kind_of(config.algorithm).runner)
    with alone_in(folder):
        return runner.resume(folder, length=length, command=command, progress=progress, tell=tell)
