"""``kvgym bound``: what no scheduler beats on given requests, and what a clairvoyant one reaches."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.completion import names
from kvgym.cli.scenario_options import (
    BatchTimeOption,
    BlockSizeOption,
    CapacityOption,
    ColumnsOption,
    EngineOption,
    HardwareOption,
    NumRequestsOption,
    PredictionsOption,
    RateOption,
    RateScaleOption,
    RouterOption,
    TimeUnitOption,
    TooLongOption,
    TraceFormatOption,
    WorkersOption,
    WorkloadOption,
    roofline_options,
)
from kvgym.errors import ConfigError
from kvgym.experiments.defaults import DEFAULT_SCENARIO
from kvgym.specs import split_specs


@roofline_options
def bound(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Name (see kvgym list scenarios) or YAML file of a scenario.",
            autocompletion=names("scenarios"),
        ),
    ] = DEFAULT_SCENARIO,
    requests: Annotated[
        Path | None, typer.Option(help="Requests to serve instead: a trace, or requests.csv of a run.")
    ] = None,
    trace_format: TraceFormatOption = "auto",
    columns: ColumnsOption = None,
    time_unit: TimeUnitOption = None,
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
    metrics: Annotated[
        str | None,
        typer.Option(help="Comma-separated; default: mean latency, mean TTFT, makespan, throughput."),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            "-p",
            help="Schedulers to run besides the clairvoyant reference.",
            autocompletion=names("policies"),
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="In slotted time: how long to solve an integer program.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and policies.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Find between what ends the best value lies that any scheduler reaches, clairvoyant ones included.

    One end is a proof, the other the best run: of the clairvoyant reference, or of --policies. docs/bounds.md says what
    is assumed and how tight the bounds are.
    """
    from kvgym.experiments.changes import build_scenario
    from kvgym.metrics import metric_info
    from kvgym.runner import simulate
    from kvgym.theory.hindsight.bounds import REFERENCE
    from kvgym.theory.hindsight.bounds import bound as find_bound
    from kvgym.theory.hindsight.calibrated.bounds import METRICS, check_boundable

    chosen = build_scenario(
        scenario, hardware=hardware, engine=engine, batch_time=batch_time, kv_capacity=kv_capacity,
        block_size=block_size, workload=workload, trace=requests, trace_format=trace_format, columns=columns,
        time_unit=time_unit, rate_scale=rate_scale, rate=rate, num_requests=num_requests, predictions=predictions,
        too_long=too_long, workers=workers, router=router, horizon=None,
    ).of_seed(seed)  # fmt: skip
    names = [m for m in METRICS if m != "request_throughput"] if metrics is None else split_specs(metrics)
    if not names:
        raise ConfigError(f"--metrics {metrics!r} names none; there is a bound on: {', '.join(METRICS)}")
    specs = [REFERENCE, *split_specs(policies or "")]
    system = chosen.make_system()
    table = chosen.sample(chosen.make_workload(), seed, system.usable_capacity)
    for name in names:
        check_boundable(table, system, name)
    started = time.perf_counter()
    runs = [simulate(system, table, spec, router=chosen.make_router(), seed=seed) for spec in specs]
    if not all(run.completed for run in runs):
        raise ConfigError("a run did not complete; bounds need all requests served")
    found = {n: find_bound(table, system, n, runs=runs, reference=None, seconds=seconds) for n in names}
    took = time.perf_counter() - started
    if as_json:
        rows = {
            name: {"lower": i.lower, "upper": i.upper, "gap": i.gap, "method": i.method}
            for name, i in found.items()
        }
        print(json.dumps({"scenario": chosen.name, "requests": len(table), "bounds": rows}, indent=2))
        return
    lines = {}
    for name, interval in found.items():
        lower_is_better = metric_info(name).lower_is_better
        reached, end = (
            (interval.upper, interval.lower) if lower_is_better else (interval.lower, interval.upper)
        )
        better = (
            (reached / end if lower_is_better else end / reached) if min(reached, end) > 0 else float("nan")
        )
        sides = ("no less than", "reached") if lower_is_better else ("no more than", "reached")
        lines[console.heading(name)] = (
            f"{sides[0]} {console.number(end)}",
            f"{sides[1]} {console.number(reached)}",
            f"≤ {console.number(better)}",
            f"{100 * interval.gap:.1f} %",
            interval.method,
        )
    headings = ("metric", "bound", "best known", "× optimum", "left at most", "how")
    title = f"{chosen.name}: {chosen.summary}"
    console.out.print(console.mapping_table(title, lines, headings))
    for note in table.notes:
        console.out.print(f"note: {note}", markup=False)
    console.out.print(
        f"{len(table):,} requests, {took:.1f} s; docs/bounds.md has what is assumed", markup=False
    )
