"""Where commands write their results."""

from __future__ import annotations

import contextlib
import itertools
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.manifest import Manifest
from kvgym.errors import ConfigError, cut, some
from kvgym.utils.files import UNFINISHED, alone_in, owned_by, plain_name, remove_left

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C has ended."""

LONGEST_COMMAND = 120

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for results (default: results/…).")
]


_folders: dict[Path, list[Path]] = {}
"""Folders of the command that runs, each with those that were made for it, the innermost first."""

_open = contextlib.ExitStack()
"""What the command holds until it ends: the locks of its folders and the lists of their files."""


def default_folder(kind: str, name: str) -> Path:
    """Make a new folder under ``results/``, which no other command has."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    first = Path("results") / f"{kind}-{plain_name(name)}-{stamp}"
    for number in itertools.count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        missing = _missing(folder)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            break  # make_folder reports it
        _folders[folder] = missing
        break
    return folder


def _missing(folder: Path) -> list[Path]:
    return [place for place in (folder, *folder.parents) if not place.exists()]


def make_folder(folder: Path) -> Path:
    """Lock a folder until the command ends, and check before a long run that results can be written to it."""
    _folders.setdefault(folder, _missing(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"results cannot be written to {folder}: {error.strerror}; choose another with --out"
        ) from None
    _open.enter_context(alone_in(folder, lend=True))
    return folder


@contextlib.contextmanager
def tidied() -> Iterator[None]:
    """Leave no empty folders of the command in the block; where Ctrl-C ends it, say how to go on with what is kept."""
    _folders.clear()
    try:
        with _open:
            yield
    except SystemExit as stop:
        kept = next((folder for folder in _folders if _has_unfinished(folder)), None)
        if stop.code == INTERRUPTED and kept is not None:
            text = f"stopped; what was run is kept: the same command with --out {kept} goes on"
            console.err.print(text, markup=False, soft_wrap=True)
        raise
    finally:
        for made in reversed(_folders.values()):
            for folder in made:
                with contextlib.suppress(OSError):  # it has results, or was not made after all
                    folder.rmdir()


def _has_unfinished(folder: Path) -> bool:
    """Whether runs are kept in a folder, or in one within it, of which there is no result yet."""
    return any(path.stat().st_size for kind in ("", "*/") for path in folder.glob(kind + UNFINISHED))


@contextlib.contextmanager
def replacing(folder: Path, given: Path | None = None, *, kept: bool = False) -> Iterator[None]:
    """Write new results in the block; those of an earlier command are then removed and named.

    A table of an earlier run would look like a part of the new one. Only files are removed that kvgym has written and
    listed, see :mod:`kvgym.cli.manifest`; those that the command writes after the block are listed, too. Where the
    block fails, nothing is removed.

    Args:
        folder: of :func:`make_folder`.
        given: file that the user gave, which stays.
        kept: whether the command has kept its runs in the folder, which are now results.
    """
    remove_left(folder)
    manifest = Manifest(folder, command_line(), keep=given, report=_note)
    _open.enter_context(owned_by(manifest))
    old = manifest.old()
    yield
    manifest.remove_old()
    if kept:
        (folder / UNFINISHED).unlink(missing_ok=True)
    if old:
        command = manifest.command and f", of: {cut(manifest.command, LONGEST_COMMAND)}"
        _note(f"replaced what was in {folder}: {some(old, 60)}{command}")


def _note(text: str) -> None:
    console.err.print(f"note: {text}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def saying_if_stopped(text: Callable[[], str]) -> Iterator[None]:
    """Where Ctrl-C ends the block, say what is there and how to go on.

    Args:
        text: makes what to say then, "" for nothing.
    """
    try:
        yield
    except KeyboardInterrupt:
        if told := text():
            console.err.print(told, markup=False, soft_wrap=True)
        raise


def reporting(folder: Path, name: str, again: str) -> contextlib.AbstractContextManager[None]:
    """Write a report or a figure in the block; where Ctrl-C ends it, say what is there and how to get the rest.

    Args:
        folder: of the results, which are written.
        name: file that the block writes.
        again: the command that makes it again.
    """
    return saying_if_stopped(
        lambda: f"stopped before {name} was written; the other results are in {folder}; to get it: {again}"
    )


def command_line() -> str:
    """Return the command line of this process."""
    return shlex.join(["kvgym", *sys.argv[1:]])
