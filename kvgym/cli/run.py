"""``kvgym run``: one scheduler, once, with a record of every request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder
from kvgym.cli.scenario_options import (
    BatchTimeOption,
    BlockSizeOption,
    CapacityOption,
    EngineOption,
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
    WorkersOption,
    WorkloadOption,
    build_scenario,
)
from kvgym.errors import RunError
from kvgym.experiments.scenario import DEFAULT_SCENARIO


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
    engine: EngineOption = None,
    batch_time: BatchTimeOption = None,
    kv_capacity: CapacityOption = None,
    block_size: BlockSizeOption = None,
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
    iterations.csv. They are also written, up to that moment, where the run ends with an error.
    """
    from kvgym.experiments.records import save_run
    from kvgym.policy import make_policy
    from kvgym.runner import simulate

    chosen = build_scenario(
        scenario, hardware=hardware, engine=engine, batch_time=batch_time,
        kv_capacity=kv_capacity, block_size=block_size, workload=workload,
        trace=requests, trace_format=trace_format, rate_scale=rate_scale, rate=rate, num_requests=num_requests,
        predictions=predictions, too_long=too_long, workers=workers, router=router, horizon=horizon,
    )  # fmt: skip
    source = chosen.make_workload()
    system, made = chosen.make_system(), make_policy(policy)
    folder = make_folder(out or default_folder("run", made.info.name))
    table = chosen.sample(source, seed, system.usable_capacity)
    context: dict[str, Any] = {
        "scenario": chosen, "seed": seed, "command": command_line(), "provenance": source.provenance()
    }  # fmt: skip
    try:
        result = simulate(system, table, made, router=chosen.make_router(), seed=seed, log=log)
    except RunError as error:
        if error.result is not None:
            save_run(error.result, folder, error=str(error), **context)
            if not as_json:
                console.out.print(f"results so far: {folder}", markup=False, soft_wrap=True)
        raise
    summary = save_run(result, folder, **context)
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
