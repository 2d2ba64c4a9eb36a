"""Processes that tests start are killed when the test ends, and a test that stands still fails.

A plugin of pytest that ``tests/conftest.py`` registers. Once it is imported, every :class:`subprocess.Popen` leads a
process group of its own, so that what it starts ends with it.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

LIMIT = 1800.0
"""Most CPU time of a test, seconds, and the time after which a test that hardly computes stands still.

The longest ones compile for a quarter of an hour; on a busy machine that takes longer, but not more CPU time. What
holds up the interpreter itself is ended later, see ``faulthandler_timeout`` in ``pyproject.toml``.
"""
HARDLY = 0.02
"""Share of a processor below which a test stands still."""

AGAIN = 10.0
"""Time until a test that goes on after its limit is stopped once more, seconds."""

_started: list[GroupLeader | Forked] = []


class GroupLeader(subprocess.Popen[Any]):
    """A process with a group of its own, which is killed if a ``with`` block around it fails."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if (
            options.get("preexec_fn") is None
        ):  # some make a group of their own there, which a session's leader cannot
            options.setdefault("start_new_session", True)
        super().__init__(*arguments, **options)
        _started.append(self)

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is not None:
            self.kill_group()
        super().__exit__(kind, *rest)

    def kill_group(self) -> None:
        """Kill the process and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Forked:
    """A copy of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill_group(self) -> None:
        """Kill the process; what it has started by :class:`subprocess.Popen` is in other groups."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        """Leave it to its owner to wait."""


def _fork(fork: Callable[[], int] = os.fork) -> int:
    pid = fork()
    if pid:
        _started.append(Forked(pid))
    return pid


subprocess.Popen = GroupLeader  # type: ignore[misc]
os.fork = _fork


def gone(pid: int, seconds: float = 30.0) -> bool:
    """Return whether a process ends within some seconds; its zombie may remain."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = Path(f"/proc/{pid}/stat")
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def cpu_time() -> float:
    """Return the CPU time of this process and of those below it, seconds; 0 without ``/proc``."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    below = [os.getpid()]
    for pid in below:  # which grows by the children of each
        below += [child for child, parent in parents.items() if parent == pid]
    return sum(ticks.get(pid, 0) for pid in below) / os.sysconf("SC_CLK_TCK")


def since_now() -> Callable[[], None]:
    """Return a function that kills the processes started in the meantime."""
    groups, children = len(_started), set(multiprocessing.active_children())

    def end() -> None:
        for child in set(multiprocessing.active_children()) - children:
            child.kill()
        for leader in _started[groups:]:
            leader.kill_group()

    return end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Stop a test after ``LIMIT`` of CPU time or of standing still: kill what it waits for, and raise in it."""
    end, began = since_now(), sum(os.times()[:4])
    used = 0.0

    def stop(*_: Any) -> None:
        nonlocal used
        earlier, used = used, cpu_time() - began
        if used - earlier > HARDLY * LIMIT and used < LIMIT:
            signal.setitimer(signal.ITIMER_REAL, LIMIT, AGAIN)
            return
        faulthandler.dump_traceback(2)
        end()
        pytest.fail(f"the test took longer than {LIMIT:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, AGAIN)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _kill_started() -> Iterator[None]:
    groups, end = len(_started), since_now()
    yield
    end()
    for leader in _started[groups:]:
        leader.wait(60)
    del _started[groups:]


kill_started_by_test = pytest.fixture(autouse=True)(_kill_started)
kill_started_by_module = pytest.fixture(autouse=True, scope="module")(_kill_started)
