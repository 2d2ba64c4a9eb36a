"""The command line: ``kvgym compare``, ``kvgym run``, ``kvgym list``, ``kvgym render``."""

from __future__ import annotations

import json
import math
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym import __version__, console
from kvgym.errors import ConfigError, KVGymError, UnknownNameError
from kvgym.render_cli import render
from kvgym.scenario import DEFAULT_SCENARIO, Scenario, load_scenario, scenario_names
from kvgym.specs import parse_spec, split_specs

app = typer.Typer(
    name="kvgym",
    help="Compare schedulers of LLM inference under a limited KV cache, on calibrated hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

ScenarioOption = Annotated[
    str, typer.Option("--scenario", "-s", help="Name (see kvgym list scenarios) or YAML file of a scenario.")
]
HardwareOption = Annotated[
    str | None, typer.Option(help="Replace the scenario's hardware: name (kvgym list hardware) or YAML file.")
]
BatchTimeOption = Annotated[
    str | None,
    typer.Option(
        help="Replace the batch-time model: e.g. unit, or affine:constant=0.02,per_context_token=1e-6."
    ),
]
CapacityOption = Annotated[int | None, typer.Option(help="Replace the KV capacity, tokens.")]
WorkloadOption = Annotated[
    str | None, typer.Option(help="Replace the scenario's workload by a preset (kvgym list workloads).")
]
TraceOption = Annotated[
    Path | None, typer.Option(help="Replay a request trace: CSV, JSON, JSONL or Parquet, format detected.")
]
TraceFormatOption = Annotated[str, typer.Option(help="Format of the trace (kvgym list traces).")]
RateScaleOption = Annotated[float, typer.Option(help="Multiply the trace's arrival rate.")]
RateOption = Annotated[float | None, typer.Option(help="Requests per second, instead of the workload's.")]
NumRequestsOption = Annotated[
    int | None, typer.Option("--num-requests", "-n", help="Number of requests (of a trace: the first n).")
]
PredictionsOption = Annotated[
    str | None, typer.Option(help="What schedulers know of output lengths: exact, none, noisy:epsilon=0.5, …")
]
TooLongOption = Annotated[
    str, typer.Option(help="Requests longer than the KV capacity: error, drop or clip (both reported).")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for results (default: results/…).")
]


def _build_scenario(
    scenario: str,
    *,
    hardware: str | None,
    batch_time: str | None,
    kv_capacity: int | None,
    workload: str | None,
    trace: Path | None,
    trace_format: str,
    rate_scale: float,
    rate: float | None,
    num_requests: int | None,
    predictions: str | None,
    too_long: str,
) -> Scenario:
    """Apply the command line's changes to a scenario."""
    base = load_scenario(scenario)
    if too_long not in ("error", "drop", "clip"):
        raise ConfigError(f"--too-long {too_long}: valid are error, drop, clip")
    if workload is not None and trace is not None:
        raise ConfigError("--workload and --trace exclude each other: a trace is the workload")
    changes: dict[str, Any] = {"hardware": hardware, "kv_capacity": kv_capacity}
    if hardware is not None and "kind" in base.batch_time:
        changes["batch_time"] = {}
    updated = base.override(**changes)
    if batch_time is not None:
        kind, options = parse_spec(batch_time, "batch-time model")
        on_hardware = updated.model_copy(update={} if hardware is None else {"kv_capacity": kv_capacity})
        capacity = kv_capacity or on_hardware.make_system().kv_capacity
        updated = updated.override(batch_time={"kind": kind, **options}, kv_capacity=capacity)
        updated = updated.model_copy(update={"hardware": None})
    elif hardware is not None and kv_capacity is None:
        updated = updated.model_copy(update={"kv_capacity": None})
    source: dict[str, Any]
    if trace is not None:
        if not trace.is_file():
            raise ConfigError(f"--trace {trace}: no such file")
        lengths = {"kind": "trace", "path": str(trace), "format": trace_format, "rate_scale": rate_scale}
        source = {"name": trace.name, "lengths": lengths}
    else:
        source = _described(base)
        if workload is not None:
            source = {"preset": workload}
        if trace_format != "auto":
            raise ConfigError("--trace-format goes with a trace file")
        if rate_scale != 1.0:
            raise ConfigError("--rate-scale is for traces; use --rate with other workloads")
    if rate is not None:
        if trace is None:
            source["rate"] = rate
        elif _has_times(trace, trace_format):
            raise ConfigError(
                f"{trace.name} has arrival times: speed it up or slow it down with --rate-scale"
            )
        else:
            source["arrivals"] = {"kind": "poisson", "rate": rate}
    if num_requests is not None:
        source.pop("duration", None)
        source["num_requests"] = num_requests
    if predictions is not None:
        kind, options = parse_spec(predictions, "prediction")
        source["predictions"] = {"kind": kind, **options}
    updated = updated.override(workload=source if source != _described(base) else None, too_long=too_long)
    if updated != base:
        name = trace.stem if trace is not None else f"{base.name}-changed"
        updated = updated.model_copy(update={"name": name, "summary": _describe(updated)})
    return updated


def _has_times(trace: Path, trace_format: str) -> bool:
    from kvgym.workloads import load_trace

    return load_trace(trace, trace_format).has_times


def _described(scenario: Scenario) -> dict[str, Any]:
    """Return the workload of a scenario as a mapping."""
    return {"preset": scenario.workload} if isinstance(scenario.workload, str) else dict(scenario.workload)


def _describe(scenario: Scenario) -> str:
    """Return the summary of a scenario that the command line has changed."""
    system, workload = scenario.make_system(), scenario.make_workload()
    where = scenario.hardware or scenario.batch_time.get("kind", "?")
    rate = f", {workload.mean_rate:.3g} requests/s" if math.isfinite(workload.mean_rate) else ""
    size = workload.spec.num_requests or (len(workload.trace) if workload.trace is not None else None)
    count = f", {size:,} requests" if isinstance(size, int) else ""
    return f"{where} (M = {system.kv_capacity:,}), {workload.spec.name}{rate}{count}"


def _default_folder(kind: str, name: str) -> Path:
    """Return a new folder under ``results/``."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    plain = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
    folder = Path("results") / f"{kind}-{plain}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{kind}-{plain}-{stamp}-{number}")
    return folder


def _make_folder(folder: Path) -> Path:
    """Make sure before a long run that results can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"results cannot be written to {folder}: {error.strerror}; choose another with --out"
        ) from None
    return folder


