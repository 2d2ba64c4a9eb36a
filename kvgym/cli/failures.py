"""How a command ends that fails: a line on standard error and an exit status, and a file where kvgym is at fault."""

from __future__ import annotations

import contextlib
import errno
import platform
import shlex
import sys
import tempfile
import time
import traceback
from pathlib import Path

from kvgym.cli import console
from kvgym.errors import LIMIT, KVGymError, cut
from kvgym.version import __version__

WRONG, BUG = 2, 70
"""Exit statuses: what was given, or where it was to go, is wrong; kvgym itself is. (0 = done, 1 = no run has finished,
130 = Ctrl-C.)"""

LIBRARIES = (
    "numpy",
    "numba",
    "llvmlite",
    "gymnasium",
    "pydantic",
    "typer",
    "rich",
    "torch",
    "stable-baselines3",
)

verbose = False


def be_verbose(value: bool) -> None:
    """Show everything that is known of an error: the option ``--verbose``."""
    global verbose
    verbose = verbose or value


def end_with(error: BaseException) -> int:
    """Say why a command ends, and return the exit status."""
    if isinstance(error, KVGymError):
        return _say(str(error), str(getattr(error, "details", "") or ""))
    if isinstance(error, MemoryError):
        return _say(
            "not enough memory; try fewer requests with --num-requests, or shorter ones", _trace(error)
        )
    if isinstance(error, OSError) and _of_the_machine(error):
        return _say(
            f"{error.filename or 'the results'} cannot be written: {error.strerror or error}", _trace(error)
        )
    kind = type(error).__name__
    words = " ".join(str(error).split())
    short = words if len(words) <= 120 else f"{words[:119]}…"
    path = _write_report(error)
    if verbose or path is None:
        console.err.print(_trace(error), markup=False, soft_wrap=True, end="")
    where = f"report it with the file {path}" if path else "report it with the lines above"
    _line(f"this is a mistake in kvgym, not yours ({kind}: {short}); please {where}")
    return BUG


def _of_the_machine(error: OSError) -> bool:
    """Whether an error says that something cannot be written; others have no business to come up."""
    machine = (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EFBIG,
        errno.EIO,
        errno.ENAMETOOLONG,
    )
    return error.errno is None or error.errno in machine


def _say(message: str, details: str) -> int:
    if verbose and details:
        console.err.print(details.rstrip(), markup=False, soft_wrap=True)
    more = " (--verbose says more)" if details and not verbose else ""
    _line(cut(message, LIMIT - len(more)) + more)
    return WRONG


def _line(message: str) -> None:
    console.err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _write_report(error: BaseException) -> Path | None:
    """Write down what a report needs: traceback, versions and command; None where no folder can be written."""
    from importlib.metadata import PackageNotFoundError, version

    lines = [
        f"kvgym {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"command: {shlex.join(['kvgym', *sys.argv[1:]])}",
    ]
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            lines.append(f"{name} {version(name)}")
    text = "\n".join([*lines, "", _trace(error)])
    prefix = f"kvgym-error-{time.strftime('%Y%m%d-%H%M%S')}-"
    for folder in (tempfile.gettempdir, Path.cwd):
        with contextlib.suppress(OSError):  # no such folder, or nothing can be written there
            descriptor, path = tempfile.mkstemp(".txt", prefix, folder())  # follows no link that is there
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return Path(path)
    return None
