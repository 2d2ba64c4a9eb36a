"""``kvgym sweep``: compare schedulers at every point of a grid."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.fields import ALL, FIELDS
from kvgym.cli.options.scenario import scenario_options
from kvgym.cli.options.shared import (
    JobsOption,
    ProgressOption,
    RayOption,
    ReportOption,
    metrics_option,
    names,
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
    reporting,
    saying_if_stopped,
)
from kvgym.cli.tables import ResultTable
from kvgym.errors import ConfigError
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions

if TYPE_CHECKING:
    from kvgym.studies.sweeping.sweep import SweepResult

_SHOWN = 40


@scenario_options(*ALL)
def sweep(
    options: ScenarioOptions,
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            help="name=values, as in rate=5:50:5, kv_capacity=8000,16492, predictions.epsilon=0.2,0.5 or "
            "sarathi.token_budget=128:1024:*2; before them the name or file of a plan (kvgym list sweeps).",
            show_default=False,
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            "-s",
            help="Name (see kvgym list scenarios) or YAML file of a scenario; default: the plan's, else "
            f"{DEFAULT_SCENARIO}.",
            autocompletion=names("scenarios"),
        ),
    ] = None,
    policies: Annotated[
        list[str] | None, policies_option("Comma-separated; default: those of the scenario.")
    ] = None,
    combine: Annotated[
        str | None, typer.Option(help="grid = every combination of values, zip = the n-th values together.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds (default: 5; of a trace 1).")
    ] = None,
    first_seed: Annotated[int | None, typer.Option(min=0, help="The first seed.")] = None,
    metrics: Annotated[
        list[str] | None, metrics_option("Comma-separated, the main one first (kvgym list metrics).")
    ] = None,
    out: OutOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume the sweep in the folder of --out; without fields, with its own plan."
        ),
    ] = False,
    jobs: JobsOption = None,
    ray: RayOption = None,
    report: ReportOption = True,
    progress: ProgressOption = True,
) -> None:
    """Run schedulers at every point of a grid over fields of the scenario and hyperparameters of policies.

    Options of the scenario hold at every point; name=values varies them, under the names of the options.

    Every run is saved when it finishes: after Ctrl-C, --resume continues with the remaining runs. Shows a table and
    writes runs.csv, summary.json, config.json and report.html; with the extra parquet also runs.parquet.
    """
    from kvgym.experiments.describing import engine_line
    from kvgym.experiments.journal import has_runs
    from kvgym.experiments.labels import shortener
    from kvgym.studies.sweeping.plan import changes_of, make_plan, read_fields
    from kvgym.studies.sweeping.sweep import plan_of
    from kvgym.studies.sweeping.sweep import sweep as run_sweep

    if resume and out is None:
        raise ConfigError("--resume needs the folder of a sweep: --out FOLDER")
    named, given = read_fields(fields or [])
    changes: dict[str, Any] = {
        "combine": combine, "seeds": seeds, "first_seed": first_seed, "scenario": scenario,
        "policies": split_names(policies) or None, "metrics": metrics and split_names(metrics),
    }  # fmt: skip
    changes = {name: value for name, value in changes.items() if value is not None}
    if resume and named is None and not given:
        base = plan_of(out or Path())
    elif named is None and not given:
        raise ConfigError("nothing to sweep: give fields, as in rate=5:50:5, or a plan (kvgym list sweeps)")
    else:
        base = named or make_plan({})
    content = base.model_dump()
    fixed = _fixed(options, {*given, *(name for point in base.points for name in point)})
    plan = make_plan({**content, **changes, "fields": {**content["fields"], **given, **fixed}})
    folder = make_folder(out or default_folder("sweep", plan.name))
    had_runs = has_runs(folder)
    changed = changes_of(plan_of(folder), plan) if had_runs else ""
    with saying_if_stopped(
        lambda: (
            f"interrupted; completed runs are kept; resume with: {_resume_command(folder)}"
            if has_runs(folder)
            else ""
        )
    ):
        with progress_bar(1, progress) as bar:

            def advance(text: str, done: int, total: int) -> None:
                if resume and not text:
                    _note_known_runs(folder, had_runs, changed, done, total)
                if bar is not None:
                    bar.update(text or plan.name, done, total)

            result = run_sweep(plan, folder, resume=resume, jobs=jobs, ray=ray, progress=advance)
        if line := engine_line(*result.scenarios):
            console.print_line(line)
        console.print_table(sweep_table(result, files=f"{folder / 'summary.json'}"))
        console.print_notes(result.notes(), result.policies)
        for error in map(shortener(result.policies), result.errors()[:_SHOWN]):
            console.out.print(error, style="red", markup=False)
        with replacing(folder, options.trace):
            result.save(folder, command=command_line())
    if report:
        again = f"{_resume_command(folder)} (nothing is run again)"
        with reporting(folder, "report.html", again), console.optional("report"):
            _write_report(result, folder)
    known = result.num_distinct - result.num_new
    console.out.print(
        f"{result.num_distinct:,} runs" + (f", {known:,} of them known already" if known else "")
    )
    console.print_line(f"results: {folder}")
    if all(played.record.error for played in result.runs.values()):
        raise typer.Exit(1)  # no run finished: scripts should notice


def _resume_command(folder: Path) -> str:
    """Return the command that resumes a sweep."""
    return f"kvgym sweep --resume --out {shlex.quote(str(folder))}"


def _note_known_runs(folder: Path, had_runs: bool, changed: str, known: int, total: int) -> None:
    """Print how many runs of a resumed sweep are known, if not all that the folder has are used."""
    if not had_runs:
        text = f"nothing to resume in {folder}: all {total:,} runs start now"
    elif changed:
        text = f"the plan differs from the one in {folder} ({changed}): {known:,} of its {total:,} runs are known"
    elif not known:
        text = (
            f"no run in {folder} matches this version of kvgym and these files: all {total:,} are run again"
        )
    else:
        return
    console.print_to_stderr(f"note: {text}")


def _fixed(options: ScenarioOptions, swept: Collection[str]) -> dict[str, tuple[Any]]:
    """Return the options that are given as fields with one value.

    Raises:
        ConfigError: the sweep sets a field too.
    """
    found = {}
    for name, value in options.given().items():
        if name in swept:
            raise ConfigError(
                f"{name} is swept, and set by {(*FIELDS[name].flags(name), '--set')[0]}; remove one of the two"
            )
        found[name] = (str(value) if isinstance(value, Path) else value,)
    return found


def sweep_table(result: SweepResult, *, files: str = "") -> ResultTable:
    """Return the table of the main metric: a row per point, a column per policy, means over seeds.

    Marks that a policy has at all points are in its heading, others behind the numbers.
    """
    from kvgym.experiments.labels import short_labels
    from kvgym.policies.policy import clairvoyant_labels

    metric, count = result.plan.metrics[0], len(result.seeds)
    left = len(result.points) - _SHOWN
    caption = f"means over {count} seeds" if count > 1 else "one seed"
    caption += f"; {left:,} more points in runs.csv" if left > 0 else ""
    table = ResultTable(console.heading(metric), caption, files=files)
    known, short = clairvoyant_labels(result.policies), short_labels(result.policies)
    for name in result.fields:
        table.column(name, rank=0)
    columns = []
    for policy in result.policies:
        signs = [[mark.sign for mark in result.marks(i, policy)] for i in range(len(result.points))]
        always = [sign for sign in signs[0] if all(sign in own for own in signs)]
        table.column(f"{short[policy]}{'*' * (policy in known)}{''.join(always)}", rank=1)
        others = ["".join(sign for sign in own if sign not in always) for own in signs]
        widest = max(map(len, others))
        means = [float(result.values(i, policy, metric).mean()) for i in range(len(result.points))]
        columns.append(
            [f"{console.number(mean)}{own:<{widest}}" for mean, own in zip(means, others, strict=True)]
        )
    for point, *cells in [*zip(result.points, *columns, strict=True)][:_SHOWN]:
        table.row(*map(_text, point.values()), *cells)
    return table


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _write_report(result: SweepResult, folder: Path) -> None:
    from kvgym.studies.reports import write_sweep_report

    path = write_sweep_report(
        result.to_frame(), result.fields, folder / "report.html", metrics=result.plan.metrics,
        title="" if result.plan.name == "sweep" else f"Sweep: {result.plan.name}",
        lead=result.plan.summary, notes=result.notes(), command=command_line(),
        configuration=result.plan.model_dump(mode="json"),
    )  # fmt: skip
    console.print_line(f"report:  {path}")
