"""Where machine code is kept, and that of all processes one compiles it while the others wait.

Numba's cache looks only at the file that holds an entry point and would run stale code after an edit to a
helper in another file. The cache folder is therefore named by a hash of all sources that can be compiled, and is
shared by all copies of these sources, wherever they are installed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
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
from kvgym.compiling.numba_internals import keep_code_by
from kvgym.errors import ConfigError

PACKAGE = Path(__file__).resolve().parent.parent
_COMPILED_PARTS = (
    "compiling",
    "simulator",
    "kernels",
    "batch_time",
    "baselines",
    "envs",
    "workloads/layout.py",
    "theory/hindsight/slotted/price_kernels.py",
    "theory/hindsight/slotted/search_kernels.py",
)
PATIENCE = 600.0
"""Seconds to wait for another process before compiling beside it; one that has died is not waited for."""

_FOLDER = re.compile("code-[0-9a-f]{20}")

_config: Any = numba.config
_llvm_untyped: Any = _llvm


def compiled_sources() -> list[Path]:
    """Return the files of kvgym that may hold compiled code, in a fixed order."""
    parts = (PACKAGE / part for part in _COMPILED_PARTS)
    return [
        source for part in parts for source in ([part] if part.is_file() else sorted(part.glob("**/*.py")))
    ]


def _target() -> str:
    """Return what code is compiled for: this processor, or what Numba's variables name instead."""
    name, features = _config.CPU_NAME, _config.CPU_FEATURES
    if not name:
        name, features = _llvm_untyped.get_host_cpu_name(), _llvm_untyped.get_host_cpu_features().flatten()
    return f"{name}|{features}"


@functools.lru_cache(maxsize=1)
def cache_dir() -> Path:
    """Return the folder for machine code, named by a hash of the sources, the tools, their options and the processor.

    The root is ``KVGYM_CACHE_DIR``, else ``XDG_CACHE_HOME/kvgym``, else ``~/.cache/kvgym``; where that
    cannot be written, a folder in the system's temporary directory.

    Raises:
        ConfigError: nor can that.
    """
    how = (CHECKED, _config.BOUNDSCHECK)
    used = (sys.version, numba.__version__, np.__version__, _target(), how)
    digest = hashlib.sha256(repr(used).encode())
    for source in compiled_sources():
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    name = f"code-{digest.hexdigest()[:20]}"
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
                continue  # machine code from a folder of somebody else is not to be trusted
            with tempfile.TemporaryFile(dir=folder):
                _prune(candidate, folder)
                return folder
        except OSError:
            continue
    raise ConfigError(
        f"no folder for compiled code can be written: tried {root} and the system's folder for temporary files; name "
        "one that can with KVGYM_CACHE_DIR"
    )


def _temporary(name: str) -> Path | None:
    """Return the path of a folder in that for temporary files, None where the system has none that can be written."""
    try:
        return Path(tempfile.gettempdir()) / name
    except OSError:
        return None


def _prune(root: Path, current: Path, days: float = 30.0) -> None:
    """Remove machine code of other versions that has not been used for a month."""
    os.utime(current)
    for folder in root.glob("code-*"):
        with contextlib.suppress(OSError):
            own = _FOLDER.fullmatch(folder.name) and folder != current  # the root may have folders of others
            if own and time.time() - folder.stat().st_mtime > days * 86_400:
                shutil.rmtree(folder, ignore_errors=True)


class Locator:
    """Tells Numba where the code of kvgym's own kernels is kept: a folder each, in one that is named by all else."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = str(code_folder(marker_of(cache_dir(), function)))
        self._line = function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        """Return the folder, made by Numba."""
        return self._path

    def get_source_stamp(self) -> str:
        """Return what tells sources apart: nothing is left to tell apart within the folder."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what tells functions of the same name apart."""
        return str(self._line)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Locator | None:
        """Return the locator of a function of kvgym; Numba asks others where there is none."""
        return cls(py_func) if py_func.__module__.startswith("kvgym.") else None


keep_code_by(Locator)


def marker_of(folder: Path, function: Callable[..., Any]) -> Path:
    """Return the file of a cache folder that holds the checksum of a kernel's machine code."""
    return folder / f"{function.__module__}.{function.__qualname__}.compiled"


