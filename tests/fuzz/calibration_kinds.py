"""Kinds of input for calibration: operator profiles and recipes."""

from __future__ import annotations

import csv
import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import yaml

from fuzz.kinds import Kind, raw, refuse, written
from helpers.servers import profiles
from kvgym.utils.reading import shipped_texts

FILES = ("linear", "attention", "all_reduce")


@functools.cache
def texts() -> dict[str, str]:
    """Return the texts of small profiles by file name."""
    with tempfile.TemporaryDirectory() as folder:
        profiles.write_profiles(Path(folder), degree=2)
        found = {name: (Path(folder) / f"{name}.csv").read_text("utf-8") for name in FILES}
    # Half the rows of the longest suffice: mutations change few cells.
    head, *rows = found["linear"].splitlines()
    return {**found, "linear": "\n".join([head, *rows[::4], *rows[1::4]]) + "\n"}


def profile_seeds() -> list[Any]:
    tables = {name: list(csv.reader(io.StringIO(text))) for name, text in texts().items()}
    return [
        *[{"file": name, "rows": tables[name]} for name in FILES],
        *[{"file": name, "data": raw(texts()[name])} for name in FILES],
    ]


def play_profile(content: Any, folder: Path) -> None:
    """Read profiles with one mutated file; the fit itself gets checked arrays."""
    from kvgym.servers.calibration.profile_csv import read_profiles

    content = content if isinstance(content, dict) else {}
    name = str(content.get("file"))
    name = name if name in FILES else "linear"
    for file, text in texts().items():
        written(folder, f"{file}.csv", text.encode())
    data = content.get("data")
    if not isinstance(data, bytes):
        rows, text = content.get("rows"), io.StringIO()
        lines = [
            row if isinstance(row, list) else [row] for row in (rows if isinstance(rows, list) else [rows])
        ]
        csv.writer(text, lineterminator="\n").writerows(
            [
                cell.replace("\0", "") if isinstance(cell, str) else cell for cell in line
            ]  # Python 3.10 writes no NUL
            for line in lines
        )
        data = text.getvalue().encode("utf-8", "replace")
    written(folder, f"{name}.csv", data)
    found = read_profiles(folder, profiles.recipe(degree=2))
    times = (found.block, found.add, found.embedding, found.decode[2], found.prefill[2], found.save[1])
    refuse(not all((column >= 0).all() and (column < 1e300).all() for column in times), "invalid times")


PROFILE = Kind("profile", profile_seeds, play_profile)


def recipe_seeds() -> list[Any]:
    shipped = [yaml.safe_load(text) for _, text in sorted(shipped_texts("recipe").items())]
    full = profiles.recipe(degree=2).model_dump(mode="json")
    return [*shipped[:3], full, raw(yaml.safe_dump(shipped[0])), raw(yaml.safe_dump(full))]


def play_recipe(content: Any, folder: Path) -> None:
    """Read a recipe and compute what depends on it alone."""
    from kvgym.batch_time.models.ideal import IdealTimes
    from kvgym.servers.calibration.recipes import load_recipe

    recipe = load_recipe(written(folder, "recipe.yaml", content))
    tokens, origin = recipe.capacity()
    refuse(not (2 <= tokens < 2**31 and isinstance(origin, str)), "an invalid memory")
    IdealTimes(recipe.gpu, recipe.model, recipe.tensor_parallel)
    for file in (recipe.profiles.linear, recipe.profiles.attention):
        refuse("\x00" in file.file, "an impossible path")


RECIPE = Kind("recipe", recipe_seeds, play_recipe)