def _command() -> str:
    return shlex.join(["kvgym", *sys.argv[1:]])


@app.command()
def compare(
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policies", "-p", help="Comma-separated, e.g. mc_sf,alpha_beta:alpha=0.2,beta=0.1."),
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

    chosen = _build_scenario(
        scenario, hardware=hardware, batch_time=batch_time, kv_capacity=kv_capacity, workload=workload,
        trace=trace, trace_format=trace_format, rate_scale=rate_scale, rate=rate, num_requests=num_requests,
        predictions=predictions, too_long=too_long,
    )  # fmt: skip
    columns = tuple(split_specs(metrics)) if metrics else console.DEFAULT_COLUMNS
    for name in columns:
        try:
            metric_info(name)
        except KeyError:
            raise UnknownNameError("metric", name, console.valid_metrics().split(", ")) from None
    specs = split_specs(",".join(policies)) if policies else list(chosen.policies)
    folder = _make_folder(out or _default_folder("compare", chosen.name))
    count = seeds if seeds is not None else (1 if trace is not None else chosen.seeds)
    numbers = range(first_seed, first_seed + count)
    with console.progress_bar(len(specs) * count, progress) as bar:

        def advance(text: str) -> None:
            if bar is not None:
                bar.update(bar.task_ids[0], description=text, advance=0 if not started else 1)
            started.append(text)

        started: list[str] = []
        comparison = run_comparison(chosen, specs, seeds=numbers, keep_examples=report, progress=advance)
    console.out.print(console.comparison_table(comparison, columns))
    for note in comparison.notes:
        console.out.print(f"note: {note}", markup=False)
    for policy, message in comparison.errors().items():
        console.out.print(f"{policy}: {message}", style="red", markup=False)
    total = sum(comparison.num_requests) * len(comparison.policies)
    finished = sum(int(r.metrics["finished"]) for r in comparison.runs if not r.error)
    once = all(r.completed_once for r in comparison.runs)
    console.out.print(
        f"{finished:,} of {total:,} requests completed"
        + (", each exactly once." if once else "; see the notes for the others.")
    )
    comparison.save(folder, command=_command())
    if report:
        _report(comparison, folder)
    console.out.print(f"results: {folder}", markup=False, soft_wrap=True)


def _report(comparison: Any, folder: Path) -> None:
    """Write the HTML report, or say what it would take."""
    from kvgym.report import write_report

    try:
        path = write_report(comparison, folder / "report.html", command=_command())
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

    chosen = _build_scenario(
        scenario, hardware=hardware, batch_time=batch_time, kv_capacity=kv_capacity, workload=workload,
        trace=requests, trace_format=trace_format, rate_scale=rate_scale, rate=rate, num_requests=num_requests,
        predictions=predictions, too_long=too_long,
    )  # fmt: skip
    source = chosen.make_workload()
    system, made = chosen.make_system(), make_policy(policy)
    folder = _make_folder(out or _default_folder("run", made.info.name))
    table = chosen.sample(source, seed, system.kv_capacity)
    result = simulate(system, table, made, seed=seed, log=log)
    summary = save_run(
        result, folder, scenario=chosen, seed=seed, command=_command(), provenance=source.provenance()
    )
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    console.out.print(f"{result.policy!r} on {chosen.name}: {chosen.summary}", markup=False)
    console.out.print(
        console.metrics_table({k: float("nan") if v is None else v for k, v in summary["metrics"].items()})
    )
    for note in result.table.notes:
        console.out.print(f"note: {note}", markup=False)
    console.out.print(f"results: {folder}", markup=False, soft_wrap=True)


LISTS = ("policies", "scenarios", "hardware", "workloads", "environments", "traces", "metrics")


@app.command("list")
def list_(
    what: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(LISTS)}; nothing lists the first five.")
    ] = None,
) -> None:
    """List policies, scenarios, hardware, workloads, trace formats or metrics, a line each."""
    if what is not None and what not in LISTS:
        raise UnknownNameError("list", what, LISTS)
    for name in LISTS[:5] if what is None else (what,):
        console.out.print(_listing(name))
        console.out.print()


