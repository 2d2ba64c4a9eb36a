"""``kvgym bound``: bound the best value that any scheduler could reach on given requests."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.fields import group
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import (
    ProgressOption,
    metrics_option,
    policies_option,
    split_names,
    time_option,
)
from kvgym.cli.progress import run_progress
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.execution.threads import call_in_thread

if TYPE_CHECKING:
    from kvgym.policies.runner import SimulationResult
    from kvgym.theory.hindsight.interval import Interval


@scenario_options(*group("requests", "lengths", "hardware", "cluster"))
def bound(
    options: ScenarioOptions,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    metrics: Annotated[
        list[str] | None,
        metrics_option("Comma-separated; default: mean latency, mean TTFT, makespan, throughput."),
    ] = None,
    policies: Annotated[
        list[str] | None,
        policies_option("Comma-separated; run in addition to the clairvoyant reference."),
    ] = None,
    seconds: Annotated[
        float, time_option("--seconds", "Time limit of the integer program in slotted time", least=0)
    ] = 0.0,
    time_limit: Annotated[
        float | None,
        time_option("--time-limit", "Time limit for finding bounds; runs are always completed", least=0),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload and policies.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    progress: ProgressOption = True,
) -> None:
    """Bound the best value any scheduler, even a clairvoyant one, could reach.

    One bound is proved; the other is the best run of the clairvoyant reference or --policies. docs/bounds.md states the
    assumptions and the tightness of the bounds.
    """
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.describing import titled
    from kvgym.metrics.attainment import WITHIN_SLO
    from kvgym.metrics.catalogue import metric_info
    from kvgym.policies.runner import simulate
    from kvgym.theory.hindsight.bounds import REFERENCE
    from kvgym.theory.hindsight.bounds import bound as find_bound
    from kvgym.theory.hindsight.calibrated.bounds import METRICS, check_boundable

    chosen = build_scenario(scenario, options).of_seed(seed)
    usual = [m for m in METRICS if m not in ("request_throughput", *WITHIN_SLO)]
    names = usual if metrics is None else split_names(metrics)
    if not names:
        raise ConfigError(
            f"--metrics {shown(','.join(metrics or ()))} names no metric; there are bounds on: {', '.join(METRICS)}"
        )
    specs = [REFERENCE, *split_names(policies)]
    system = chosen.make_system()
    table = chosen.sample(chosen.make_workload(), seed, system.usable_capacity)
    for name in names:
        check_boundable(table, system, name)
    started = time.perf_counter()
    runs: list[SimulationResult] = []
    found: dict[str, Interval] = {}
    with run_progress(len(specs) + len(names), progress) as advance:
        for spec in specs:
            runs.append(
                simulate(
                    system, table, spec, router=chosen.make_router(), seed=seed, autoscaler=chosen.autoscaler
                )
            )
            advance(f"run of {spec}")
        if not all(run.completed for run in runs):
            raise ConfigError("a run did not complete; bounds need a run that serves all requests")
        for name in names:
            left = None if time_limit is None else max(0.0, time_limit - (time.perf_counter() - started))
            search = functools.partial(
                find_bound, table, system, name, runs=runs, reference=None, seconds=seconds
            )
            try:
                found[name] = call_in_thread(search, left)
            except TimeoutError:
                break
            advance(f"bound on {name}")
    if not found:
        raise ConfigError(f"--time-limit {time_limit:g}: no bound was found in that time; use a longer limit")
    took = time.perf_counter() - started
    if as_json:
        rows = {
            name: {"lower": i.lower, "upper": i.upper, "gap": i.gap, "method": i.method}
            for name, i in found.items()
        }
        print(json.dumps({"scenario": chosen.name, "requests": len(table), "bounds": rows}, indent=2))
        _note_missing(names, found)
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
    headings = ("metric", "bound", "best known", "× optimum", "gap at most", "how")
    console.print_table(console.mapping_table(titled(chosen.heading, chosen), lines, headings))
    for note in table.notes:
        console.out.print(f"note: {note}", markup=False)
    _note_missing(names, found)
    console.out.print(
        f"{len(table):,} requests, {took:.1f} s; docs/bounds.md states the assumptions", markup=False
    )


def _note_missing(requested: Sequence[str], found: Collection[str]) -> None:
    """Print which bounds are missing because of the time limit."""
    if left := [name for name in requested if name not in found]:
        console.print_to_stderr(f"note: not found within the time limit: {', '.join(left)}")
