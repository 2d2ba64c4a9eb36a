"""Checkpoints of training runs, written atomically.

A checkpoint is a folder with the learner (``model.pt``, see :mod:`kvgym.agents.sb3.learner_state`; of evolution
``strategy.json``) and the counters of the run (``state.json``). Reading them runs no code. A checkpoint is written
under a temporary name, flushed to disk and renamed, so that a killed run leaves only whole checkpoints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.utils.files import flush, is_temporary, temporary_name, write_text
from kvgym.utils.reading import mapping, parse_json, read_bytes

_NAME = re.compile(r"step-[0-9]{12}")

REMEDY = "remove the checkpoint's folder to continue from the previous one"
"""Remedy for a damaged latest checkpoint."""


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def save_checkpoint(
    folder: Path, step: int, write: Callable[[Path], None], state: dict[str, Any], keep: int
) -> Path:
    """Save a checkpoint and remove the oldest beyond ``keep``.

    Args:
        folder: of the run's checkpoints.
        step: environment steps so far.
        write: writes the learner into a given folder.
        state: counters, JSON-able.
        keep: checkpoints to keep.

    Returns:
        The checkpoint's folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in filter(is_temporary, os.listdir(folder)):  # of a run that was killed
        shutil.rmtree(folder / left, ignore_errors=True)  # follows no links
    final = folder / f"step-{step:012d}"
    temporary = folder / temporary_name()
    temporary.mkdir()
    write(temporary)
    write_json(temporary / "state.json", state)
    for file in temporary.iterdir():
        flush(file)
    if final.exists():  # of the same step, by a run that was restarted
        _remove(final)
    os.replace(temporary, final)
    flush(folder)
    for old in checkpoints(folder)[:-keep]:
        _remove(old)
    return final


def _remove(checkpoint: Path) -> None:
    """Rename a checkpoint, then remove it, so that a partial one is never found."""
    left = checkpoint.with_name(temporary_name())
    os.replace(checkpoint, left)
    shutil.rmtree(left, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    found = (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and not path.is_symlink())
    return sorted(path for path in found if (path / "state.json").is_file())


def latest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the latest checkpoint and its counters.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    found = checkpoints(folder)
    if not found:
        raise ConfigError(f"{folder} has no checkpoint; the run was stopped before its first one")
    state = read_part(found[-1], "state.json")
    if type(steps := state.get("steps")) is not int or steps < 0:
        raise ConfigError(
            f"checkpoint {found[-1]}: steps = {shown(steps)}; expected a whole number ≥ 0; {REMEDY}"
        )
    return found[-1], state


def read_part(checkpoint: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of a checkpoint.

    Raises:
        ConfigError: it cannot be read, or is not a mapping; the message has the remedy.
    """
    path = checkpoint / name
    try:
        return mapping(parse_json(read_bytes(path, "checkpoint"), f"checkpoint {path}"), f"checkpoint {path}")
    except ConfigError as error:
        raise ConfigError(f"{error}; {REMEDY}") from None
