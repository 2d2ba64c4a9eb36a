"""Atomic file writes, safe file names, and locks on folders.

May import :mod:`kvgym.errors` only; may be imported from anywhere above it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

from kvgym.errors import ConfigError, KVGymError

LONGEST = 120
"""Longest name made from a text, bytes; file systems allow 255, including prefixes and suffixes."""

UNFINISHED = "unfinished.jsonl"
"""The file of finished runs; it exists until the results are written."""

HIDDEN = ".kvgym-"
"""Prefix of the hidden files of kvgym."""

LOCK = f"{HIDDEN}lock"
"""The file that names the process that works in a folder."""

_TEMPORARY = re.compile(rf"{re.escape(HIDDEN)}[0-9a-f]{{16}}\.tmp(\.[^.]+)?", re.DOTALL)


class Owner(Protocol):
    """Controls the files of one folder, see :class:`kvgym.cli.manifest.Manifest`."""

    def enter(self, path: Path) -> bool:
        """Return whether a path is in the folder; if so, prepare its parent folders."""

    def claim(self, path: Path) -> None:
        """Called when a new file is complete, before it replaces the file of this name."""


_owners: list[Owner] = []


@contextlib.contextmanager
def owned_by(owner: Owner) -> Iterator[None]:
    """Ask an owner about every file that :func:`whole_file` writes while the context is active."""
    _owners.append(owner)
    try:
        yield
    finally:
        _owners.remove(owner)


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it replaces the file, otherwise the file stays unchanged.

    The temporary file is in the same folder; it is flushed to disk and renamed. An error, a full disk or a kill
    therefore never leaves a half-written file. A symbolic link is replaced, and its target stays unchanged. A pipe or
    device, such as ``/dev/stdout``, is written directly.

    Args:
        path: the file; its folder must exist. The temporary name has the same suffix.

    Raises:
        KVGymError: the file cannot be written; the message names it and the reason.
    """
    final = Path(path)
    try:
        owner = next((owner for owner in reversed(_owners) if owner.enter(final)), None)
        if owner is None and _is_device(final):
            yield final
            return
        part = create_temporary(final)
        try:
            yield part
            flush(part)
            if owner is not None:
                owner.claim(final)
            os.replace(part, final)
        finally:
            with contextlib.suppress(OSError):  # the folder may have been removed
                part.unlink(missing_ok=True)
    except OSError as error:
        raise KVGymError(f"{path}: cannot be written: {error.strerror or error}") from None


def _is_device(path: Path) -> bool:
    """Return whether a path is a pipe, a device, or a system name of an open file, none of which is replaced."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode):
        return path.parts[:2] in ((os.sep, "dev"), (os.sep, "proc")) and path.parts[2:3] != ("shm",)
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def temporary_name(suffix: str = "") -> str:
    """Return a unique hidden name that cannot be guessed."""
    return f"{HIDDEN}{secrets.token_hex(8)}.tmp{suffix}"


def is_temporary(name: str) -> bool:
    """Return whether a name comes from :func:`temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None


def create_temporary(path: Path) -> Path:
    """Create an empty file with a temporary name in the folder of a path; return its path."""
    part = path.with_name(temporary_name(path.suffix))
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return part


def open_plain(path: Path, mode: str) -> IO[str]:
    """Open a text file, UTF-8; refuse links, pipes and devices.

    Raises:
        OSError: it is one of these, or cannot be opened.
    """
    return open(path, mode, encoding="utf-8", opener=_open_plain)


def _open_plain(path: str, flags: int) -> int:
    refusal = OSError(errno.ELOOP, "it is a symbolic link or no plain file; remove it", path)
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe without a reader
            raise refusal from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return descriptor


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, UTF-8, atomically, see :func:`whole_file`."""
    with whole_file(path) as place:
        place.write_bytes(text.encode())


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_left(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder."""
    for left in folder.glob(f"{HIDDEN}*"):
        if is_temporary(left.name) and left.is_file() and not left.is_symlink():
            left.unlink(missing_ok=True)


def plain_name(text: str) -> str:
    """Return a text as a file name: all characters except letters, digits, ``-``, ``_`` and ``.`` become ``-``.

    The name never leads out of its folder and is never hidden. A long name is cut and ends in a hash of the text.
    """
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
    if len(plain.encode()) > LONGEST:
        plain = f"{plain[: LONGEST // 4]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return f"-{plain[1:]}" if plain.startswith(".") else plain or "-"


_lent: set[tuple[int, int, str]] = set()
"""Process, thread and folder of the locks that a nested call may use."""


@contextlib.contextmanager
def alone_in(folder: str | Path, *, lend: bool = False) -> Iterator[None]:
    """Lock a folder for one process at a time; the lock always ends with the process.

    Without effect on systems and file systems that have no such locks.

    Args:
        folder: must exist.
        lend: whether a nested call in the same thread may lock the folder as well: a command holds the lock until its
            results are written, and the search that it calls locks the folder, too.

    Raises:
        ConfigError: another process works in it (the message names the process), or it cannot be written.
    """
    path = Path(folder) / LOCK
    key = os.getpid(), threading.get_ident(), os.path.realpath(folder)
    if key in _lent:
        _lent.remove(key)  # lent to one call at a time
        try:
            yield
        finally:
            _lent.add(key)
        return
    try:
        file = _locked(path)
    except OSError as error:
        what = path if error.errno == errno.ELOOP else folder
        raise ConfigError(f"{what}: cannot be written: {error.strerror}") from None
    if lend:
        _lent.add(key)
    try:
        yield
    finally:
        _lent.discard(key)
        with contextlib.suppress(OSError):
            path.unlink()  # before others can lock it; a process that has it open notices the removal
        file.close()


def _locked(path: Path) -> IO[str]:
    """Open and lock a file, and write this process's id, host and time into it."""
    while True:
        file = open_plain(path, "a+")
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise ConfigError(
                f"{path.parent}: {holder} works on it; wait until that has ended, or choose another folder"
            ) from None
        except (ImportError, OSError):  # locks are not supported
            return file
        with contextlib.suppress(FileNotFoundError):  # removed between opening and locking: try again
            if os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                file.truncate(0)
                file.write(
                    f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')},"
                )
                file.flush()
                return file
        file.close()
