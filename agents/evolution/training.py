"""Evolution: from a configuration to a run folder with checkpoints, curves and the best agent.

A run folder holds ``config.yaml`` (resolved), ``run.json`` (versions, seed, commands), ``tensorboard/``,
``curve.csv`` (a row per evaluation), ``checkpoints/``, ``best.json`` (the agent that was best on the services held
out) and, at the end, ``final.json`` (the last one). An agent is the centre of the search, or the average of its centres
where the configuration says so.

Columns of ``curve.csv``; objectives are those of :mod:`kvgym.agents.evolution.objective`, smaller is better:

- ``generation``, and ``episodes`` and ``cpu_seconds`` so far, those of the references included;
- ``objective`` and ``objective_best``: on training services, the mean over candidates and the best candidate's, means
  over the generations since the row before;
- ``held_out``: of the agent on the services held out; ``best``: the least so far;
- ``failed``: share of the services held out that it does not serve;
- ``spread``: mean standard deviation of the search, in steps;
- ``improvement_<metric>``: by how many per cent it is better than the best reference of each service in that metric.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.agents.evolution.config import EvolutionConfig
from kvgym.agents.evolution.playing import Players
from kvgym.agents.evolution.run import EvolutionResult, Run
from kvgym.agents.evolution.strategies import STRATEGIES
from kvgym.agents.runs.checkpoints import REMEDY, read_part, resumable
from kvgym.agents.runs.config import read_run_config
from kvgym.agents.runs.folder import check_free, context_of, note_resume, write_config, write_start
from kvgym.agents.runs.progress import Tell, TrainingLog
from kvgym.errors import ConfigError, shown


def train(
    config: EvolutionConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> EvolutionResult:
    """Evolve the weights of a policy or a router.

    Args:
        config: what to train, and how.
        folder: the run folder; must not hold another run.
        command: the command line that led here, kept in ``run.json``.
        progress: called with the generations done, after each.
        tell: called with the lines of ``train.log``.

    Returns:
        What was reached; the agent is in ``best.json``.

    Raises:
        ConfigError: the configuration is wrong, or the folder holds a run already.
    """
    config, path = config.check(), Path(folder)
    check_free(path)
    with _players(config) as players:
        run = Run(config, path, players, _log(config, path, progress, tell))
        path.mkdir(parents=True, exist_ok=True)
        run.build(None)
        write_start(path, config, _context(config, command))
        run.learn()
        return run.finish()


def resume(
    folder: str | Path,
    *,
    length: int | None = None,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> EvolutionResult:
    """Go on with a run that was interrupted, from its last checkpoint; without one, from the beginning.

    With the same number of generations the result equals, bit for bit, that of a run that was not interrupted.

    Args:
        folder: the run folder.
        length: generations in all, instead of the run's own number.
        command: the command line that led here, added to ``run.json``.
        progress: called with the generations done, after each.
        tell: called with the lines of ``train.log``.

    Raises:
        ConfigError: the folder holds no run, or one of more generations, or the last checkpoint cannot be read.
    """
    path = Path(folder)
    config = read_run_config(path, length)
    if not isinstance(config, EvolutionConfig):
        raise ConfigError(f"{path} holds a run of {config.algorithm}; go on with kvgym.agents.resume")
    checkpoint, state = resumable(path, length, "generations")
    if checkpoint is not None:
        state["strategy"] = read_part(checkpoint, "strategy.json")
    with _players(config) as players:
        run = Run(config, path, players, _log(config, path, progress, tell))
        try:
            run.build(None if checkpoint is None else state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if checkpoint is None or isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the latest checkpoint of {path} is damaged: {shown(error)}; {REMEDY}"
            ) from error
        note_resume(path, {"generations": state["steps"], **_context(config, command)})
        if length is not None:
            write_config(path, config)
        run.learn()
        return run.finish()


def _log(
    config: EvolutionConfig, folder: Path, progress: Callable[[int], None] | None, tell: Tell | None
) -> TrainingLog:
    metric = f"{config.metric} better by (%)"
    return TrainingLog(folder, config.generations, "generations", metric, progress, tell)


def _players(config: EvolutionConfig) -> Players:
    return Players(config.services, config.jobs, config.ray)


def _context(config: EvolutionConfig, command: str) -> dict[str, Any]:
    return context_of(command, STRATEGIES[config.algorithm].libraries)
