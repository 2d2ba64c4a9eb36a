"""Error handling of commands: a message, an exit status, and a report file for errors of kvgym itself."""

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
from kvgym.utils.registry import import_mistake
from kvgym.utils.version import __version__

WRONG, BUG = 2, 70
"""Exit statuses: wrong input or output location; error in kvgym. (0 = done, 1 = no run has finished, 130 = Ctrl-C.)"""

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
    """Show full error details: the option ``--verbose``."""
    global verbose
    verbose = verbose or value


def end_with(error: BaseException) -> int:
    """Print an error, and return the exit status."""
    if isinstance(error, KVGymError):
        return _report(str(error), str(getattr(error, "details", "") or ""))
    if isinstance(error, MemoryError):
        return _report(
            "not enough memory; try fewer requests with --num-requests, or shorter ones", _trace(error)
        )
    if isinstance(error, OSError) and _is_environmental(error):
        return _report(
            f"{error.filename or 'the results'} cannot be written: {error.strerror or error}", _trace(error)
        )
    if mistake := import_mistake(error, "kvgym.baselines"):  # imported by another module first
        return _report(mistake, _trace(error))
    kind = type(error).__name__
    message = " ".join(str(error).split())
    short = message if len(message) <= 120 else f"{message[:119]}…"
    path = _write_report(error)
    if verbose or path is None:
        console.err.print(_trace(error), markup=False, soft_wrap=True, end="")
    where = f"report it with the file {path}" if path else "report it with the lines above"
    _line(f"this is a bug in kvgym ({kind}: {short}); please {where}")
    return BUG


def _is_environmental(error: OSError) -> bool:
    """Whether an error is caused by the machine, such as a full disk, and not by a bug."""
    causes = (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EFBIG,
        errno.EIO,
        errno.ENAMETOOLONG,
    )
    return error.errno is None or error.errno in causes


def _report(message: str, details: str) -> int:
    if verbose and details:
        console.print_to_stderr(details.rstrip())
    more = " (--verbose shows details)" if details and not verbose else ""
    _line(cut(message, LIMIT - len(more)) + more)
    return WRONG


def _line(message: str) -> None:
    console.print_to_stderr(f"error: {message}", style="red")


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _write_report(error: BaseException) -> Path | None:
    """Write a bug report with traceback, versions and command; None if no folder can be written."""
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
        with contextlib.suppress(OSError):  # the folder is missing, or not writable
            descriptor, path = tempfile.mkstemp(".txt", prefix, folder())  # follows no existing link
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return Path(path)
    return None
