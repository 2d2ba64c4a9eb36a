"""Worker processes: how many there may be, and pools of them that leave Ctrl-C to the parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from kvgym.errors import KVGymError


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_pool(
    processes: int, start: Callable[..., object] | None = None, *arguments: Any
) -> ProcessPoolExecutor:
    """Return a pool of spawned processes, which ignore interrupts: the parent ends them.

    Args:
        processes: how many.
        start: called in each before anything else, a function of a module; None = nothing.
        *arguments: of ``start``; they are pickled.
    """
    return ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(start, arguments)
    )


def ended_early(what: str, otherwise: str) -> KVGymError:
    """Return the error for a pool that broke, mostly because a script starts processes when it is imported.

    Args:
        what: what the script should do under its main guard.
        otherwise: how it is done without processes.
    """
    return KVGymError(
        f'a worker process has ended early; in a script, {what} under if __name__ == "__main__":, or with {otherwise}'
    )


def _begin(start: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    if start is not None:
        start(*arguments)
