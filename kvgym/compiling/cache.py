"""On-disk cache of compiled code; a lock lets one process compile while the others wait.

Numba's cache checks only the file of the entry point, so it would run stale code after an edit to a helper in another
file. The name of a kernel's code therefore contains a hash of all sources that the kernel can reach, see
:mod:`kvgym.compiling.sources`. All copies of these sources share it, wherever they are installed.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import multiprocessing
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding as _llvm

from kvgym.compiling.checked_build import CHECKED
from kvgym.compiling.numba_internals import TRICKS, kernel_cache
from kvgym.compiling.sources import key_of
from kvgym.errors import ConfigError

LOCK_TIMEOUT = 600.0
"""Longest wait for another process that compiles, seconds; the lock of a dead process is free at once."""

_FOLDER = re.compile("code-[0-9a-f]{20}")

_config: Any = numba.config
_llvm_untyped: Any = _llvm


def _target() -> str:
    """Return the processor that code is compiled for: this one unless Numba's variables name another."""
    name, features = _config.CPU_NAME, _config.CPU_FEATURES
    if not name:
        name, features = _llvm_untyped.get_host_cpu_name(), _llvm_untyped.get_host_cpu_features().flatten()
    return f"{name}|{features}"


@functools.lru_cache(maxsize=1)
def cache_dir() -> Path:
    """Return the cache folder, named by a hash of the tools, their options and the processor.

    The root is ``KVGYM_CACHE_DIR``, else ``XDG_CACHE_HOME/kvgym``, else ``~/.cache/kvgym``. If it cannot be written,
    the root is a folder in the system's temporary directory.

    Raises:
        ConfigError: neither can be written.
    """
    options = (CHECKED, _config.BOUNDSCHECK, *([] if TRICKS else ["no tricks"]))
    tools = (sys.version, numba.__version__, np.__version__, _target(), options)
    name = f"code-{hashlib.sha256(repr(tools).encode()).hexdigest()[:20]}"
    chosen = os.environ.get("KVGYM_CACHE_DIR")
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    root = Path(chosen).absolute() if chosen else base / "kvgym"
    user = os.getuid() if hasattr(os, "getuid") else 0
    for candidate in (root, _temporary(f"kvgym-{user}")):
        if candidate is None:
            continue
        folder = candidate / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if candidate is not root and candidate.stat().st_uid != user:
                continue  # machine code in another user's folder cannot be trusted
            with tempfile.TemporaryFile(dir=folder):
                _prune(candidate, folder)
                return folder
        except OSError:
            continue
    raise ConfigError(
        f"no folder for compiled code is writable: tried {root} and the system's temporary folder; set KVGYM_CACHE_DIR "
        "to a writable folder"
    )


def _temporary(name: str) -> Path | None:
    """Return a path in the system's temporary folder, None if the system has no writable one."""
    try:
        return Path(tempfile.gettempdir()) / name
    except OSError:
        return None


_UNUSED = 30 * 86_400.0
"""Seconds without use after which cached code of other versions is removed."""


def _prune(root: Path, current: Path) -> None:
    """Remove cached code of other tools that has not been used for a month."""
    os.utime(current)
    for folder in root.glob("code-*"):
        with contextlib.suppress(OSError):
            own = _FOLDER.fullmatch(folder.name) and folder != current  # the root may have unrelated folders
            if own and time.time() - folder.stat().st_mtime > _UNUSED:
                shutil.rmtree(folder, ignore_errors=True)


def _prune_versions(stored: Path) -> None:
    """Remove cached code of other versions of a kernel that has not been used for a month."""
    name = stored.stem.rpartition("-")[0]
    for other in stored.parent.glob(f"{glob.escape(name)}-*.compiled"):
        with contextlib.suppress(OSError):
            if other != stored and time.time() - other.stat().st_mtime > _UNUSED:
                shutil.rmtree(code_folder(other), ignore_errors=True)
                other.with_suffix(".lock").unlink(missing_ok=True)
                other.unlink()


class Locator:
    """Numba cache locator of kvgym's own kernels: a folder for each in :func:`cache_dir`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = str(code_folder(checksum_file(cache_dir(), function)))
        self._py_file = function.__code__.co_filename  # for Numba's warnings
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        """Return the folder, which Numba creates."""
        return self._path

    def get_source_stamp(self) -> str:
        """Return an empty stamp: the name of the kernel's folder already depends on the sources."""
        return ""

    def get_disambiguator(self) -> str:
        """Return the line of the function, which distinguishes functions of the same name."""
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Locator:
        """Return the locator of a kernel."""
        return cls(py_func)


OwnCache = kernel_cache(Locator)
"""Class of caches of kvgym's own kernels."""


def checksum_file(folder: Path, function: Callable[..., Any]) -> Path:
    """Return the path in a cache folder of the checksum of a kernel's machine code.

    Its name contains a hash of the sources of kvgym that the kernel's module imports; of all sources for a user's
    kernel, and for a function of a function, which may refer to functions of any module.
    """
    module = function.__module__
    own = module.startswith("kvgym.") and function.__closure__ is None
    return folder / f"{module}.{function.__qualname__}-{key_of((module,) if own else ())}.compiled"


def code_folder(stored: Path) -> Path:
    """Return the folder of a kernel's machine code, given its checksum file."""
    return stored.with_suffix("")


