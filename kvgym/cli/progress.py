"""Progress of a command on standard error: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from kvgym.cli import console

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 5.0
"""Seconds until the first line without a terminal."""

INTERVAL = 60.0
"""Seconds between lines."""

POLL = 0.5
"""Seconds between observations of whether code is compiled."""


class Steps:
    """Counter of completed runs, and of the share of the current run.

    Args:
        total: number of runs.
        bar: bar that shows the count; None = lines.
    """

    def __init__(self, total: int, bar: Progress | None) -> None:
        self._done, self._total, self._bar, self._text = 0.0, total, bar, ""
        self._started = time.monotonic()
        self._since = (self._started, 0.0)  # time and progress from which the pace is measured
        self._compiling = False
        self._task = None if bar is None else bar.add_task("starting", total=total)

    def update(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Record a completed run.

        Args:
            text: description of the run.
            done: number of completed runs; None = one more.
            total: total number of runs; None = as before.
        """
        self._text = text
        self._done = int(self._done) + 1 if done is None else done
        self._total = self._total if total is None else total
        self._show()

    def within(self, share: float) -> None:
        """Record the completed share of the current run."""
        self._done = min(int(self._done) + min(share, 0.999), self._total)
        self._show()

    def _show(self) -> None:
        if self._bar is not None and self._task is not None:
            text = escape(self._text) or "running"
            self._bar.update(self._task, description=text, completed=self._done, total=self._total)

    def observe(self, compiling: bool) -> None:
        """Record whether this command is compiling now: the pace is measured from the end of it."""
        if compiling or self._compiling:
            self._since = (time.monotonic(), self._done)
        self._compiling = compiling

    def left(self) -> str:
        """Return the remaining time at this pace as ``"about 1:40 left"``; "" if it is not known."""
        begun, before = self._since
        if self._compiling or not before < self._done < self._total:
            return "compiling" if self._compiling else ""
        seconds = (time.monotonic() - begun) * (self._total - self._done) / (self._done - before)
        return f"about {_duration(seconds)} left"

    def line(self) -> str:
        """Return the progress and the remaining time as text."""
        text = f"{self._done:.3g} of {self._total:,} done in {_duration(time.monotonic() - self._started)}"
        if left := self.left():
            text += f", {left}; Ctrl-C stops"
        return f"{self._text}: {text}" if self._text else text


@contextlib.contextmanager
def progress_bar(total: int, enabled: bool) -> Iterator[Steps | None]:
    """Show progress while the block runs, also within a long simulation.

    Args:
        total: number of runs.
        enabled: False shows nothing.
    """
    if not enabled:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    from kvgym.simulator.recording.progress import listening

    class Left(ProgressColumn):
        """The remaining time."""

        def render(self, task: Any) -> Text:
            return Text(steps.left())

    columns = (
        TextColumn("[progress.description]{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), Left(),
    )  # fmt: skip
    with contextlib.ExitStack() as shown:
        bar = Progress(*columns, console=console.err, transient=True) if console.err.is_terminal else None
        steps = Steps(total, bar)
        if bar is not None:
            shown.enter_context(bar)
        shown.enter_context(_watched(steps, lines=bar is None))
        shown.enter_context(listening(steps.within))
        yield steps


@contextlib.contextmanager
def _watched(steps: Steps, *, lines: bool) -> Iterator[None]:
    """Observe compilation, and print lines, from a separate thread, also while the block is busy in a long call."""
    over = threading.Event()

    def watch() -> None:
        due = time.perf_counter() + PATIENCE
        while not over.wait(min(POLL, PATIENCE)):
            steps.observe(_compiling())
            if lines and time.perf_counter() >= due:
                console.print_to_stderr(steps.line())
                due = time.perf_counter() + INTERVAL

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _compiling() -> bool:
    """Return whether the command is compiling; False if it has not loaded the compiler."""
    cache = sys.modules.get("kvgym.compiling.cache")
    return cache is not None and bool(getattr(cache, "compiling", bool)())


@contextlib.contextmanager
def run_progress(total: int, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show progress over runs; call the function it yields with a description after each run."""
    with progress_bar(total, enabled) as steps:
        yield (lambda text: None) if steps is None else steps.update


def _duration(seconds: float) -> str:
    """Return a time as ``"2:05"`` or ``"1:02:05"``, or ``"more than a year"``."""
    if seconds > 366 * 86_400:
        return "more than a year"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
