"""Progress of a training run: lines in ``train.log`` and calls of a listener."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable
from pathlib import Path

from kvgym.utils.files import open_plain

INTERVAL = 60.0
"""Longest time between two lines, seconds."""

FILE = "train.log"
"""Name of the file in the run folder; a resumed run appends to it."""

Echo = Callable[[str], None]


class TrainingLog:
    """Log the progress of a run at every evaluation and once a minute in between.

    It only reads the clock, so results do not depend on it.

    Args:
        folder: run folder; the file is opened for every line and may be deleted meanwhile.
        length: of the run, in ``unit``.
        unit: of the length, e.g. ``"steps"``.
        metric: name of the evaluation metric.
        progress: called with the steps or generations done.
        echo: called with every line.
    """

    def __init__(
        self, folder: Path, length: int, unit: str, metric: str,
        progress: Callable[[int], None] | None = None, echo: Echo | None = None,
    ) -> None:  # fmt: skip
        self._file, self._length, self._unit, self._metric = folder / FILE, length, unit, metric
        self._progress, self._echo = progress, echo
        self._value = math.nan
        self._began = self._last = time.monotonic()
        self._first: int | None = None
        self._noted = False

    def evaluated(self, done: int, value: float) -> None:
        """Record the result of an evaluation.

        Args:
            done: steps or generations done.
            value: of the metric.
        """
        self._value = value
        self._write(done)

    def passed(self, done: int) -> None:
        """Record the steps or generations done."""
        if self._first is None:
            self._first = done
        if self._progress is not None:
            self._progress(done)
        if time.monotonic() - self._last >= INTERVAL:
            self._write(done)

    def line(self, done: int) -> str:
        """Return a line with the progress, the time spent and the time left."""
        spent = time.monotonic() - self._began
        text = f"{done:,} of {self._length:,} {self._unit}, {duration(spent)}"
        if not math.isnan(self._value):
            text += f", {self._metric} {self._value:.5g}"
        made = done - (done if self._first is None else self._first)
        if made > 0 and done < self._length:
            text += f", {duration(spent * (self._length - done) / made)} left"
        return text

    def note(self, line: str) -> None:
        """Write a line about what comes before the first step, at most once a minute after the first."""
        if not self._noted or time.monotonic() - self._last >= INTERVAL:
            self._noted = True
            self._put(line)

    def _write(self, done: int) -> None:
        self._put(self.line(done))

    def _put(self, line: str) -> None:
        self._last = time.monotonic()
        stamp = datetime.datetime.now().isoformat(" ", "seconds")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open_plain(self._file, "a") as file:
            file.write(f"{stamp}  {line}\n")
        if self._echo is not None:
            self._echo(line)


def duration(seconds: float) -> str:
    """Return seconds as ``"2:05"`` or ``"1:02:05"``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
