"""``kvgym run``: run one scheduler once, with a record of every request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.fields import ALL
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import ProgressOption, one_policy, policies_option
from kvgym.cli.progress import progress_bar
from kvgym.cli.result_folder import (
    OutOption,
    command_line,
    default_folder,
    make_folder,
    print_note,
    replacing,
)
from kvgym.errors import ConfigError, RunError
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.version import __version__

if TYPE_CHECKING:
    from kvgym.experiments.scenario import Scenario
    from kvgym.policies.policy import Policy
    from kvgym.policies.runner import SimulationResult
    from kvgym.simulator.system import System
    from kvgym.workloads.table import RequestTable

OUTPUTS = ("table", "json", "vllm-bench")


@scenario_options(*ALL)
def run(
    options: ScenarioOptions,
    policies: Annotated[
        list[str] | None,
        policies_option("The policy to run, e.g. mc_sf or alpha_greedy:alpha=0.25."),
    ] = None,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and policy.")] = 0,
    log: Annotated[bool, typer.Option("--log", help="Also write iterations.csv, one row per batch.")] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Draw requests in pieces and keep only sums and histograms, for 10^8 requests; no requests.csv.",
        ),
    ] = False,
    out: OutOption = None,
    records: Annotated[
        str, typer.Option(help="Format of the tables: csv, or parquet (needs kvgym\\[parquet]).")
    ] = "csv",
    trace_out: Annotated[
        Path | None,
        typer.Option(help="Also write a trace for ui.perfetto.dev: a file ending in .json or .json.gz."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--format", help="Output to print: table, json (the summary) or vllm-bench (its field names)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    progress: ProgressOption = True,
) -> None:
    """Run one scheduler once and write a record of every request.

    Writes requests.csv (arrival, start, first token, finish, evictions, …), summary.json and, with --log,
    iterations.csv. If the run ends with an error, they are written up to that moment.
    With --stream the memory does not grow with the number of requests; quantiles are then right to 0.1 %.
    With --format vllm-bench also vllm-bench.json: the fields that vllm bench serve saves, with the same names.
    """
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.comparison import label_of
    from kvgym.experiments.describing import titled
    from kvgym.experiments.marks import mark_notes, measure_marks
    from kvgym.experiments.notes import rule_notes
    from kvgym.experiments.resolving import requests_for, resolve_policy
    from kvgym.experiments.runs import Played, RunRecord
    from kvgym.policies.policy import REFERENCE_ONLY, make_policy
    from kvgym.report.export import vllm_bench
    from kvgym.report.export.records import check_format
    from kvgym.report.export.run_folder import save_run
    from kvgym.report.export.trace_file import check_ending

    made = make_policy(one_policy(policies, "run"))
    shown = _output_format(output, as_json)
    check_format(records)
    if trace_out is not None:
        check_ending(trace_out)
    chosen = build_scenario(scenario, options).of_seed(seed)
    if stream:
        if log or trace_out is not None or shown == "vllm-bench":
            raise ConfigError(
                "--stream keeps no records; leave out --log, --trace-out and --format vllm-bench"
            )
        _stream(chosen, made, seed, shown, out)
        return
    source = chosen.make_workload()
    system = chosen.make_system()
    folder = make_folder(out or default_folder("run", made.info.name))
    if shown == "vllm-bench":
        vllm_bench.check_window(chosen)
    context: dict[str, Any] = {
        "scenario": chosen, "seed": seed, "command": command_line(), "provenance": source.provenance(),
        "records": records,
    }  # fmt: skip
    try:
        with progress_bar(1, progress):
            table = chosen.sample(source, seed, system.usable_capacity)
            table = requests_for(made, table, source)
            made = resolve_policy(made, system, table)
            result = _simulate(
                system,
                table,
                made,
                trace_out,
                router=chosen.make_router(),
                autoscaler=chosen.autoscaler,
                seed=seed,
                log=log,
                window=chosen.window,
            )
    except (RunError, KeyboardInterrupt) as error:
        so_far = getattr(error, "result", None)
        if so_far is not None:
            with replacing(folder, options.trace):
                save_run(so_far, folder, error=str(error) or "stopped by the user", **context)
            if shown == "table":
                console.print_line(f"results so far: {folder}")
        raise
    with replacing(folder, options.trace):
        summary = save_run(result, folder, **context)
    if shown == "json":
        print(json.dumps(summary, indent=2))
        return
    if shown == "vllm-bench":
        setup = vllm_bench.Setup.of(chosen, source, table, label_of(made), seed)
        figures = vllm_bench.summary(summary_metrics(summary), setup)
        vllm_bench.write({**figures, **vllm_bench.details(result)}, folder / "vllm-bench.json")
        print(json.dumps(figures, indent=2))
        return
    console.out.print(titled(f"{result.policy!r} on {chosen.heading}", chosen), markup=False)
    if made.info.clairvoyant:
        console.out.print(f"note: {made.info.name} is {REFERENCE_ONLY}", markup=False)
    console.print_table(console.metrics_table(summary_metrics(summary)))
    if "workers" in summary:
        console.out.print()
        console.print_table(console.workers_table(summary["workers"], files=f"{folder / 'summary.json'}"))
    label = label_of(made)
    record = RunRecord(label, seed, summary_metrics(summary), "", result.completed, 0.0)
    played = Played(record, len(result.table), measured=measure_marks(result))
    for note in (
        *mark_notes({label: [[played]]}, {label: made}),
        *chosen.notes(result.table),
        *rule_notes([made.info], chosen),
    ):
        console.out.print(f"note: {note}", markup=False)
    if trace_out is not None:
        console.print_line(f"trace:   {trace_out}")
    console.print_line(f"results: {folder}")


def _stream(scenario: Scenario, policy: Policy, seed: int, shown: str, out: Path | None) -> None:
    """Run requests in pieces; write and print the summary."""
    from kvgym.experiments.describing import titled
    from kvgym.experiments.streaming import stream_scenario
    from kvgym.report.export.run_folder import save_streamed

    outcome = stream_scenario(scenario, policy, seed)
    folder = make_folder(out or default_folder("run", policy.info.name))
    with replacing(folder, None):
        provenance = scenario.make_workload().provenance()
        summary = save_streamed(
            outcome, folder, scenario=scenario, seed=seed, command=command_line(), provenance=provenance
        )
    if shown == "json":
        print(json.dumps(summary, indent=2))
        return
    console.out.print(titled(f"{outcome.policy!r} on {scenario.heading}", scenario), markup=False)
    console.print_table(console.metrics_table(summary_metrics(summary)))
    console.print_line(f"results: {folder}")


def summary_metrics(summary: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a summary; NaN for those without a value."""
    return {name: float("nan") if x is None else x for name, x in summary["metrics"].items()}


