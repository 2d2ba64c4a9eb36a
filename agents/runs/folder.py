"""Files of every run folder: ``config.yaml`` (resolved) and ``run.json`` (versions, seed, commands)."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvgym.agents.runs.checkpoints import checkpoints, latest_checkpoint, write_json
from kvgym.agents.runs.config import TrainingConfig
from kvgym.errors import ConfigError, some
from kvgym.experiments.result_files import installed_versions, run_context
from kvgym.utils.files import write_text
from kvgym.utils.reading import mapping, parse_json, read_bytes

_WRITTEN = (
    "run.json", "curve.csv", "best.npz", "best.json", "final.npz", "final.json", "model.zip", "predictor.npz",
    "checkpoints",
)  # fmt: skip
"""Files that a run writes after its ``config.yaml``."""


def check_free(folder: Path) -> None:
    """Check that a folder has no run and no file that a run would replace.

    Raises:
        ConfigError: it has one.
    """
    if (folder / "config.yaml").exists():
        raise ConfigError(
            f"{folder} holds a training run already; resume it with --resume {folder}, or choose another folder"
        )
    if others := [name for name in _WRITTEN if os.path.lexists(folder / name)]:
        raise ConfigError(
            f"{folder} holds {some(others)}, which training would replace; choose another folder, or move it"
        )


def write_start(folder: Path, config: TrainingConfig, context: Mapping[str, Any]) -> None:
    """Write the first files of a new run."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    write_json(folder / "run.json", {"seed": config.seed, **context, "resumed": []})


def write_config(folder: Path, config: TrainingConfig) -> None:
    """Write the resolved configuration."""
    write_text(folder / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def resumable(run: Path, length: int | None, units: str) -> tuple[Path | None, dict[str, Any]]:
    """Return the checkpoint that a run continues from, and its counters.

    A run without a checkpoint starts over, and so does one that has made no update: no checkpoint has the random
    generators of a warm start. It has no checkpoint here, and ``steps`` 0.

    Args:
        run: the run folder.
        length: new length of the run; None = its own.
        units: what the length counts, for messages.

    Raises:
        ConfigError: the run is longer already, or the checkpoint cannot be read.
    """
    if not checkpoints(run / "checkpoints"):
        return None, {"steps": 0}
    checkpoint, state = latest_checkpoint(run / "checkpoints")
    if length is not None and length < state["steps"]:
        raise ConfigError(f"{run} has done {state['steps']:,} {units} already, more than {length:,}")
    return (checkpoint if state["steps"] else None), state


def note_resume(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add an entry to the list of resumes in ``run.json``."""
    path = folder / "run.json"
    content: dict[str, Any] = {}
    with contextlib.suppress(ConfigError):  # damaged, but training does not need it
        content = mapping(parse_json(read_bytes(path, "run"), f"run {path}"), f"run {path}")
    before = content.get("resumed")
    content["resumed"] = [*(before if isinstance(before, list) else []), dict(entry)]
    write_json(path, content)


def context_of(command: str, libraries: Iterable[str]) -> dict[str, Any]:
    """Return the context needed to repeat a run, with the versions of installed libraries."""
    context = run_context(command)
    context["libraries"] |= installed_versions(libraries)
    return context


def write_curve(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write ``curve.csv``, a row per evaluation; the first column has the steps done."""
    text = io.StringIO()
    steps, *others = rows[0]
    writer = csv.DictWriter(text, fieldnames=[steps, *others], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, steps: int(row[steps])} for row in rows)
    write_text(folder / "curve.csv", text.getvalue())
