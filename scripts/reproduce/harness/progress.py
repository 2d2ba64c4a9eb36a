"""Progress of the reproductions on standard error: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that counts one experiment of ``total`` as done and shows its name."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # findings that go to a file stay there
    ) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda name: bar.update(task, description=name, advance=1)
