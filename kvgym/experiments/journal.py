"""Journal of completed runs: a line per run, written when it finishes, so that nothing is run twice."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgym.errors import ConfigError, KVGymError, some
from kvgym.experiments.identity import run_keys, setting_key
from kvgym.experiments.runs import PlannedRun, Played, Player, RunRecord, play_runs
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.catalogue import metric_names
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import make_router
from kvgym.utils.execution import Executor, make_executor
from kvgym.utils.files import UNFINISHED, alone_in, open_plain
from kvgym.utils.reading import mapping, parse_json, validate_fields

FILE = "runs.jsonl"
"""Name of a sweep's journal."""


Play = Callable[[Sequence[PlannedRun]], Iterator[tuple[int, Played]]]
"""Executes runs; yields the place and the result of each when it finishes, in any order."""

_START = '{"key": "'
"""Prefix of every line."""


class Journal:
    """The journal of a folder, open for one process at a time; a context manager that closes it.

    An incomplete last line, left by a killed process, is dropped when the file is opened.

    Args:
        folder: created if missing.
        file: name of the file in it.

    Raises:
        ConfigError: the folder cannot be written, another process has it open, or the file is not a journal.

    Attributes:
        known: completed runs by key.
    """

    def __init__(self, folder: str | Path, file: str = FILE) -> None:
        self.path = Path(folder) / file
        with contextlib.ExitStack() as opened:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                opened.enter_context(alone_in(self.path.parent))
                self._file = open_plain(self.path, "a+")
            except OSError as error:
                raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
            opened.callback(self._close_file)
            self.known = self._read()
            self._opened = opened.pop_all()

    def add(self, key: str, played: Played) -> None:
        """Write a run, so that it is kept however this process ends.

        Raises:
            KVGymError: it cannot be written, e.g. because the disk is full; earlier runs are kept.
        """
        self.known[key] = replace(played, result=None)
        try:
            self._file.write(_line(key, played))
            self._file.flush()
        except OSError as error:
            raise KVGymError(
                f"{self.path}: cannot be written: {error.strerror}; the {len(self.known) - 1:,} earlier runs are kept; "
                "resume when there is space"
            ) from None

    def close(self) -> None:
        """Close the file and unlock the folder."""
        self._opened.close()

    def _close_file(self) -> None:
        with contextlib.suppress(OSError):  # a line could not be written; add() has reported it
            self._file.close()
        with contextlib.suppress(OSError):
            if not self.path.stat().st_size:  # no run to resume from
                self.path.unlink()

    def __enter__(self) -> Journal:
        """Return the journal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def _read(self) -> dict[str, Played]:
        self._file.seek(0)
        found: dict[str, Played] = {}
        number, end = 0, 0
        while line := self._next(number + 1):
            number += 1
            if not line.endswith("\n"):
                if not (line.startswith(_START) or _START.startswith(line)):
                    raise ConfigError(f"{self.path}, line {number}: not a run; choose another folder")
                self._file.truncate(end)
                break
            end = self._file.tell()
            key, played = self._parse(line, number)
            found[key] = played
        self._file.seek(0, 2)
        return found

    def _parse(self, line: str, number: int) -> tuple[str, Played]:
        origin = f"{self.path}, line {number}"
        try:
            content = mapping(parse_json(line, origin, finite=True), origin)
            return validate_fields(_Line, content, origin).played()
        except ConfigError as error:
            raise ConfigError(
                f"{error}; not a run: choose another folder, or remove the line", error.details
            ) from None

    def _next(self, number: int) -> str:
        try:
            return self._file.readline()
        except UnicodeDecodeError:
            raise ConfigError(f"{self.path}, line {number}: not text; choose another folder") from None


class RunKeys:
    """Keys of runs, see :mod:`kvgym.experiments.identity`; what runs share is hashed once."""

    def __init__(self) -> None:
        self._settings: dict[str, str] = {}

    def setting(self, scenario: Scenario) -> str:
        """Return the key of a scenario, see :func:`~kvgym.experiments.identity.setting_key`."""
        text = scenario.model_dump_json()
        if text not in self._settings:
            self._settings[text] = setting_key(scenario)
        return self._settings[text]

    def of(self, runs: Sequence[PlannedRun]) -> list[str]:
        """Return the key of each run."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for place, run in enumerate(runs):
            shared = (id(run.scenario), id(run.policy), id(run.router), run.measure)
            alike.setdefault(shared, []).append(place)
        keys = [""] * len(runs)
        for places in alike.values():
            run = runs[places[0]]
            policy = make_policy(run.policy) if isinstance(run.policy, str) else run.policy
            router = run.scenario.make_router() if run.router is None else run.router
            router = make_router(router) if isinstance(router, str) else router
            seeds = [runs[place].seed for place in places]
            found = run_keys(self.setting(run.scenario), policy, router, seeds, run.measure)
            for place, key in zip(places, found, strict=True):
                keys[place] = key
        return keys


