"""What was run, in a file of a folder: a line per run, written as soon as it is there, so that nothing is run twice."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.runs import Played, RunRecord
from kvgym.metrics import metric_names

FILE = "runs.jsonl"


class Journal:
    """The file of runs of a folder, open for one process at a time; a context manager that closes it.

    A line that was cut short, because its process was killed in the middle of it, is dropped when the file is opened.

    Args:
        folder: created if missing.

    Raises:
        ConfigError: the folder cannot be written, another process has it open, or the file is something else.

    Attributes:
        known: what was run, by key.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = self.path.open("a+", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            _lock(self._file, self.path)
            self.known = self._read()
        except BaseException:
            self._file.close()
            raise

    def add(self, key: str, played: Played) -> None:
        """Write a run down; it outlives this process, however that ends.

        Raises:
            KVGymError: it cannot be written, as on a full disk; what was written before is kept.
        """
        self.known[key] = played
        try:
            self._file.write(_line(key, played))
            self._file.flush()
        except OSError as error:
            raise KVGymError(
                f"{self.path}: cannot be written: {error.strerror}; the {len(self.known) - 1:,} runs before are kept, "
                "resume the sweep when there is room"
            ) from None

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # of a line that could not be written, which was told
            self._file.close()

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
                self._file.truncate(end)
                break
            end = self._file.tell()
            try:
                key, played = _parse(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ConfigError(
                    f"{self.path}, line {number}: not a run of a sweep ({error!r}); choose another folder, or remove "
                    "the line"
                ) from None
            found[key] = played
        self._file.seek(0, 2)
        return found

    def _next(self, number: int) -> str:
        try:
            return self._file.readline()
        except UnicodeDecodeError:
            raise ConfigError(f"{self.path}, line {number}: not text; choose another folder") from None


def _lock(file: TextIO, path: Path) -> None:
    """Keep other processes out for as long as the file is open; where the system knows no such locks, nothing."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"{path.parent}: another process works on it; choose another folder, or wait"
        ) from None
    except OSError:  # a file system without locks
        return


def _line(key: str, played: Played) -> str:
    record = asdict(played.record)
    record["metrics"] = {name: _number(value) for name, value in record["metrics"].items()}
    content = {"key": key, **record, "num_requests": played.num_requests, "notes": list(played.notes)}
    return json.dumps(content, allow_nan=False) + "\n"


def _number(value: float) -> float | str | None:
    """Return a number as JSON knows it; text repeats what is not finite, NaN is null."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _parse(content: Mapping[str, Any]) -> tuple[str, Played]:
    values = content["metrics"]
    known = metric_names()
    if not isinstance(content["key"], str) or values.keys() - set(known):
        raise ValueError("its key or metrics are none of this version")
    record = RunRecord(
        policy=str(content["policy"]),
        seed=int(content["seed"]),
        metrics={name: math.nan if values.get(name) is None else float(values[name]) for name in known},
        error=str(content["error"]),
        completed_once=bool(content["completed_once"]),
        wall_time=float(content["wall_time"]),
        workers=tuple(dict(worker) for worker in content["workers"]),
    )
    return content["key"], Played(record, int(content["num_requests"]), tuple(map(str, content["notes"])))


def has_runs(folder: str | Path) -> bool:
    """Whether a folder has runs of a sweep."""
    with contextlib.suppress(OSError):
        return (Path(folder) / FILE).stat().st_size > 0
    return False
