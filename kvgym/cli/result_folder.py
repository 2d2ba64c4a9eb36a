"""Where commands write their results."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.errors import ConfigError, some
from kvgym.files import UNFINISHED, plain_name, remove_left

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C has ended."""

LONGEST_COMMAND = 120

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for results (default: results/…).")
]

TABLES = ("runs", "requests", "iterations", "workers", "trials", "probes", "estimates", "windows")
RESULTS = (
    *(f"{name}.{ending}" for name in TABLES for ending in ("csv", "parquet")),
    *(f"{name}.json" for name in ("config", "summary", "best", "capacity", "provision", "vllm-bench")),
    "report.html", "capacity.svg", "validation.png",
)  # fmt: skip
"""Files that commands write into the folder of their results."""


def default_folder(kind: str, name: str) -> Path:
    """Return a new folder under ``results/``."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    plain = plain_name(name)
    folder = Path("results") / f"{kind}-{plain}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{kind}-{plain}-{stamp}-{number}")
    return folder


_folders: dict[Path, list[Path]] = {}
"""Folders of the command that runs, each with those that were made for it, the innermost first."""


def make_folder(folder: Path) -> Path:
    """Make sure before a long run that results can be written."""
    _folders[folder] = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"results cannot be written to {folder}: {error.strerror}; choose another with --out"
        ) from None
    return folder


@contextlib.contextmanager
def tidied() -> Iterator[None]:
    """Leave no empty folders of the command in the block; where Ctrl-C ends it, say how to go on with what is kept."""
    _folders.clear()
    try:
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
def replacing(folder: Path, given: Path | None = None) -> Iterator[None]:
    """Write new results in the block; those of an earlier command then go, and are named, and so do kept runs.

    A table of an earlier run would look like a part of the new one. Where the block fails, all stays.

    Args:
        folder: without a ``config.json`` or ``summary.json``, which every command writes, nothing in it is a result.
        given: file that the user gave, which stays.
    """
    remove_left(folder)
    old: dict[Path, int] = {}
    if any((folder / name).exists() for name in ("config.json", "summary.json")):
        for path in [*(folder / name for name in RESULTS), *folder.glob("vllm-bench/*.json")]:
            if path.exists() and not (given is not None and path.samefile(given)):
                old[path] = path.stat().st_ino
    earlier = _command_of(folder) if old else ""
    yield
    for path, number in old.items():
        if path.exists() and path.stat().st_ino == number:  # not written anew
            path.unlink()
    (folder / UNFINISHED).unlink(missing_ok=True)
    if old:
        names = some((path.name for path in old), 60)
        text = f"note: replaced what was in {folder}: {names}{earlier and f', of: {earlier}'}"
        console.err.print(text, markup=False, soft_wrap=True)


def _command_of(folder: Path) -> str:
    """Return the command that wrote the results of a folder, "" where they do not tell."""
    from kvgym.reading import parse_json, read_bytes  # loads what takes a while

    for name in ("config.json", "summary.json"):
        with contextlib.suppress(ConfigError, AttributeError):  # missing, or written by something else
            content = parse_json(read_bytes(folder / name, "results"), name)
            command = content.get("command") or content.get("config", {}).get("command")
            if isinstance(command, str):
                return command if len(command) <= LONGEST_COMMAND else f"{command[: LONGEST_COMMAND - 1]}…"
    return ""


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
