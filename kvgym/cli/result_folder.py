"""Where commands write their results."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kvgym.errors import ConfigError

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
    plain = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
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


def clear_folder(folder: Path, given: Path | None = None) -> None:
    """Remove the results of an earlier command, right before new ones are written.

    A table of an earlier run would look like a part of the new one.

    Args:
        folder: without a ``config.json`` or ``summary.json``, which every command writes, nothing in it is a result.
        given: file that the user gave, which stays.
    """
    if not any((folder / name).exists() for name in ("config.json", "summary.json")):
        return
    for path in [*(folder / name for name in RESULTS), *folder.glob("vllm-bench/*.json")]:
        if path.exists() and not (given is not None and path.samefile(given)):
            path.unlink()


def command_line() -> str:
    """Return the command line of this process."""
    return shlex.join(["kvgym", *sys.argv[1:]])
