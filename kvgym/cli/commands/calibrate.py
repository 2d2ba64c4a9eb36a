"""``kvgym calibrate``: make a hardware file from operator profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvgym.cli import console

ERROR_HEADINGS = ("operator group", "median error", "95th percentile", "held-out rows")


def calibrate(
    recipe: Annotated[str, typer.Option(help="Recipe: YAML file, or the name of one that comes with kvgym.")],
    profiles: Annotated[
        Path | None,
        typer.Option(help="Folder of the profiles; default: the recipe's."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Hardware file to write; default: NAME.yaml in this folder.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Date to write into the file, ISO 8601; default: today.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot predicted against measured times of the held-out rows (.png, .svg, .pdf)."),
    ] = None,
    max_error: Annotated[
        float, typer.Option(min=0.0, help="Write nothing if a median held-out error exceeds this share.")
    ] = 0.25,
) -> None:
    """Fit operator tables to profiles; write a hardware file and show its errors.

    The errors are those of the tables on measurements held out of the fit.
    """
    from kvgym.batch_time.calibration.calibrate import calibrate as fit
    from kvgym.batch_time.calibration.calibrate import warnings, write_hardware
    from kvgym.batch_time.calibration.recipes import load_recipe
    from kvgym.batch_time.deployments.load import load_calibrated
    from kvgym.errors import ConfigError

    if plot is not None:
        from kvgym.batch_time.calibration.plot import check_plot, draw

        check_plot(plot)
    chosen = load_recipe(recipe)
    folder = profiles or (Path(recipe).parent if recipe.endswith((".yaml", ".yml")) else Path())
    path = out or Path(f"{chosen.name}.yaml")
    content = fit(folder, chosen, date, max_error=max_error)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_hardware(content, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    hardware = load_calibrated(path)
    rows = {
        group: (f"{error.median:.1%}", f"{error.p95:.1%}", f"{error.rows:,}")
        for group, error in hardware.fit_error.items()
    }
    console.out.print(console.mapping_table(chosen.description, rows, ERROR_HEADINGS))
    for line in warnings(hardware):
        console.out.print(f"warning: {line}", markup=False)
    console.out.print(
        f"\n{path}: {hardware.kv_capacity:,} KV tokens, {hardware.kv_capacity_origin}", markup=False
    )
    if plot is not None:
        draw(hardware, plot)
        console.out.print(str(plot), markup=False)
