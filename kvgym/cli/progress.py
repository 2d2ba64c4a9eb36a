"""How far a command is, on standard error: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.markup import escape

from kvgym.cli import console

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 5.0
"""Seconds until the first line, where there is no terminal."""

INTERVAL = 60.0
"""Seconds between lines."""


class Steps:
    """Counts what is done, the run that is under way included.

    Args:
        total: runs, or whatever is counted.
        bar: where it is shown; None = lines.
    """

    def __init__(self, total: int, bar: Progress | None) -> None:
        self._done, self._total, self._bar, self._text = 0.0, total, bar, ""
        self._started = time.monotonic()
        self._task = None if bar is None else bar.add_task("starting", total=total)

    def update(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Note that something is done.

        Args:
            text: what that was.
            done: so much is done; None = one more.
            total: of so many.
        """
        self._text = text
        self._done = int(self._done) + 1 if done is None else done
        self._total = self._total if total is None else total
        self._show()

    def within(self, share: float) -> None:
        """Note which share is done of the run that is under way."""
        self._done = min(int(self._done) + min(share, 0.999), self._total)
        self._show()

    def _show(self) -> None:
        if self._bar is not None and self._task is not None:
            text = escape(self._text) or "running"
            self._bar.update(self._task, description=text, completed=self._done, total=self._total)

    def line(self) -> str:
        """Return how far it is, and how long it will take at this pace."""
        seconds = time.monotonic() - self._started
        text = f"{self._done:.3g} of {self._total:,} done in {_duration(seconds)}"
        if 0 < self._done < self._total:
            text += (
                f", about {_duration(seconds * (self._total - self._done) / self._done)} left; Ctrl-C stops"
            )
        return f"{self._text}: {text}" if self._text else text


@contextlib.contextmanager
def progress_bar(total: int, enabled: bool) -> Iterator[Steps | None]:
    """Show how far the block is while it runs, also within a long simulation.

    Args:
        total: of what is counted.
        enabled: False shows nothing.
    """
    if not enabled:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from kvgym.simulator.progress import listening

    columns = (
        TextColumn("[progress.description]{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with contextlib.ExitStack() as shown:
        bar = None
        if console.err.is_terminal:
            bar = shown.enter_context(Progress(*columns, console=console.err, transient=True))
        steps = Steps(total, bar)
        if bar is None:
            shown.enter_context(_lines(steps))
        shown.enter_context(listening(steps.within))
        yield steps


@contextlib.contextmanager
def _lines(steps: Steps) -> Iterator[None]:
    """Print how far it is, from a thread of its own: it also speaks where the block is long in coming back."""
    over = threading.Event()

    def speak() -> None:
        seconds = PATIENCE
        while not over.wait(seconds):
            console.err.print(steps.line(), markup=False, soft_wrap=True)
            seconds = INTERVAL

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield
    finally:
        over.set()
        speaker.join()


@contextlib.contextmanager
def run_progress(total: int, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show how far the block is with its runs; the function it gives is called with a line of text after each."""
    with progress_bar(total, enabled) as steps:
        yield (lambda text: None) if steps is None else steps.update


def _duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds, ``"2:05"`` or ``"1:02:05"``; more than a year as that."""
    if seconds > 366 * 86_400:
        return "more than a year"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