def _listing(what: str) -> Any:
    """Return the table of one list."""
    if what == "policies":
        from kvgym.policy import POLICIES, describe_arguments

        rows: dict[str, tuple[str, ...]] = {}
        for name in POLICIES:
            info = POLICIES[name].info
            can = [
                w
                for w, yes in (
                    ("chunks", info.chunks_prefill),
                    ("pauses", info.pauses),
                    ("evicts", info.evicts),
                )
                if yes
            ]
            source = f"{info.paper.partition(',')[0]}, {info.algorithm}" if info.paper else "practice"
            needs = ", ".join(sorted(info.needs)) or "–"
            rows[name] = (
                info.summary,
                describe_arguments(POLICIES[name]),
                needs,
                ", ".join(can) or "–",
                source,
            )
        return console.mapping_table(
            "Policies", rows, ("name", "what it does", "hyperparameters", "needs to know", "can", "source")
        )
    if what == "metrics":
        from kvgym.metrics import metric_info, metric_names

        figures = {n: (metric_info(n).unit, metric_info(n).summary) for n in metric_names()}
        return console.mapping_table("Metrics", figures, ("name", "unit", "what it is"))
    lines: dict[str, str]
    if what == "scenarios":
        lines = scenario_names()
    elif what == "hardware":
        from kvgym.batch_time.hardware import hardware_names

        lines = hardware_names()
    elif what == "environments":
        from kvgym.envs import IDS, SUMMARIES

        lines = {name: SUMMARIES[kind] for name, kind in IDS.items()}
    elif what == "workloads":
        from kvgym.workloads import describe_presets

        lines = describe_presets()
    else:
        from kvgym.workloads import trace_formats

        lines = trace_formats()
    return console.mapping_table(
        what.capitalize(), {k: (v,) for k, v in lines.items()}, ("name", "what it is")
    )


app.command()(render)


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
