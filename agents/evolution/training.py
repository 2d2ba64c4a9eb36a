"""Training by evolution, and the files of its run folder.

A run folder has ``config.yaml`` (resolved), ``run.json`` (versions, seed, commands), ``tensorboard/``,
``curve.csv`` (a row per evaluation), ``checkpoints/``, ``best.json`` (the best agent on the held-out services) and,
at the end, ``final.json`` (the last agent). An agent is the centre of the search, or the average of its centres if
the configuration has ``average``. With a predictor (:mod:`.predictor`) there are also ``best.npz`` and ``final.npz``,
the agents that have both, and ``predictor.npz``.

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

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.agents.evolution.config import EvolutionConfig
from kvgym.agents.evolution.playing import Players
from kvgym.agents.evolution.predictor import Predictor, fit_predictor
from kvgym.agents.evolution.run import PREDICTOR, EvolutionResult, Run
from kvgym.agents.evolution.strategies import STRATEGIES
from kvgym.agents.runs.checkpoints import REMEDY, read_part
from kvgym.agents.runs.folder import check_free, context_of, note_resume, reopen, write_config, write_start
from kvgym.agents.runs.progress import Echo, TrainingLog
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.errors import ConfigError, shown


def train(
    config: EvolutionConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[int], None] | None = None,
    echo: Callable[[str], None] | None = None,
) -> EvolutionResult:
    """Evolve the weights of a policy or a router.

    Arguments are those of :func:`kvgym.agents.train`.

    Raises:
        ConfigError: the configuration is wrong, or the folder has a run already.
    """
    config, path = config.check(), Path(folder)
    check_free(path)
    log = _log(config, path, progress, echo)
    path.mkdir(parents=True, exist_ok=True)
    predictor, note = _new_predictor(config, path, log)
    with _players(config, predictor) as players:
        run = Run(config, path, players, log, predictor, note)
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
    echo: Callable[[str], None] | None = None,
) -> EvolutionResult:
    """Continue a run from its last checkpoint; arguments are those of :func:`kvgym.agents.resume`.

    Raises:
        ConfigError: the folder has no run or a longer one, or the last checkpoint cannot be read.
    """
    path, config, checkpoint, state = reopen(folder, length, EvolutionConfig, "generations")
    if checkpoint is not None:
        state["strategy"] = read_part(checkpoint, "strategy.json")
    log = _log(config, path, progress, echo)
    if checkpoint is None:
        predictor, note = _new_predictor(config, path, log)
    else:
        file = path / PREDICTOR
        predictor = Predictor(NumpyModel.load(file)) if file.is_file() else None
        note = str(state.get("predictor", ""))
    with _players(config, predictor) as players:
        run = Run(config, path, players, log, predictor, note)
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
    config: EvolutionConfig, folder: Path, progress: Callable[[int], None] | None, echo: Echo | None
) -> TrainingLog:
    metric = f"{config.metric} better by (%)"
    return TrainingLog(folder, config.generations, "generations", metric, progress, echo)


def _new_predictor(config: EvolutionConfig, folder: Path, log: TrainingLog) -> tuple[Predictor | None, str]:
    """Fit a predictor if the configuration has one, and save it if it is used; also return a sentence for users."""
    (folder / PREDICTOR).unlink(missing_ok=True)
    if config.predictor is None:
        return None, ""
    starts = {**config.fixed, **config.learned()[1], **config.read_start()}
    predictor, note = fit_predictor(
        config.services, config.policy, starts, config.metric, config.predictor, config.seed
    )
    log.note(note)
    if predictor is not None:
        predictor.model.save(folder / PREDICTOR)
    return predictor, note


def _players(config: EvolutionConfig, predictor: Predictor | None) -> Players:
    return Players(config.services, config.jobs, config.ray, predictor)


def _context(config: EvolutionConfig, command: str) -> dict[str, Any]:
    return context_of(command, STRATEGIES[config.algorithm].libraries)
