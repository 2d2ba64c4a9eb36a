"""Checkpoints that are never half written, and the files of a run that are always whole.

A checkpoint is a folder with the model and its optimiser (``model.zip``), the normalisation of rewards
(``normalize.pkl``), the replay buffer of DQN (``replay.pkl``) and the counters (``state.json``). It is written
under a temporary name, flushed to the disk and renamed, so that a run killed at any moment leaves whole
checkpoints only.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvgym.errors import ConfigError

_PREFIX = "step-"

REMEDY = "remove the checkpoint's folder to go on from the one before"
"""What helps where the latest checkpoint is damaged."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name in the same folder, then rename it.

    Args:
        path: the file.
        write: writes to the path it is given, which has the suffix of ``path``.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        write(temporary)
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_left(folder: Path) -> None:
    """Remove the temporary files that a killed run has left in its folder."""
    for left in folder.glob(".*.tmp*"):
        if left.is_file():
            left.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file, UTF-8, whole or not at all."""
    write_whole(path, lambda place: place.write_bytes(text.encode()))


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
    for left in folder.glob(".*.tmp"):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    final = folder / f"{_PREFIX}{step:012d}"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    write(temporary)
    write_json(temporary / "state.json", state)
    for file in temporary.iterdir():
        _flush(file)
    if final.exists():  # of the same step, by a run that was started over
        _remove(final)
    os.replace(temporary, final)
    _flush(folder)
    for old in checkpoints(folder)[:-keep]:
        _remove(old)
    return final


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint under a temporary name, so that half of it is never found."""
    left = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.old.tmp")
    os.replace(checkpoint, left)
    shutil.rmtree(left, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "state.json").is_file())


def latest_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the latest checkpoint and its counters.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    found = checkpoints(folder)
    if not found:
        raise ConfigError(f"{folder} has no checkpoint; the run was stopped before its first one")
    path = found[-1] / "state.json"
    try:
        state = json.loads(path.read_text("utf-8"))
        if not isinstance(state, dict) or "steps" not in state:
            raise ValueError("expected a mapping with the counters of a run")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {REMEDY}") from None
    return found[-1], state


def _flush(path: Path) -> None:
    """Have the system write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
