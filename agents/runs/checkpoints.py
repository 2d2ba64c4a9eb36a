"""Checkpoints that are never half written, and the files of a run that are always whole.

A checkpoint is a folder with the learner (``model.pt``, see :mod:`.learner_state`; of evolution ``strategy.json``) and
the counters of the run (``state.json``), none of which runs code when it is read. It is written
under a temporary name, flushed to the disk and renamed, so that a run killed at any moment leaves whole
checkpoints only.
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

REMEDY = "remove the checkpoint's folder to go on from the one before"
"""What helps where the latest checkpoint is damaged."""


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def save_checkpoint(
    folder: Path, step: int, write: Callable[[Path], None], state: dict[str, Any], keep: int
) -> Path:
    """Save a checkpoint, and remove the oldest beyond ``keep``.

    Args:
        folder: of the run's checkpoints.
        step: environment steps so far.
        write: writes model and normalisation into the folder it is given.
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
    if final.exists():  # of the same step, by a run that was started over
        _remove(final)
    os.replace(temporary, final)
    flush(folder)
    for old in checkpoints(folder)[:-keep]:
        _remove(old)
    return final


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint under a temporary name, so that half of it is never found."""
    left = checkpoint.with_name(temporary_name())
    os.replace(checkpoint, left)
    shutil.rmtree(left, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in a folder, oldest first."""
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


def resumable(run: Path, length: int | None, unit: str) -> tuple[Path | None, dict[str, Any]]:
    """Return the latest checkpoint of a run and its counters; None and ``steps`` 0 where there is none.

    Args:
        run: the run folder.
        length: length that the run is to have now; None = its own.
        unit: what the length counts, for messages.

    Raises:
        ConfigError: the run is longer already, or the checkpoint cannot be read.
    """
    if not checkpoints(run / "checkpoints"):
        return None, {"steps": 0}
    checkpoint, state = latest_checkpoint(run / "checkpoints")
    if length is not None and length < state["steps"]:
        raise ConfigError(f"{run} has done {state['steps']:,} {unit} already, more than {length:,}")
    return checkpoint, state


def read_part(checkpoint: Path, name: str) -> dict[str, Any]:
    """Return what a JSON file of a checkpoint holds.

    Raises:
        ConfigError: it cannot be read, or is no mapping; the message says what helps.
    """
    path = checkpoint / name
    try:
        return mapping(parse_json(read_bytes(path, "checkpoint"), f"checkpoint {path}"), f"checkpoint {path}")
    except ConfigError as error:
        raise ConfigError(f"{error}; {REMEDY}") from None
