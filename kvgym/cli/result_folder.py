"""Result folders of commands: creation, locking, and replacement of old results."""

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
from kvgym.cli.options.shared import OUTPUT
from kvgym.errors import ConfigError, cut, some
from kvgym.utils.files import UNFINISHED, alone_in, owned_by, plain_name, remove_left

INTERRUPTED = 130
"""Exit status of a command stopped by Ctrl-C."""

LONGEST_COMMAND = 120

OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FOLDER",
        help="Folder for results (default: results/…).",
        rich_help_panel=OUTPUT,
    ),
]


_folders: dict[Path, list[Path]] = {}
"""Folders of the current command, each with the folders created for it, innermost first."""

_open = contextlib.ExitStack()
"""Resources held until the command ends: folder locks and manifests."""


def default_folder(kind: str, name: str) -> Path:
    """Create and return a new folder under ``results/`` that no other command uses."""
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
    """Create a folder, lock it until the command ends, and check before a long run that it is writable."""
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
    """Remove empty folders when the command ends; after Ctrl-C, print how to resume with the runs that are kept."""
    _folders.clear()
    try:
        with _open:
            yield
    except SystemExit as stop:
        kept = next((folder for folder in _folders if _has_unfinished(folder)), None)
        if stop.code == INTERRUPTED and kept is not None:
            text = f"stopped; completed runs are kept: run the same command with --out {kept} to resume"
            console.print_to_stderr(text)
        raise
    finally:
        for made in reversed(_folders.values()):
            for folder in made:
                with contextlib.suppress(OSError):  # it has results, or was never created
                    folder.rmdir()


def _has_unfinished(folder: Path) -> bool:
    """Whether a folder, or a folder in it, has runs of an unfinished command."""
    return any(path.stat().st_size for kind in ("", "*/") for path in folder.glob(kind + UNFINISHED))


@contextlib.contextmanager
def replacing(folder: Path, given: Path | None = None, *, kept: bool = False) -> Iterator[None]:
    """Write new results in the block, then remove the results of an earlier command and print their names.

    A table of an earlier run would look like a part of the new results. Only files listed as written by kvgym are
    removed, see :mod:`kvgym.cli.manifest`; files that the command writes after the block are listed too. If the block
    fails, nothing is removed.

    Args:
        folder: folder from :func:`make_folder`.
        given: input file of the user, which stays.
        kept: whether the command has saved its runs in the folder; that file is then removed.
    """
    remove_left(folder)
    manifest = Manifest(folder, command_line(), keep=given, report=print_note)
    _open.enter_context(owned_by(manifest))
    old = manifest.old()
    yield
    manifest.remove_old()
    if kept:
        (folder / UNFINISHED).unlink(missing_ok=True)
    if old:
        command = manifest.command and f", of: {cut(manifest.command, LONGEST_COMMAND)}"
        print_note(f"replaced in {folder}: {some(old, 60)}{command}")


def print_note(text: str) -> None:
    """Print a note to standard error."""
    console.print_to_stderr(f"note: {text}")


@contextlib.contextmanager
def saying_if_stopped(text: Callable[[], str]) -> Iterator[None]:
    """Print a message if Ctrl-C stops the block.

    Args:
        text: returns the message, "" for none.
    """
    try:
        yield
    except KeyboardInterrupt:
        if message := text():
            console.print_to_stderr(message)
        raise


def reporting(folder: Path, name: str, again: str) -> contextlib.AbstractContextManager[None]:
    """Write a report or a figure in the block; if Ctrl-C stops it, print where the results are and how to get the rest.

    Args:
        folder: folder of the results, which are complete.
        name: file that the block writes.
        again: how to write it again.
    """
    return saying_if_stopped(
        lambda: f"stopped before {name} was written; the other results are in {folder}; to get it: {again}"
    )


def command_line() -> str:
    """Return the command line of this process."""
    return shlex.join(["kvgym", *sys.argv[1:]])
