"""Files that are whole or not there, names of files, and folders in which one process works at a time.

May import :mod:`kvgym.errors` only; may be imported from anywhere above it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from kvgym.errors import ConfigError, KVGymError

LONGEST = 120
"""Bytes of a name that is made of a text; systems take 255, with what is put around it."""

UNFINISHED = "unfinished.jsonl"
"""The file of runs whose results are not written yet: it is there only as long as they are not."""

LOCK = ".lock"
"""The file that says who works in a folder."""


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give the block a path to write to; the file appears under its own name when the block ends, or not at all.

    It is written under a temporary name in the same folder, flushed to the disk and renamed, so that whatever ends the
    process, an error, a full disk or a kill, what was there before is still there, and nothing is half written. What
    is no plain file, such as a pipe, is written directly.

    Args:
        path: the file; its folder must exist. The temporary name has its suffix.

    Raises:
        KVGymError: it cannot be written; the message names the file and the reason.
    """
    final = Path(path)
    try:
        if final.is_symlink():
            final = final.resolve()
        if final.exists() and not final.is_file() and not final.is_dir():
            yield final
            return
        part = final.with_name(f".{final.stem}.{os.getpid()}.tmp{final.suffix}")
        try:
            yield part
            flush(part)
            os.replace(part, final)
        finally:
            with contextlib.suppress(OSError):  # of a folder that has gone
                part.unlink(missing_ok=True)
    except OSError as error:
        raise KVGymError(f"{path}: cannot be written: {error.strerror or error}") from None


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
    for left in folder.glob(".*.tmp*"):
        if left.is_file():
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


@contextlib.contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """Let one process at a time work in a folder; the lock ends with the process, however that ends.

    Where the system or the file system knows no such locks, there is none.

    Args:
        folder: must exist.

    Raises:
        ConfigError: another process works in it, which the message names, or it cannot be written.
    """
    path = Path(folder) / LOCK
    try:
        file = _locked(path)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before others can lock it; who has it open already finds that it is gone
        file.close()


def _locked(path: Path) -> TextIO:
    """Open and lock a file, and say in it who has done so."""
    while True:
        file = path.open("a+", encoding="utf-8")
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
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(
                    f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')},"
                )
                file.flush()
                return file
        file.close()
