"""Work for executors, in a module that other processes can import."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kvgym.errors import ConfigError


class Square:
    """Squares numbers, and counts how often this copy was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, task: int, /) -> tuple[int, int]:
        self.calls += 1
        return task * task, self.calls


def refuse_three(task: int) -> int:
    if task == 3:
        raise ConfigError("three is refused")
    return task


class DieOnce:
    """Kills its process at some tasks, only the first time unless ``always``; files in a folder count the attempts."""

    def __init__(self, folder: Path, at: tuple[int, ...], always: bool = False) -> None:
        self.folder, self.at, self.always = folder, at, always

    def __call__(self, task: int, /) -> int:
        seen = self.folder / f"{task}-{time.monotonic_ns()}-{os.getpid()}"
        first = not list(self.folder.glob(f"{task}-*"))
        seen.touch()
        if task in self.at and (first or self.always):
            os.kill(os.getpid(), signal.SIGKILL)
        return task + 1


def where(task: int) -> tuple[int, int]:
    time.sleep(0.02)
    return task, os.getpid()


class SlowAfter:
    """Takes some seconds for each task."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, task: int, /) -> tuple[int, int]:
        time.sleep(self.seconds)
        return task, os.getpid()


def leave_pid(task: tuple[Path, int]) -> int:
    folder, number = task
    (folder / f"pid-{os.getpid()}").touch()
    time.sleep(0.05)
    return number


class TwoPartedError(Exception):
    """An error that cannot be unpickled, as it takes two arguments and stores one."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


def raise_two_parted(task: int) -> int:
    raise TwoPartedError("a leak", f"task {task}")


def slow_after_first(task: tuple[Path, int]) -> int:
    folder, number = task
    if number:
        (folder / f"pid-{os.getpid()}").touch()
        time.sleep(600)
    return number
