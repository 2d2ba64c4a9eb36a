"""A training run: folder, checkpoints, evaluations and the choice of the best agent, whatever learns.

A run folder has ``config.yaml`` (resolved), ``run.json`` (versions, seed, commands), ``tensorboard/``, ``curve.csv``
(a row per evaluation; the module of each learner has the columns), ``train.log`` (progress, a line a minute),
``checkpoints/``, the best agent as ``best`` and, at the end, the last one as ``final``: ``.npz`` for plain weights of a
network, ``.json`` for an evolved policy or router.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.agents.runs.checkpoints import REMEDY, save_checkpoint
from kvgym.agents.runs.config import TrainingConfig, kind_of, read_run_config
from kvgym.agents.runs.folder import (
    check_free,
    context_of,
    note_resume,
    resumable,
    write_config,
    write_curve,
    write_start,
)
from kvgym.agents.runs.learner import Learner, Row, numbers, step_of
from kvgym.agents.runs.progress import Echo, TrainingLog
from kvgym.agents.runs.tracker import Curves, check_tracker
from kvgym.errors import ConfigError, shown
from kvgym.experiments.result_files import jsonable
from kvgym.utils.arguments import explained
from kvgym.utils.files import alone_in, remove_left

Progress = Callable[[int], None]


@dataclass(frozen=True)
class TrainingResult:
    """Result of a finished run.

    Attributes:
        folder: the run folder.
        steps: environment steps, updates or generations done.
        best: evaluation metric of the best agent; for evolution, its gain over the references in per cent. NaN if no
            agent served all requests.
        best_step: when the best agent was found.
        lower_is_better: whether lower values of ``best`` are better.
        baselines: metric of each baseline on the same requests; NaN if it failed.
        curve: rows of ``curve.csv``.
        lines: the result for users.
        agent: file of the best agent, of the last one if there is none.
    """

    folder: Path
    steps: int
    best: float
    best_step: int
    lower_is_better: bool
    baselines: dict[str, float]
    curve: tuple[Row, ...]
    lines: tuple[str, ...]
    agent: Path

    def report(self) -> list[str]:
        """Return the result as lines; the last one is the file of the agent."""
        return [*self.lines, f"agent: {self.agent}"]


@explained
def train(
    config: TrainingConfig,
    folder: str | Path,
    *,
    command: str = "",
    progress: Progress | None = None,
    echo: Echo | None = None,
) -> TrainingResult:
    """Train an agent with the algorithm of its configuration.

    Args:
        config: see :func:`kvgym.agents.load_training`.
        folder: the run folder; must not have another run.
        command: the command line, kept in ``run.json``.
        progress: called with the environment steps, updates or generations done.
        echo: called with each line of ``train.log``: the progress, once a minute and at evaluations.

    Raises:
        ConfigError: the configuration is wrong, its tracker is not installed, the folder has a run already, or another
            process trains there.
    """
    path = Path(folder)
    check_tracker(config)
    path.mkdir(parents=True, exist_ok=True)
    with alone_in(path):
        config = config.check()
        check_free(path)
        with _opened(config, path, progress, echo) as run:
            run.learner.prepare()
            write_start(path, config, context_of(command, run.learner.libraries))
            return run.train()


@explained
def resume(
    folder: str | Path,
    *,
    length: int | None = None,
    command: str = "",
    progress: Progress | None = None,
    echo: Echo | None = None,
) -> TrainingResult:
    """Continue an interrupted run from its last checkpoint, or from the beginning if it has made no update.

    With the same length the result equals, bit for bit, what an uninterrupted run gives.

    Args:
        folder: the run folder.
        length: new total of environment steps, updates or generations; None = the run's own.
        command: the command line, added to ``run.json``.
        progress: called with the environment steps, updates or generations done.
        echo: called with each line of ``train.log``.

    Raises:
        ConfigError: the folder has no run or a longer one, the last checkpoint cannot be read, or another process
            trains there.
    """
    path = Path(folder)
    config = read_run_config(path, length)
    check_tracker(config)
    with alone_in(path):
        checkpoint, state = resumable(path, length, config.units)
        with _opened(config, path, progress, echo) as run:
            if checkpoint is None:
                run.learner.prepare()
            else:
                run.restore(state, checkpoint)
            note_resume(path, {config.units: state["steps"], **context_of(command, run.learner.libraries)})
            if length is not None:
                write_config(path, config)
            return run.train()


@contextlib.contextmanager
def _opened(
    config: TrainingConfig, folder: Path, progress: Progress | None, echo: Echo | None
) -> Iterator[Run]:
    """Return the run in a folder, and close what it has opened."""
    remove_left(folder)
    log = TrainingLog(folder, config.length, config.units, config.figure, progress, echo)
    with contextlib.closing(Curves(config, folder)) as curves:
        learner = kind_of(config.algorithm).learner_class()(config, folder, log, curves)
        with contextlib.closing(learner):
            yield Run(config, folder, learner, log, curves)


class Run:
    """A run in its folder.

    Args:
        config: the configuration.
        folder: the run folder.
        learner: of the configuration's algorithm.
        log: of the progress.
        curves: for TensorBoard and a tracker.
    """

    def __init__(
        self, config: TrainingConfig, folder: Path, learner: Learner[Any], log: TrainingLog, curves: Curves
    ) -> None:
        self.config, self.folder, self.learner, self.log, self.curves = config, folder, learner, log, curves
        self.rows: list[Row] = []
        self.best: Row | None = None
        self._score = -math.inf  # of the best
        self._next = config.interval  # steps at the next evaluation

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Continue from a checkpoint.

        Args:
            state: content of its ``state.json``.
            checkpoint: its folder.

        Raises:
            ConfigError: it is damaged.
        """
        try:
            self.rows = [numbers(row) for row in state["rows"]]
            if any(row.keys() != self.rows[-1].keys() for row in self.rows):
                raise ValueError("rows with different figures")
            if state["best"] is not None:
                found = {step_of(row): row for row in self.rows}
                self.best = found[state[f"best_{self.config.UNIT}"]]
                self._score = self.learner.score(self.best)
            self.learner.restore(state, checkpoint)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"the latest checkpoint of {self.folder} is damaged: {shown(error)}; {REMEDY}"
            ) from error
        self._plan(self.learner.steps)

    def train(self) -> TrainingResult:
        """Train to the end, and save the last agent."""
        if not self.rows:
            self.milestone()
        self.learner.learn(self.reached)
        if step_of(self.rows[-1]) < self.learner.steps:
            self.milestone()
        last = self.keep("final")
        best = self.best
        notes = [f"note: {self.curves.missing}"] if self.curves.missing else []
        return TrainingResult(
            folder=self.folder,
            steps=self.learner.steps,
            best=math.nan if best is None else self.learner.value(best),
            best_step=0 if best is None else step_of(best),
            lower_is_better=self.learner.lower_is_better,
            baselines={label: self.learner.value(values) for label, values in self.learner.baselines.items()},
            curve=tuple(self.rows),
            lines=(*notes, *self.learner.report(self.rows, best)),
            agent=last if best is None else last.with_stem("best"),
        )

    def reached(self, done: int) -> bool:
        """Record the steps done; return whether that was a milestone."""
        self.log.passed(done)
        if done < self._next:
            return False
        self._plan(done)
        self.milestone()
        return True

    def _plan(self, done: int) -> None:
        interval = self.config.interval
        self._next = (done // interval + 1) * interval

    def milestone(self) -> None:
        """Evaluate the agent, keep it if it is the best so far, and save a checkpoint."""
        found = self.learner.evaluate()
        self.rows.append(found.row)
        if found.score > self._score:
            self.best, self._score = found.row, found.score
            self.keep("best")
        write_curve(self.folder, self.rows)
        self.curves.write(self.learner.steps, found.points)
        self.curves.flush()
        self.log.evaluated(self.learner.steps, self.learner.value(found.row))
        self.save()

    def keep(self, name: str) -> Path:
        """Write the current agent under a name, and return the file to be used."""
        for suffix, agent in self.learner.export(self.rows[-1]).items():
            path = self.folder / f"{name}{suffix}"
            agent.save(path)
        return path

    def save(self) -> None:
        """Save a checkpoint."""
        steps, best = self.learner.steps, self.best
        state = {
            "steps": steps,
            "best": None if best is None else self.learner.value(best),
            f"best_{self.config.UNIT}": 0 if best is None else step_of(best),
            "rows": jsonable(self.rows),
            **self.learner.state(),
        }
        save_checkpoint(
            self.folder / "checkpoints", steps, self.learner.save, state, self.config.keep_checkpoints
        )
