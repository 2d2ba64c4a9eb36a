"""Where commands write their results."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kvgym.errors import ConfigError
from kvgym.files import plain_name, remove_left

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


def make_folder(folder: Path) -> Path:
    """Make sure before a long run that results can be written."""
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
def replacing(folder: Path, given: Path | None = None) -> Iterator[None]:
    """Remove the results of an earlier command when the block has written new ones; where it fails, they stay.

    A table of an earlier run would look like a part of the new one.

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
    yield
    for path, number in old.items():
        if path.exists() and path.stat().st_ino == number:  # not written anew
            path.unlink()


def forget_unfinished(folder: Path) -> None:
    """Remove the runs of a folder whose results stand in other files now."""
    from kvgym.experiments.journal import UNFINISHED

    (folder / UNFINISHED).unlink(missing_ok=True)


def command_line() -> str:
    """Return the command line of this process."""
    return shlex.join(["kvgym", *sys.argv[1:]])
