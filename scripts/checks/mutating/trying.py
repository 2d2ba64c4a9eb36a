"""Run tests with a changed module in a separate process."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

TEST_SECONDS = 20
"""CPU time limit of a single test, seconds; it ends mutations that loop for ever."""

WALL_SECONDS = 900
"""Time limit for all tests of a mutation, seconds; it ends mutations that wait for ever without using the CPU."""

MEMORY = 8 << 30
"""Limit of a mutation's address space, bytes."""


@dataclass(frozen=True)
class Verdict:
    """Result of the tests with a version of a module.

    Attributes:
        noticed: whether a test failed.
        by: the test that failed or ran out of time, or ``"import"`` if none could run.
        seconds: duration.
        output: output of the tests.
    """

    noticed: bool
    by: str
    seconds: float
    output: str


def preload(names: tuple[str, ...]) -> None:
    """Import libraries that all forked processes share."""
    for name in names:
        importlib.import_module(name)


def module_name(path: str) -> str:
    """Return the name under which a source file, relative to the root, is imported."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run_tests(root: Path, path: str, source: str, tests: tuple[str, ...]) -> Verdict:
    """Run tests up to the first failure, with a replaced module source.

    Args:
        root: folder of module and tests.
        path: path of the module, relative to the root.
        source: the source to run.
        tests: arguments of pytest, in their order.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            _run(root, path, source, tests, Path(folder))
        status = _wait(child, began + WALL_SECONDS)
        seconds = time.monotonic() - began
        output = _read(folder, "output")
        by = _read(folder, "failed") or _read(folder, "running") or "import"
    if status < 0:
        return Verdict(True, f"{by} ({_SIGNALS.get(-status, f'signal {-status}')})", seconds, output)
    if status in (4, 5):  # wrong arguments, or no tests
        raise SystemExit(f"pytest {' '.join(tests)}: exit status {status}\n{output}")
    return Verdict(status != 0, by if status else "", seconds, output)


_PRELOADED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"

_SIGNALS = {signal.SIGPROF.value: "CPU time", signal.SIGKILL.value: "time"}


def _read(folder: str, name: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(folder, name).read_text(encoding="utf-8", errors="replace")
    return ""


def _wait(child: int, deadline: float) -> int:
    """Return the exit status of a process, or -1 times the signal that ended it; kill it after the deadline."""
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
    finally:  # also ends processes started by the child, and the child itself after an interruption
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _run(root: Path, path: str, source: str, tests: tuple[str, ...], folder: Path) -> NoReturn:
    """Run the tests in this process, and end it."""
    status = 3
    try:
        os.setpgid(0, 0)
        os.chdir(root)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(output, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.meta_path.insert(0, _Replacement(module_name(path), root / path, source))
        import pytest

        options = ("-x", "-p", "no:cacheprovider", "--tb=short", "-W", _PRELOADED)
        status = int(pytest.main([*options, *tests], plugins=[_Notes(folder)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Notes:
    """Pytest plugin that limits the time of each test and records the running and the failed one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._limit()  # for imports, too

    def _limit(self) -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
        signal.setitimer(signal.ITIMER_PROF, TEST_SECONDS)

    def pytest_sessionstart(self) -> None:
        """Make Hypothesis stop at the first failing example: shrinking it is wasted work."""
        if "hypothesis" in sys.modules:
            from hypothesis import Phase, settings

            phases = (Phase.explicit, Phase.generate)
            settings.register_profile("first", settings.default, phases=phases, report_multiple_bugs=False)
            settings.load_profile("first")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record a test that starts."""
        self._limit()
        (self._folder / "running").write_text(nodeid, encoding="utf-8")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record a failure."""
        if report.failed:
            (self._folder / "failed").write_text(report.nodeid, encoding="utf-8")


class _Replacement(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Import hook that loads a module from a replaced source."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        importlib.machinery.SourceFileLoader.__init__(self, name, str(path))
        self._source = source

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        """Return the module's spec, None for all other modules."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source without the bytecode cache."""
        return compile(self._source, self.path, "exec", dont_inherit=True)
