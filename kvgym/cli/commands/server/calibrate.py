"""``kvgym server calibrate``: fit operator tables to measured kernels, for one model or for a GPU and any model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from kvgym.cli import console

MOST_DOUBTS = 8
"""Most warnings about doubtful times of a GPU's tables."""
ERROR_HEADINGS = ("operator group", "median error", "95th percentile", "held-out rows")
_NEEDS_ONE = "give one of --recipe, --operators and --bundle: what was measured (docs/calibration.md)"


def calibrate(
    recipe: Annotated[
        str | None,
        typer.Option(help="Profiles of one model: a recipe, YAML file or name of one that comes with kvgym."),
    ] = None,
    operators: Annotated[
        list[Path] | None,
        typer.Option(
            help="Kernels of a GPU for any model: a folder of Parquet files in AIConfigurator's form; again for more."
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Kernels of a GPU for one model: a folder of CSV files in LLMServingSim's form."),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(help="Folder of the recipe's profiles; default: the recipe's."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU of --operators or --bundle: preset (kvgym list gpus) or any name.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of --bundle: preset (kvgym list models) or YAML file.")
    ] = None,
    measured: Annotated[
        str, typer.Option(help="What --operators or --bundle measured, in a few words: 'vLLM 0.19.0'.")
    ] = "",
    source: Annotated[
        str, typer.Option(help="Where the files of --operators or --bundle come from, with their licence.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default: NAME.yaml, or GPU.npz for --operators and --bundle."),
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Date to write into the file, ISO 8601; default: today.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Plot predicted against measured times of a recipe's held-out rows (.png, .svg, .pdf)."
        ),
    ] = None,
    max_error: Annotated[
        float,
        typer.Option(
            min=0.0, help="Write nothing if a median held-out error of a recipe exceeds this share."
        ),
    ] = 0.25,
    implausible: Annotated[
        bool,
        typer.Option(
            "--implausible",
            help="Write the file although the GPU, or other GPUs, make its times implausible.",
        ),
    ] = False,
) -> None:
    """Fit operator tables to measured kernels; write a file and show its errors.

    The errors are those of the tables on measurements held out of the fit.
    """
    from kvgym.errors import ConfigError

    if sum(bool(given) for given in (recipe, operators, bundle)) != 1:
        raise ConfigError(_NEEDS_ONE)
    if recipe is None:
        if gpu is None:
            raise ConfigError(
                "--gpu is missing: the GPU that was measured, a preset (kvgym list gpus) or any name"
            )
        _fit_gpu(operators, bundle, gpu, model, measured, source, date, out, implausible)
    else:
        _fit_recipe(recipe, profiles, date, out, plot, max_error, implausible)


def _fit_gpu(
    operators: list[Path] | None,
    bundle: Path | None,
    gpu: str,
    model: str | None,
    measured: str,
    source: str,
    date: str | None,
    out: Path | None,
    implausible: bool,
) -> None:
    from kvgym.batch_time.hardware.presets import GPUS, MODELS
    from kvgym.batch_time.operators.files import pack
    from kvgym.errors import ConfigError
    from kvgym.servers.calibration.calibrate import parse_day
    from kvgym.servers.calibration.contradictions import contradictions
    from kvgym.utils.files import whole_file

    path = out or Path(f"{gpu}.npz")
    if path.suffix != ".npz":
        raise ConfigError(f"--out {path}: operator tables of a GPU are an .npz file")
    about = {"measured": measured, "source": source, "date": parse_day(date)}
    if operators:
        from kvgym.servers.calibration.operators import fit_operators

        tables = fit_operators(operators, gpu, **about)
    else:
        from kvgym.servers.calibration.bundles import fit_bundle

        if model is None:
            raise ConfigError("--model is missing: the model of the bundle (kvgym list models)")
        assert bundle is not None
        tables = fit_bundle(bundle, MODELS.find(model), gpu, **about)
    doubts = contradictions(tables)
    grave = [doubt.text for doubt in doubts if doubt.is_grave]
    if grave and not implausible:
        more = f" (and {len(grave) - 1:,} more)" if grave[1:] else ""
        raise ConfigError(f"{grave[0]}{more}; --implausible writes the file all the same", "\n".join(grave))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as place:
        place.write_bytes(pack(tables))
    _show_errors(f"{gpu}, {measured or 'kernels'}", tables.fit_error)
    for doubt in doubts[:MOST_DOUBTS]:
        console.out.print(f"warning: {doubt.text}", markup=False)
    if len(doubts) > MOST_DOUBTS:
        console.out.print(
            f"warning: {len(doubts) - MOST_DOUBTS:,} more series have doubtful times", markup=False
        )
    if gpu in GPUS:
        shares = tables.attained(GPUS[gpu]).items()
        text = ", ".join(f"{dtype}: [{compute:.2f}, {memory:.2f}]" for dtype, (compute, memory) in shares)
        console.out.print(f"\nattained shares of FLOP/s and bandwidth: {{{text}}}", markup=False)
    console.out.print(
        f"\n{path}: use it with --hardware kernels:model=NAME,gpu={gpu},operators={path}", markup=False
    )


def _show_errors(title: str, errors: Mapping[str, Mapping[str, float]]) -> None:
    rows = {
        group: (f"{error['median']:.1%}", f"{error['p95']:.1%}", f"{error['rows']:,.0f}")
        for group, error in errors.items()
    }
    console.print_table(console.mapping_table(title, rows, ERROR_HEADINGS))


def _fit_recipe(
    recipe: str,
    profiles: Path | None,
    date: str | None,
    out: Path | None,
    plot: Path | None,
    max_error: float,
    implausible: bool,
) -> None:
    from kvgym.batch_time.deployments.load import load_calibrated
    from kvgym.errors import ConfigError
    from kvgym.servers.calibration.calibrate import calibrate as fit
    from kvgym.servers.calibration.calibrate import warnings, write_hardware
    from kvgym.servers.calibration.recipes import load_recipe

    if plot is not None:
        from kvgym.servers.calibration.plot import check_plot, draw

        check_plot(plot)
    chosen = load_recipe(recipe)
    folder = profiles or (Path(recipe).parent if recipe.endswith((".yaml", ".yml")) else Path())
    path = out or Path(f"{chosen.name}.yaml")
    content = fit(folder, chosen, date, max_error=max_error, implausible=implausible)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_hardware(content, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    hardware = load_calibrated(path)
    _show_errors(
        chosen.description, {group: error.model_dump() for group, error in hardware.fit_error.items()}
    )
    for line in warnings(hardware):
        console.out.print(f"warning: {line}", markup=False)
    console.out.print(
        f"\n{path}: {hardware.kv_capacity:,} KV tokens, {hardware.kv_capacity_origin}", markup=False
    )
    if plot is not None:
        draw(hardware, plot)
        console.out.print(str(plot), markup=False)
