"""Files of every run folder: ``config.yaml`` (resolved) and ``run.json`` (versions, seed, commands)."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kvgym.agents.runs.checkpoints import resumable, write_json
from kvgym.agents.runs.config import TrainingConfig, read_run_config
from kvgym.errors import ConfigError, some
from kvgym.experiments.result_files import installed_versions, run_context
from kvgym.utils.files import write_text
from kvgym.utils.reading import mapping, parse_json, read_bytes

C = TypeVar("C", bound=TrainingConfig)

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


def reopen(
    folder: str | Path, length: int | None, kind: type[C], unit: str
) -> tuple[Path, C, Path | None, dict[str, Any]]:
    """Return what a run continues from.

    Args:
        folder: the run folder.
        length: new length of the run; None = its own.
        kind: of the configuration.
        unit: what the length counts, for messages.

    Returns:
        The folder, the configuration with the new length, and the latest checkpoint and its counters, see
        :func:`~kvgym.agents.runs.checkpoints.resumable`.

    Raises:
        ConfigError: the folder has no run of this kind, or a longer one, or the checkpoint cannot be read.
    """
    path = Path(folder)
    config = read_run_config(path, length)
    if not isinstance(config, kind):
        raise ConfigError(f"{path} has a run of {config.algorithm}; resume it with kvgym.agents.resume")
    return path, config, *resumable(path, length, unit)


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
    """Write ``curve.csv``, a row per evaluation."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "curve.csv", text.getvalue())