def play_kept(
    runs: Sequence[PlannedRun],
    keys: Sequence[str],
    executor: Executor[Sequence[PlannedRun], list[Played]],
    journal: Journal | None,
) -> Iterator[tuple[int, Played]]:
    """Execute runs as :func:`~kvgym.experiments.runs.play_runs` does, but reuse those in a journal.

    Args:
        runs: the runs; a run that keeps its result is always executed.
        keys: keys of the runs, see :class:`RunKeys`; not read without a journal.
        executor: executor of a :class:`~kvgym.experiments.runs.Player`.
        journal: journal that saves each run when it finishes; None = not saved.
    """
    if journal is None:
        yield from play_runs(runs, executor)
        return
    left = []
    for place, (run, key) in enumerate(zip(runs, keys, strict=True)):
        if key in journal.known and not run.keep:
            known = journal.known[key]  # by another name, perhaps: keys are those of what runs
            yield place, replace(known, record=replace(known.record, policy=run.label))
        else:
            left.append(place)
    for number, played in play_runs([runs[place] for place in left], executor):
        journal.add(keys[left[number]], played)
        yield left[number], played


@contextlib.contextmanager
def kept_runs(
    player: Player, folder: str | Path | None, *, jobs: int | None = 1, ray: str | None = None
) -> Iterator[Play]:
    """Yield a function that executes runs; those of an interrupted command are reused from its folder.

    Args:
        player: executes the runs.
        folder: folder that saves each run, in ``unfinished.jsonl``; None = not saved.
        jobs: processes, see :func:`kvgym.utils.execution.make_executor`.
        ray: run on a Ray cluster instead, see the same function.

    Raises:
        ConfigError: the folder cannot be written, or another process has it open.
    """
    keys = RunKeys()
    with contextlib.ExitStack() as opened:
        journal = None if folder is None else opened.enter_context(Journal(folder, UNFINISHED))
        executor = opened.enter_context(make_executor(player, jobs, ray=ray))

        def play(runs: Sequence[PlannedRun]) -> Iterator[tuple[int, Played]]:
            return play_kept(runs, [] if journal is None else keys.of(runs), executor, journal)

        yield play


def _line(key: str, played: Played) -> str:
    record = asdict(played.record)
    for figures in (record["metrics"], *record["workers"]):
        figures |= {name: _number(x) for name, x in figures.items() if isinstance(x, float)}
    content = {"key": key, **record, "num_requests": played.num_requests, "notes": list(played.notes)}
    if played.measured:
        content["measured"] = {name: _number(value) for name, value in played.measured.items()}
    return json.dumps(content, allow_nan=False) + "\n"


Figure = float | Literal["inf", "-inf"] | None
"""A number as stored in a line: JSON has neither infinity nor NaN."""


def _number(value: float) -> Figure:
    """Return a number for JSON: infinities as text, NaN as null."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def _float(value: Figure) -> float:
    return math.nan if value is None else float(value)


class _Line(BaseModel):
    """The contents of a line; null stands for NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    key: str
    policy: str
    seed: int = Field(ge=0)
    metrics: dict[str, Figure]
    error: str
    completed_once: bool
    wall_time: float = Field(ge=0)
    workers: list[dict[str, int | float | str | None]]
    num_requests: int = Field(ge=0)
    notes: list[str]
    measured: dict[str, Figure] = Field(default_factory=dict)

    def played(self) -> tuple[str, Played]:
        """Return key and run.

        Raises:
            ConfigError: the line has metrics unknown to this version.
        """
        known = metric_names()
        unknown = self.metrics.keys() - set(known)
        if unknown:
            raise ConfigError(f"unknown metrics {some(sorted(unknown))}")
        values = {name: self.metrics.get(name) for name in known}
        record = RunRecord(
            policy=self.policy,
            seed=self.seed,
            metrics={name: _float(value) for name, value in values.items()},
            error=self.error,
            completed_once=self.completed_once,
            wall_time=self.wall_time,
            workers=tuple(
                {name: math.nan if x is None else x for name, x in worker.items()} for worker in self.workers
            ),
        )
        measured = {name: _float(value) for name, value in self.measured.items()}
        return self.key, Played(record, self.num_requests, tuple(self.notes), measured=measured)


def has_runs(folder: str | Path) -> bool:
    """Whether a folder has runs of a sweep."""
    with contextlib.suppress(OSError):
        return (Path(folder) / FILE).stat().st_size > 0
    return False
