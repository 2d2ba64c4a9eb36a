"""Files that are whole or not there, names of files, and folders in which one process works at a time.

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
"""Bytes of a name that is made of a text; systems take 255, with what is put around it."""

UNFINISHED = "unfinished.jsonl"
"""The file of runs whose results are not written yet: it is there only as long as they are not."""

HIDDEN = ".kvgym-"
"""Prefix of the hidden files of kvgym."""

LOCK = f"{HIDDEN}lock"
"""The file that says which process works in a folder."""

_TEMPORARY = re.compile(rf"{re.escape(HIDDEN)}[0-9a-f]{{16}}\.tmp(\.[^.]+)?", re.DOTALL)


class Owner(Protocol):
    """Decides about the files of one folder, see :class:`kvgym.cli.manifest.Manifest`."""

    def enter(self, path: Path) -> bool:
        """Return whether a path is in the folder; prepare the folders above it if so."""

    def claim(self, path: Path) -> None:
        """Called when a new file is whole, before it takes the place of what has this name."""


_owners: list[Owner] = []


@contextlib.contextmanager
def owned_by(owner: Owner) -> Iterator[None]:
    """Ask an owner about every file that :func:`whole_file` writes in the block."""
    _owners.append(owner)
    try:
        yield
    finally:
        _owners.remove(owner)


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give the block a path to write to; the file appears under its own name when the block ends, or not at all.

    It is written under a temporary name in the same folder, flushed to the disk and renamed, so that whatever ends the
    process, an error, a full disk or a kill, what was there before is still there, and nothing is half written. A
    symbolic link is replaced, and what it points to stays as it is. A pipe or a device that is named, such as
    ``/dev/stdout``, is written directly.

    Args:
        path: the file; its folder must exist. The temporary name has its suffix.

    Raises:
        KVGymError: it cannot be written; the message names the file and the reason.
    """
    final = Path(path)
    try:
        owner = next((owner for owner in reversed(_owners) if owner.enter(final)), None)
        if owner is None and _is_device(final):
            yield final
            return
        part = new_beside(final)
        try:
            yield part
            flush(part)
            if owner is not None:
                owner.claim(final)
            os.replace(part, final)
        finally:
            with contextlib.suppress(OSError):  # of a folder that has gone
                part.unlink(missing_ok=True)
    except OSError as error:
        raise KVGymError(f"{path}: cannot be written: {error.strerror or error}") from None


def _is_device(path: Path) -> bool:
    """Whether a path is no file to replace: a pipe, a device, or a name that the system gives to an open file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode):
        return path.parts[:2] in ((os.sep, "dev"), (os.sep, "proc")) and path.parts[2:3] != ("shm",)
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def temporary_name(suffix: str = "") -> str:
    """Return a hidden name that no other file has and that cannot be guessed."""
    return f"{HIDDEN}{secrets.token_hex(8)}.tmp{suffix}"


def is_temporary(name: str) -> bool:
    """Whether a name is one of :func:`temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None


def new_beside(path: Path) -> Path:
    """Create an empty file with a temporary name beside a path, and return its path."""
    part = path.with_name(temporary_name(path.suffix))
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return part


def open_plain(path: Path, mode: str) -> IO[str]:
    """Open a text file, UTF-8, but no link, pipe or device that has its name.

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
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nothing reads
            raise refusal from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise refusal
    return descriptor


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, UTF-8, whole or not at all, see :func:`whole_file`."""
    with whole_file(path) as place:
        place.write_bytes(text.encode())


def flush(path: Path) -> None:
    """Have the system write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_left(folder: Path) -> None:
    """Remove the temporary files that a killed process has left in a folder."""
    for left in folder.glob(f"{HIDDEN}*"):
        if is_temporary(left.name) and left.is_file() and not left.is_symlink():
            left.unlink(missing_ok=True)


def plain_name(text: str) -> str:
    """Return a text as the name of a file: what is no letter, digit, ``-``, ``_`` or ``.`` becomes ``-``.

    It names nothing outside the folder it is put into, whatever the text, and is not hidden there. A long one is cut,
    with a hash of the whole at its end.
    """
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in text)
    if len(plain.encode()) > LONGEST:
        plain = f"{plain[: LONGEST // 4]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return f"-{plain[1:]}" if plain.startswith(".") else plain or "-"


_lent: set[tuple[int, int, str]] = set()
"""Process, thread and folder of the locks that a function called meanwhile may use."""


@contextlib.contextmanager
def alone_in(folder: str | Path, *, lend: bool = False) -> Iterator[None]:
    """Let one process at a time work in a folder; the lock ends with the process, however that ends.

    Where the system or the file system knows no such locks, there is none.

    Args:
        folder: must exist.
        lend: whether a function that is called in the block, in the same thread, may lock the folder as well: a command
            holds the lock until its results are written, and the search that it calls asks for it, too.

    Raises:
        ConfigError: another process works in it, which the message names, or it cannot be written.
    """
    path = Path(folder) / LOCK
    key = os.getpid(), threading.get_ident(), os.path.realpath(folder)
    if key in _lent:
        _lent.remove(key)  # to one at a time
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
            path.unlink()  # before others can lock it; who has it open already finds that it is gone
        file.close()


def _locked(path: Path) -> IO[str]:
    """Open and lock a file, and say in it who has done so."""
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
        except (ImportError, OSError):  # no such locks here
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
