"""What a training run says of itself while it goes on: lines in a file of its folder, and for whoever listens."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable
from pathlib import Path

from kvgym.utils.files import open_plain

INTERVAL = 60.0
"""Seconds between two lines, where no evaluation comes in between."""

FILE = "train.log"
"""Name of the file in the folder of a run; a run that is resumed goes on in it."""

Tell = Callable[[str], None]


class TrainingLog:
    """Says how far a run is: at every evaluation, and once a minute in between.

    It only reads the clock, so that a run is the same with and without it.

    Args:
        folder: of the run; its file is opened for every line, and may be deleted meanwhile.
        length: of the run, in ``unit``.
        unit: what its length is counted in, e.g. ``"steps"``.
        metric: name of the figure of evaluations.
        progress: called with what is done so far, whenever something is.
        tell: called with every line.
    """

    def __init__(
        self, folder: Path, length: int, unit: str, metric: str,
        progress: Callable[[int], None] | None = None, tell: Tell | None = None,
    ) -> None:  # fmt: skip
        self._file, self._length, self._unit, self._metric = folder / FILE, length, unit, metric
        self._progress, self._tell = progress, tell
        self._value = math.nan
        self._began = self._last = time.monotonic()
        self._first: int | None = None

    def evaluated(self, done: int, value: float) -> None:
        """Note what an evaluation found.

        Args:
            done: steps or generations so far.
            value: of the metric.
        """
        self._value = value
        self._write(done)

    def passed(self, done: int) -> None:
        """Note what is done so far."""
        if self._first is None:
            self._first = done
        if self._progress is not None:
            self._progress(done)
        if time.monotonic() - self._last >= INTERVAL:
            self._write(done)

    def line(self, done: int) -> str:
        """Return how far the run is."""
        spent = time.monotonic() - self._began
        text = f"{done:,} of {self._length:,} {self._unit}, {duration(spent)}"
        if not math.isnan(self._value):
            text += f", {self._metric} {self._value:.5g}"
        made = done - (done if self._first is None else self._first)
        if made > 0 and done < self._length:
            text += f", {duration(spent * (self._length - done) / made)} left"
        return text

    def _write(self, done: int) -> None:
        self._last = time.monotonic()
        line = self.line(done)
        stamp = datetime.datetime.now().isoformat(" ", "seconds")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open_plain(self._file, "a") as file:
            file.write(f"{stamp}  {line}\n")
        if self._tell is not None:
            self._tell(line)


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds, ``"2:05"`` or ``"1:02:05"``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