def code_folder(marker: Path) -> Path:
    """Return the folder of a kernel's machine code."""
    return marker.with_suffix("")


def _code_files(marker: Path) -> list[Path]:
    return sorted(path for path in code_folder(marker).rglob("*.nb[ic]") if path.is_file())


def _checksum(marker: Path) -> bytes:
    """Return the checksum of what Numba keeps of a kernel: indexes and machine code."""
    digest = hashlib.sha256()
    for path in _code_files(marker):
        with contextlib.suppress(FileNotFoundError):  # just removed by another process
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest().encode()


def _keep_checksum(marker: Path) -> None:
    with contextlib.suppress(OSError):  # without it the next process compiles again
        marker.write_bytes(_checksum(marker))


def is_compiled(marker: Path) -> bool:
    """Whether the machine code of a kernel is there and undamaged."""
    with contextlib.suppress(OSError):
        return marker.read_bytes() == _checksum(marker)
    return False


def _stamps(marker: Path) -> list[tuple[Path, int, int]]:
    """Return what changes when Numba writes machine code."""
    found = []
    for path in _code_files(marker):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((path, status.st_mtime_ns, status.st_ino))
    return found


@contextlib.contextmanager
def compiled_once(marker: Path, what: str, seconds: Callable[[], float]) -> Iterator[None]:
    """Let one process compile something in the block; others that come here meanwhile wait, and find it done.

    Machine code that does not have its checksum is removed before: Numba would fail to read it, or run it.

    Args:
        marker: file of the checksum, see :func:`marker_of`; an error in the block leaves it out.
        what: what is compiled, for notices.
        seconds: called for how long that takes about; the notice is left out below one second.
    """
    if not is_compiled(marker):
        with _held(marker.with_suffix(".lock"), what):
            if not is_compiled(marker):
                for path in _code_files(marker):
                    path.unlink(missing_ok=True)
                if (expected := seconds()) >= 1:
                    _tell(f"compiling {what} for this machine, about {expected:.0f} s, once", _HINT)
                yield
                _keep_checksum(marker)
                return
    before = _stamps(marker)
    yield
    if _stamps(marker) != before:  # compiled again, as for another signature or after its file was saved
        _keep_checksum(marker)


@contextlib.contextmanager
def _held(path: Path, what: str) -> Iterator[None]:
    """Hold a lock that ends with this process; go on without it where that takes too long or is not possible."""
    import filelock  # takes a while to load

    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        _tell(f"waiting for another process to compile {what}")
        with contextlib.suppress(filelock.Timeout):
            lock.acquire(timeout=PATIENCE)
    except (OSError, NotImplementedError):
        pass  # a file system without locks: processes compile beside each other
    try:
        yield
    finally:
        lock.release()


# Seconds to compile a bytecode instruction that a kernel reaches, and one of a helper that no kernel of the process
# reached before, by `python scripts/benchmark/compilation.py`; _LOOP is what the loop of pace() took there.
_PER_INSTRUCTION, _PER_NEW_INSTRUCTION, _LOOP = 0.2e-3, 0.6e-3, 2.4e-3


def expected_seconds(instructions: int, new: int) -> float:
    """Return about how long this machine compiles.

    Args:
        instructions: bytecode instructions of a kernel and all that it reaches.
        new: those of them that this process has not compiled before.
    """
    return (_PER_INSTRUCTION * instructions + _PER_NEW_INSTRUCTION * new) * pace()


@functools.lru_cache(maxsize=1)
def pace() -> float:
    """Return how many times as long as on the machine of the figures above something takes here, by a short loop."""
    loop = "sum(i * i for i in range(50_000))"
    return min(timeit.repeat(loop, number=1, repeat=3, timer=time.process_time)) / _LOOP


_HINT = " (kvgym warm-up compiles everything beforehand)"
_told: set[str] = set()
_silent = False


def _tell(text: str, hint: str = "") -> None:
    """Say something on standard error; the hint only once."""
    if not _silent:
        print(f"kvgym: {text}{'' if hint in _told else hint} ...", file=sys.stderr, flush=True)
        _told.add(hint)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Compile without notices in the block."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before
