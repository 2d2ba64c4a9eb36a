"""Stored outcomes of experiments, as JSON, valid until their code or settings change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from harness.experiment import Experiment, Finding, Outcome, Paper, Table, Verdict
from harness.scale import Scale
from kvgym.errors import ConfigError
from kvgym.experiments.result_files import write_json
from kvgym.utils.reading import mapping, parse_json, read_bytes

ROOT = Path(__file__).resolve().parents[3]


def key_of(paper: Paper, experiment: Experiment, scale: Scale) -> dict[str, Any]:
    """Return the key of an outcome: the settings, and the code of the library and of the paper's folder."""
    return {
        "experiment": experiment.name,
        "quick": scale.quick,
        "seeds": scale.seeds,
        "code": _digest(paper.name),
    }


@cache
def _digest(paper: str) -> str:
    """Return a digest of all files that a paper's experiments depend on."""
    here = ROOT / "scripts" / "reproduce"
    folders = (ROOT / "kvgym", ROOT / "baselines", ROOT / "configs", here / "papers" / paper)
    files = sorted(file for folder in folders for kind in ("*.py", "*.yaml") for file in folder.rglob(kind))
    files.append(here / "harness" / "scale.py")
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def save(file: Path, key: dict[str, Any], outcome: Outcome) -> Outcome:
    """Write an outcome and return it as read back: JSON values, NaN as ``None``."""
    found = asdict(outcome)
    for row in found["findings"]:
        row["verdict"] = row["verdict"].value
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"key": key, **found})
    return _outcome(json.loads(file.read_text(encoding="utf-8")))


def load(file: Path, key: dict[str, Any] | None = None) -> Outcome | None:
    """Return a stored outcome; ``None`` if it is missing, damaged or of another ``key``."""
    try:
        kept = mapping(parse_json(read_bytes(file, "outcome"), str(file)), str(file))
        return None if key is not None and kept.get("key") != key else _outcome(kept)
    except (ConfigError, LookupError, TypeError, ValueError):
        return None


def _outcome(kept: Mapping[str, Any]) -> Outcome:
    return Outcome(
        [Finding(**{**row, "verdict": Verdict(row["verdict"])}) for row in kept["findings"]],
        [Table(**table) for table in kept["tables"]],
        mapping(kept["data"], "data"),
    )
