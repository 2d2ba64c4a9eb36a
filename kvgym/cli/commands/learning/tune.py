"""``kvgym tune``: search hyperparameters of schedulers on training seeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kvgym.cli import console
from kvgym.cli.fields import ALL
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import (
    JobsOption,
    ProgressOption,
    RayOption,
    metrics_option,
    policies_option,
    split_names,
)
from kvgym.cli.progress import progress_bar
from kvgym.cli.result_folder import (
    OutOption,
    command_line,
    default_folder,
    make_folder,
    replacing,
)
from kvgym.cli.tables import ResultTable
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.files import plain_name

if TYPE_CHECKING:
    from kvgym.studies.tuning.result import Trial, TuningResult

DEFAULT_METRIC = "e2e_latency_mean"
_SHOWN = 10


@scenario_options(*ALL)
def tune(
    options: ScenarioOptions,
    policies: Annotated[
        list[str] | None,
        policies_option("Comma-separated; hyperparameters given here stay fixed, as in sarathi:order=spf."),
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    metrics: Annotated[
        list[str] | None,
        metrics_option(
            "Comma-separated (kvgym list metrics): the first is optimised, the others are shown (default: "
            f"{DEFAULT_METRIC})."
        ),
    ] = None,
    subject_to: Annotated[
        list[str] | None,
        typer.Option(
            "--subject-to",
            help="Limits on means over seeds that a trial must meet: e2e_latency_mean<10,ttft_p99<1 (seconds; any of "
            "kvgym list metrics). May be repeated.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            "-g",
            help="Values to search, instead of the policy's own grid: overrun=ignore/extend, or "
            "protection=0:0.3:0.05. May be repeated.",
        ),
    ] = None,
    search: Annotated[str, typer.Option(help="grid, or optuna (TPE; needs kvgym\\[tune]).")] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of configurations; a larger grid is sampled (default: all; optuna: 50).",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of training seeds (default: 5; of a trace 1).")
    ] = None,
    first_seed: Annotated[
        int, typer.Option(min=0, help="The first training seed; kvgym compare starts at 0.")
    ] = 1000,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    progress: ProgressOption = True,
) -> None:
    """Search hyperparameters of schedulers on training seeds.

    Shows the best configurations and writes trials.csv, best.json and config.json, with several policies into one
    folder each. The policy as given is always tried, so the best result is never worse on these seeds.
    """
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.describing import titled
    from kvgym.studies.capacity.targets import parse_targets
    from kvgym.studies.tuning.search_space import parse_space, plan_search
    from kvgym.studies.tuning.tune import tune as run_search

    chosen = build_scenario(scenario, options)
    specs = split_names(policies)
    space = parse_space(grid) if grid else None
    targets = parse_targets(subject_to or ())
    metric, *also = split_names(metrics) or [DEFAULT_METRIC]
    given = [plan_search(spec, space).spec({}) for spec in specs]  # raises errors before the first search
    repeated = sorted({spec for spec in given if given.count(spec) > 1})
    if repeated or not given:
        raise ConfigError(
            f"policy {repeated[0]} is listed twice"
            if repeated
            else "kvgym tune needs policies: --policies NAME, as in -p sarathi (kvgym list policies)"
        )
    count = seeds if seeds is not None else (1 if options.trace is not None or chosen.replays else 5)
    numbers = range(first_seed, first_seed + count)
    folder = make_folder(out or default_folder("tune", given[0] if len(given) == 1 else chosen.name))
    failed = False

    def search_one(spec: str, place: Path) -> TuningResult:
        with progress_bar(1, progress) as bar:

            def advance(text: str, done: int, total: int) -> None:
                if bar is not None:
                    bar.update(text, done, total)

            return run_search(
                spec, chosen, space=space, metric=metric, also=also, subject_to=targets, seeds=numbers, search=search,
                trials=trials, folder=place, jobs=jobs, ray=ray, progress=advance,
            )  # fmt: skip

    for spec in given:
        place = folder if len(given) == 1 else make_folder(folder / plain_name(spec))
        try:
            result = search_one(spec, place)
        except KVGymError as error:
            if len(given) == 1:
                raise
            failed = True
            console.out.print(f"{spec}: {error}", style="red", markup=False)
            continue
        with replacing(place, options.trace, kept=True):
            result.save(place, command=command_line())
        title = titled(f"{result.policy} on {chosen.heading}", chosen)
        console.print_line(title, style="italic")
        console.print_table(tuning_table(result, files=f"{place / 'trials.csv'}"))
        console.print_line(_caption(result), style="dim italic")
        for note in result.notes:
            console.out.print(f"note: {note}", markup=False)
        console.print_line(f"best: {result.best.spec}")
        console.print_line(f"results: {place}")
    if failed:
        raise typer.Exit(1)


def tuning_table(result: TuningResult, *, files: str = "") -> ResultTable:
    """Return the table of the best trials and the default: mean, interval, ratio to the default."""
    many = len(result.seeds) > 1
    table = ResultTable(files=files)
    table.column("configuration", words=True)
    table.column(console.heading(result.metric), rank=1)
    if many:
        table.column("95 % interval", rank=3, style="dim")
    table.column("×", rank=2)
    others = list(result.best.others)
    for name in others:
        table.column(console.heading(name), rank=2)
    shown = result.ranking()[:_SHOWN]
    if result.default not in shown:
        shown.append(result.default)
    for trial in shown:
        label = trial.spec.replace(",", ", ") + " (default)" * (trial is result.default)
        if trial.error:
            table.row(label, Text("failed", "red"), *([""] * (1 + many)), *_others(trial, others))
            continue
        estimate = result.estimate(trial)
        table.row(
            label,
            console.number(estimate.value),
            *([console.interval(estimate)] if many else []),
            console.number(result.ratio(trial).value),
            *_others(trial, others),
        )
    return table


def _others(trial: Trial, names: list[str]) -> list[str]:
    return [console.number(trial.others[name]) if name in trial.others else "" for name in names]


def _caption(result: TuningResult) -> str:
    """Return the caption of the table."""
    first, last = result.seeds[0], result.seeds[-1]
    seeds = f"seed {first}" if first == last else f"seeds {first}–{last}"
    return (
        f"{len(result.ranking()):,} of {len(result.trials):,} trials qualify; "
        + (f"subject to {', '.join(result.subject_to)}; " if result.subject_to else "")
        + f"training {seeds}; "
        "× = ratio to the default" + ("" if first == last else ", paired by seed")
    )
