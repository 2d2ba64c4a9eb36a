"""Result files: tables, standard JSON, and the context needed to repeat a run."""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError
from kvgym.utils.files import write_text
from kvgym.utils.frame import Frame, has_pyarrow
from kvgym.utils.version import __version__


def run_context(command: str = "") -> dict[str, Any]:
    """Return the context of a run: version, command, interpreter and library versions."""
    from importlib.metadata import version

    return {
        "kvgym": __version__,
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: version(name) for name in ("numpy", "numba", "gymnasium", "scipy")},
    }


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages, without those that are not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def jsonable(value: Any) -> Any:
    """Return ``value`` with NaN and infinities as None."""
    if isinstance(value, dict):
        return {k: jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def write_json(path: Path, content: Any) -> None:
    """Write standard JSON, NaN as null, completely or not at all."""
    try:
        text = json.dumps(jsonable(content), indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:  # foreign objects, or a number with thousands of digits
        raise ConfigError(f"{path}: cannot be written: {error}") from None
    write_text(path, f"{text}\n")


def write_table(folder: str | Path, name: str, frame: Frame) -> Path:
    """Write ``NAME.csv``, with PyArrow also ``NAME.parquet``; return the folder, created if missing."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    frame.write_csv(path / f"{name}.csv")
    if has_pyarrow():
        frame.write_parquet(path / f"{name}.parquet")
    return path
