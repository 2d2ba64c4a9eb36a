"""The command line: compare, run, list, render, train, evaluate, tune."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym import __version__, console
from kvgym.errors import ConfigError, KVGymError, UnknownNameError
from kvgym.list_cli import list_
from kvgym.render_cli import render
from kvgym.run_folder import OutOption, command_line, default_folder, make_folder
from kvgym.scenario import DEFAULT_SCENARIO
from kvgym.scenario_cli import (
    BatchTimeOption,
    CapacityOption,
    HardwareOption,
    HorizonOption,
    NumRequestsOption,
    PredictionsOption,
    RateOption,
    RateScaleOption,
    RouterOption,
    ScenarioOption,
    TooLongOption,
    TraceFormatOption,
    TraceOption,
    WorkersOption,
    WorkloadOption,
    build_scenario,
)
from kvgym.specs import split_specs
from kvgym.train_cli import evaluate, train
from kvgym.tune_cli import tune

app = typer.Typer(
    name="kvgym",
    help="Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.command()
def compare(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policies",
            "-p",
            help="Comma-separated, e.g. mc_sf,alpha_beta:alpha=0.2,beta=0.1, or agents.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; policies share workloads.")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    trace: TraceOption = None,
    trace_format: TraceFormatOption = "auto",
    rate_scale: RateScaleOption = 1.0,
    workload: WorkloadOption = None,
    rate: RateOption = None,
    num_requests: NumRequestsOption = None,
    predictions: PredictionsOption = None,
    too_long: TooLongOption = "error",
    hardware: HardwareOption = None,
    batch_time: BatchTimeOption = None,
    kv_capacity: CapacityOption = None,
    workers: WorkersOption = None,
    router: RouterOption = None,
    horizon: HorizonOption = None,
    metrics: Annotated[str | None, typer.Option(help="Comma-separated columns (kvgym list metrics).")] = None,
    out: OutOption = None,
    report: Annotated[bool, typer.Option(help="Write report.html (needs kvgym[report]).")] = True,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Run schedulers on identical workloads and compare them.

    Shows a table with 95 % bootstrap intervals and writes runs.csv, runs.parquet, summary.json, config.json
    and report.html.
    """
    from kvgym.evaluation import compare as run_comparison
    from kvgym.metrics import metric_info

    chosen = build_scenario(
        scenario, hardware=hardware, batch_time=batch_time, kv_capacity=kv_capacity, workload=workload,
        trace=trace, trace_format=trace_format, rate_scale=rate_scale, rate=rate, num_requests=num_requests,
        predictions=predictions, too_long=too_long, workers=workers, router=router, horizon=horizon,
    )  # fmt: skip
    columns = tuple(split_specs(metrics)) if metrics else console.DEFAULT_COLUMNS
    for name in columns:
        try:
            metric_info(name)
        except KeyError:
            raise UnknownNameError("metric", name, console.valid_metrics().split(", ")) from None
    specs = split_specs(",".join(policies)) if policies else list(chosen.policies)
    folder = make_folder(out or default_folder("compare", chosen.name))
    count = seeds if seeds is not None else (1 if trace is not None else chosen.seeds)
    numbers = range(first_seed, first_seed + count)
    with console.run_progress(len(specs) * count, progress) as advance:
        comparison = run_comparison(chosen, specs, seeds=numbers, keep_examples=report, progress=advance)
    console.out.print(console.comparison_table(comparison, columns))
    console.print_remarks(comparison)
    total = sum(comparison.num_requests) * len(comparison.policies)
    finished = sum(int(r.metrics["finished"]) for r in comparison.runs if not r.error)
    once = all(r.completed_once for r in comparison.runs)
    console.out.print(
        f"{finished:,} of {total:,} requests completed"
        + (", each exactly once." if once else "; see the notes for the others.")
    )
    comparison.save(folder, command=command_line())
    if report:
        _report(comparison, folder)
    console.out.print(f"results: {folder}", markup=False, soft_wrap=True)
    if all(run.error for run in comparison.runs):
        raise typer.Exit(1)  # nobody finished: scripts should notice


def _report(comparison: Any, folder: Path) -> None:
    """Write the HTML report, or say what it would take."""
    from kvgym.report import write_report

    try:
        path = write_report(comparison, folder / "report.html", command=command_line())
    except ConfigError as error:
        console.err.print(f"no report: {error}", markup=False)
        return
    console.out.print(f"report:  {path}", markup=False, soft_wrap=True)


@app.command()
def run(
    policy: Annotated[str, typer.Argument(help="Policy, e.g. mc_sf or alpha_greedy:alpha=0.25.")],
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    requests: Annotated[
        Path | None, typer.Option("--requests", help="File of requests, own format or any trace format.")
    ] = None,
    trace_format: TraceFormatOption = "auto",
    rate_scale: RateScaleOption = 1.0,
    workload: WorkloadOption = None,
    rate: RateOption = None,
    num_requests: NumRequestsOption = None,
    predictions: PredictionsOption = None,
    too_long: TooLongOption = "error",
    hardware: HardwareOption = None,
    batch_time: BatchTimeOption = None,
    kv_capacity: CapacityOption = None,
    workers: WorkersOption = None,
    router: RouterOption = None,
    horizon: HorizonOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and policy.")] = 0,
    log: Annotated[bool, typer.Option("--log", help="Also write iterations.csv, a row per batch.")] = False,
    out: OutOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON instead of a table.")
    ] = False,
) -> None:
    """Run one scheduler once and write what happened to every request.

    Writes requests.csv (arrival, start, first token, finish, evictions, …), summary.json and, with --log,
    iterations.csv.
    """
    from kvgym.policy import make_policy
    from kvgym.records import save_run
    from kvgym.runner import simulate

    chosen = build_scenario(
        scenario, hardware=hardware, batch_time=batch_time, kv_capacity=kv_capacity, workload=workload,
        trace=requests, trace_format=trace_format, rate_scale=rate_scale, rate=rate, num_requests=num_requests,
        predictions=predictions, too_long=too_long, workers=workers, router=router, horizon=horizon,
    )  # fmt: skip
    source = chosen.make_workload()
    system, made = chosen.make_system(), make_policy(policy)
    folder = make_folder(out or default_folder("run", made.info.name))
    table = chosen.sample(source, seed, system.kv_capacity)
    result = simulate(system, table, made, router=chosen.make_router(), seed=seed, log=log)
    summary = save_run(
        result, folder, scenario=chosen, seed=seed, command=command_line(), provenance=source.provenance()
    )
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    console.out.print(f"{result.policy!r} on {chosen.name}: {chosen.summary}", markup=False)
    console.out.print(
        console.metrics_table({k: float("nan") if v is None else v for k, v in summary["metrics"].items()})
    )
    if "workers" in summary:
        console.out.print()
        console.out.print(console.workers_table(summary["workers"]))
    for note in result.table.notes:
        console.out.print(f"note: {note}", markup=False)
    console.out.print(f"results: {folder}", markup=False, soft_wrap=True)


app.command("list")(list_)
app.command()(render)
app.command()(train)
app.command()(evaluate)
app.command()(tune)


def _version(value: bool) -> None:
    if value:
        print(f"kvgym {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware."""


def main() -> None:
    """Run the command line; errors a user can cause end in one line on standard error and exit code 2."""
    try:
        app()
        return
    except KVGymError as error:
        message = str(error)
    except MemoryError:
        message = "not enough memory for so many requests; try fewer with --num-requests"
    console.err.print(f"error: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(2)