def _output_format(output: str | None, as_json: bool) -> str:
    """Return the output format.

    Raises:
        ConfigError: the format is unknown, or contradicts ``--json``.
    """
    if output is not None and output not in OUTPUTS:
        raise ConfigError(f"--format {output}: valid are {', '.join(OUTPUTS)}")
    if as_json and output not in (None, "json"):
        raise ConfigError(f"--json is short for --format json; it excludes --format {output}")
    return output or ("json" if as_json else "table")


def _simulate(
    system: System, table: RequestTable, policy: Policy, trace_out: Path | None, **options: Any
) -> SimulationResult:
    """Run a policy, and write a trace if one is requested; the trace is complete even if the run fails."""
    from kvgym.policies.runner import simulate
    from kvgym.report.export.chrome_trace import ChromeTrace
    from kvgym.report.export.trace_file import TraceFile

    if trace_out is None:
        return simulate(system, table, policy, **options)
    about = {"kvgym": __version__, "command": command_line(), "policy": repr(policy), "seed": options["seed"]}
    replaced = trace_out.exists()
    try:
        with TraceFile(trace_out, about) as file:
            return simulate(system, table, policy, observer=ChromeTrace(file, system, table), **options)
    finally:
        if replaced:
            print_note(f"replaced {trace_out}")