def _code_files(stored: Path) -> list[Path]:
    return sorted(path for path in code_folder(stored).rglob("*.nb[ic]") if path.is_file())


def _checksum(stored: Path) -> bytes:
    """Return the checksum of a kernel's files in the cache: Numba's index and machine code."""
    digest = hashlib.sha256()
    for path in _code_files(stored):
        with contextlib.suppress(FileNotFoundError):  # just removed by another process
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest().encode()


def _write_checksum(stored: Path) -> None:
    with contextlib.suppress(OSError):  # without it the next process compiles again
        stored.write_bytes(_checksum(stored))


def is_cached(stored: Path) -> bool:
    """Return whether the machine code of a kernel is in the cache and undamaged."""
    with contextlib.suppress(OSError):
        return stored.read_bytes() == _checksum(stored)
    return False


def _stamps(stored: Path) -> list[tuple[Path, int, int]]:
    """Return path, modification time and inode of a kernel's files: these change when Numba writes machine code."""
    found = []
    for path in _code_files(stored):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((path, status.st_mtime_ns, status.st_ino))
    return found


@contextlib.contextmanager
def compiled_once(stored: Path, what: str, seconds: Callable[[], float]) -> Iterator[None]:
    """Let one process compile in the context; other processes wait and then find the code in the cache.

    Machine code with a wrong checksum is removed first: Numba would fail to read it, or run it.

    Args:
        stored: the file for the checksum, see :func:`checksum_file`; not written after an error.
        what: what is compiled, for notices.
        seconds: returns about how long that takes; below one second there is no notice.
    """
    if not is_cached(stored):
        with _locked(stored.with_suffix(".lock"), what):
            if not is_cached(stored):
                for path in _code_files(stored):
                    path.unlink(missing_ok=True)
                if (expected := seconds()) >= 1:
                    _notify(f"compiling {what} for this machine, about {expected:.0f} s, once", _HINT)
                yield
                _write_checksum(stored)
                _prune_versions(stored)
                return
    with contextlib.suppress(OSError):
        os.utime(stored)  # it is in use
    before = _stamps(stored)
    yield
    if _stamps(stored) != before:  # compiled again, for another signature or because its file was saved
        _write_checksum(stored)


@contextlib.contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock that ends with this process; continue without it after a timeout or if locks are unsupported."""
    import filelock  # slow to import

    lock, owner = filelock.FileLock(path), path.with_suffix(_OWNER)
    try:
        lock.acquire(timeout=min(_GRACE, LOCK_TIMEOUT))
    except filelock.Timeout:
        if _read(owner) != command_id():
            _notify(f"waiting for another command to compile {what}")
        with contextlib.suppress(filelock.Timeout):
            lock.acquire(timeout=LOCK_TIMEOUT)
    except (OSError, NotImplementedError):
        pass  # a file system without locks: every process compiles
    try:
        with contextlib.suppress(OSError):
            owner.write_text(command_id(), "utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink(missing_ok=True)
        lock.release()


_GRACE = 1.0
"""Seconds to wait for a lock before there is a notice; its owner has then written its name."""

_OWNER = ".owner"
"""Ending of the files that name the command that compiles."""


def command_id() -> str:
    """Return the host and the process id of the command; those that it starts as workers have the same."""
    parent = multiprocessing.parent_process()
    return f"{platform.node()} {os.getpid() if parent is None else parent.pid}"


def compiling() -> bool:
    """Return whether this process or a worker of the same command is compiling a kernel now."""
    if not cache_dir.cache_info().currsize:  # this process has not used compiled code yet
        return False
    own, folder = command_id(), cache_dir()
    return any(_read(path) == own for form in ("*", "user-*/*") for path in folder.glob(f"{form}{_OWNER}"))


def _read(path: Path) -> str:
    """Return the content of a small file; "" if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


# Compile time per bytecode instruction that a kernel reaches, and extra time for those of helpers that no kernel of
# the process reached before, seconds (`python scripts/speed/compilation.py`). _LOOP is the time of slowness()'s
# loop on the machine that measured them.
_PER_INSTRUCTION, _PER_NEW_INSTRUCTION, _LOOP = 0.2e-3, 0.6e-3, 2.4e-3


def expected_seconds(instructions: int, new: int) -> float:
    """Return about how long this machine takes to compile a kernel, seconds.

    Args:
        instructions: bytecode instructions of the kernel and of all helpers it reaches.
        new: those that this process has not compiled before.
    """
    return (_PER_INSTRUCTION * instructions + _PER_NEW_INSTRUCTION * new) * slowness()


@functools.lru_cache(maxsize=1)
def slowness() -> float:
    """Time a short loop; return its time as a multiple of the reference machine's."""
    loop = "sum(i * i for i in range(50_000))"
    return min(timeit.repeat(loop, number=1, repeat=3, timer=time.process_time)) / _LOOP


_HINT = " (kvgym warm-up compiles everything beforehand)"
_shown_hints: set[str] = set()
_silent = False


def _notify(text: str, hint: str = "") -> None:
    """Print a notice on standard error, with the hint if it has not been shown yet."""
    if not _silent:
        print(f"kvgym: {text}{'' if hint in _shown_hints else hint} ...", file=sys.stderr, flush=True)
        _shown_hints.add(hint)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress notices about compiling while the context is active."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before
