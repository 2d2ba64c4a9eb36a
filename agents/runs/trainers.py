"""Train with the algorithm that a configuration names, or resume a run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.agents.runs.config import TrainingConfig, kind_of, read_run_config
from kvgym.agents.runs.tracker import check_tracker
from kvgym.utils.arguments import explained
from kvgym.utils.files import alone_in


@explained
def train(
    config: TrainingConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    echo: Callable[[str], None] | None = None,
) -> Any:
    """Train an agent with the algorithm of its configuration.

    Args:
        config: see :func:`kvgym.agents.load_training`.
        folder: the run folder; must not have another run.
        command: the command line, kept in ``run.json``.
        progress: called with the environment steps or generations done.
        echo: called with each line of ``train.log``: the progress, once a minute and at evaluations.

    Returns:
        The result: a :class:`kvgym.agents.runs.result.TrainingResult`, or
        :class:`kvgym.agents.evolution.run.EvolutionResult`.

    Raises:
        ConfigError: the configuration is wrong, its tracker is not installed, the folder has a run already, or another
            process trains there.
    """
    runner = importlib.import_module(kind_of(config.algorithm).runner)
    check_tracker(config)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        return runner.train(config, folder, command=command, progress=progress, echo=echo)


@explained
def resume(
    folder: str | Path,
    *,
    length: int | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    echo: Callable[[str], None] | None = None,
) -> Any:
    """Continue an interrupted run from its last checkpoint, or from the beginning if there is none.

    With the same length the result equals, bit for bit, that of an uninterrupted run.

    Args:
        folder: the run folder.
        length: new total of environment steps or generations; None = the run's own.
        command: the command line, added to ``run.json``.
        progress: called with the environment steps or generations done.
        echo: called with each line of ``train.log``.

    Raises:
        ConfigError: the folder has no run or a longer one, the last checkpoint cannot be read, or another process
            trains there.
    """
    config = read_run_config(Path(folder))
    runner = importlib.import_module(kind_of(config.algorithm).runner)
    check_tracker(config)
    with alone_in(folder):
        return runner.resume(folder, length=length, command=command, progress=progress, echo=echo)
