"""``kvgym watch curve``: show the learning curves of training runs as a table and a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from kvgym.cli import console


def curve(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders of kvgym train; training may still be in progress.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write, .png or .svg.")] = Path(
        "curve.png"
    ),
) -> None:
    """Show the learning curves of training runs as a table and a picture.

    The curves show the evaluations during training: the metric by environment steps, with baselines on the same
    requests as dashed lines; for evolution, how much better the best agent so far is than its references.
    """
    from kvgym.agents.curves import draw_curves, read_curve

    curves = [read_curve(folder) for folder in runs]
    rows = {}
    for folder, found in zip(runs, curves, strict=True):
        values = [y for y in found["y"] if not math.isnan(y)] or [math.nan]
        rows[str(folder)] = (
            found["training"], str(found["seed"]), f"{found['length']:,} {found['unit']}",
            *(console.number(value) for value in (found["y"][0], found["y"][-1], min(values), max(values))),
            found["y_label"],
        )  # fmt: skip
        for label, value in found.get("baselines", {}).items():
            rows[f"{folder}: {label}"] = ("", "", "", "", console.number(value), "", "", "")
    headings = ("run", "training", "seed", "length", "first", "last", "minimum", "maximum", "metric")
    console.print_table(console.mapping_table("", rows, headings))
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(curves, out)
    console.print_line(f"picture: {out}")
