"""Outcomes of experiments as JSON: stored ones, valid until code or settings change, and those of the pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from harness.experiment import Experiment, Finding, Outcome, Paper, Table, Verdict
from harness.scale import Scale
from kvgym.errors import ConfigError
from kvgym.experiments.result_files import jsonable, write_json
from kvgym.utils.files import write_text
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
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def save(file: Path, key: dict[str, Any], outcome: Outcome) -> Outcome:
    """Write an outcome with its code and return it as read back: JSON values, NaN as ``None``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"key": key, **_values(replace(outcome, code=key["code"]))})
    return _outcome(json.loads(file.read_text(encoding="utf-8")))


def keep(file: Path, outcome: Outcome) -> Outcome:
    """Write the outcome of a page, short enough to be part of the documentation, and return it as read back.

    The file depends on nothing but the outcome, so that the same code writes the same bytes again.
    """
    found = jsonable(_values(outcome))
    lines = [f'"code": {_text(outcome.code)}']
    lines += [f'"{name}": [\n{_lines(found[name])}\n]' for name in ("findings", "tables")]
    lines.append(f'"data": {_text(_rounded(found["data"]))}')
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")
    return _outcome(json.loads(file.read_text(encoding="utf-8")))


def _values(outcome: Outcome) -> dict[str, Any]:
    found = asdict(outcome)
    for row in found["findings"]:
        row["verdict"] = row["verdict"].value
    return found


def _lines(rows: Sequence[Any]) -> str:
    return ",\n".join(map(_text, rows))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _rounded(value: Any) -> Any:
    """Return the data of a figure with six digits: no eye sees more."""
    if isinstance(value, dict):
        return {name: _rounded(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(x) for x in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


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
        str(kept.get("code", "")),
    )
