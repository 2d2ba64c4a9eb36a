"""``kvgym capacity``: find the highest arrival rate at which schedulers meet targets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from kvgym.cli import console
from kvgym.cli.options.scenario import ROUTERS, ScenarioOption, group, scenario_options
from kvgym.cli.options.shared import JobsOption, RayOption, ReportOption, TuneBudgetsOption, split_names
from kvgym.cli.options.targets import (
    PoliciesOption,
    SloOption,
    given_slos,
    parse_counts,
)
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing, reporting
from kvgym.cli.tables import ResultTable
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.specs import split_specs

if TYPE_CHECKING:
    from kvgym.studies.capacity.result import Capacity, CapacityResult

LONGEST_REASON = 60
FAILS = "fails next"
LEAST = {"on every seed": 99}
"""Columns that are dropped first, with their ranks."""


@scenario_options(
    after={
        "workers": [name for name in group("cluster") if name != "workers"],
        "tolerance": group("slos", "requests", "lengths", "hardware"),
    },
    instead={"router": ROUTERS},
)
def capacity(
    options: ScenarioOptions,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    slo: SloOption = "ttft_p99<1,tbt_p99<0.2",
    policies: PoliciesOption = None,
    workers: Annotated[
        str | None, typer.Option(help="Numbers of equal workers, e.g. 1,2,4,8, with a capacity for each.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of seeds, the same for all policies (default: scenario's; trace: 1)."
        ),
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    tolerance: Annotated[
        float,
        typer.Option(help="Stop when the failing rate exceeds the sustained rate by at most this share."),
    ] = 0.02,
    tune_budgets: TuneBudgetsOption = False,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    report: ReportOption = True,
    markdown: Annotated[bool, typer.Option(help="Print a Markdown table.")] = False,
    progress: Annotated[bool, typer.Option(help="Show progress.")] = True,
) -> None:
    """Find the highest arrival rate at which schedulers meet targets.

    For every seed the rate is found by doubling and bisection, with the same requests at different rates. Shows the
    mean over seeds with a 95 % bootstrap interval and which target fails next. Writes probes.csv (with the extra
    parquet also probes.parquet), capacity.json, config.json, report.html.
    docs/capacity.md has the definitions.
    """
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.labels import short_labels
    from kvgym.studies.capacity.finding import find_capacity
    from kvgym.studies.capacity.targets import parse_targets

    targets = parse_targets(slo) if slo.strip() else ()
    counts, routers = parse_counts(workers), split_specs(options.router) if options.router else None
    chosen = build_scenario(scenario, options, router=None, ttft_slo=None, tbt_slo=None)
    folder = make_folder(out or default_folder("capacity", chosen.name))
    started, used = time.perf_counter(), time.process_time()
    with run_spinner(progress) as advance:
        result = find_capacity(
            chosen,
            targets,
            split_names(policies) or None,
            routers=routers,
            workers=counts,
            seeds=range(first_seed, first_seed + (seeds or chosen.seeds)) if first_seed else seeds,
            num_requests=options.num_requests,
            request_slos=given_slos(options),
            tolerance=tolerance,
            tune_budgets=tune_budgets,
            folder=folder,
            jobs=jobs,
            ray=ray,
            progress=advance,
        )
    with replacing(folder, options.trace, kept=True):
        result.save(folder, command=command_line())
    if markdown:
        print(console.markdown_table(*_cells(result)))
    else:
        console.print_table(_table(result, files=f"{folder / 'capacity.json'}"))
    labels = [c.label for c in result.capacities]
    console.print_notes(result.notes, labels)
    short = short_labels(labels)
    for c in result.capacities:
        for note in (*c.why, *c.notes):
            console.out.print(f"{short[c.label]}: {note}", markup=False)
    simulated = sum(probe.played.record.wall_time for probe in result.probes)
    console.out.print(
        f"{len(result.probes):,} runs in {time.perf_counter() - started:.1f} s; simulation {simulated:.1f} s in all, "
        f"processor time of this process {time.process_time() - used:.1f} s."
    )
    if report:
        again = f"run the same command with --out {folder}"
        with reporting(folder, "report.html", again), console.optional("report"):
            from kvgym.studies.reports import write_capacity_report

            path = write_capacity_report(result, folder / "report.html", command=command_line())
            console.print_line(f"report:  {path}")
    console.print_line(f"results: {folder}")
    if all(c.estimate.value == 0 for c in result.capacities):
        raise typer.Exit(1)  # no policy meets the targets at any rate: scripts should notice


@contextlib.contextmanager
def run_spinner(enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show the latest run and the number of runs on standard error; the total is not known beforehand."""
    if not enabled:
        yield lambda text: None
        return
    with console.err.status("starting") as status:
        done = 0

        def advance(text: str) -> None:
            nonlocal done
            done += 1
            status.update(f"{done:,} runs; {escape(text)}")

        yield advance


def reason(text: str) -> str:
    """Return a reason; the text of an error is shortened to fit a column."""
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"


def _limit(c: Capacity) -> str:
    """Return what limits a policy, with the number of seeds if that differs between seeds."""
    if not c.limits:
        return "–"
    if not _counts_seeds(c):
        return ", ".join(reason(text) for text, _ in c.limits)
    return ", ".join(f"{reason(text)} ({count})" for text, count in c.limits)


def _counts_seeds(c: Capacity) -> bool:
    """Return whether the limits of a policy are shown with their number of seeds."""
    return len(c.limits) > 1 and len(c.held) > 1


def _cells(result: CapacityResult) -> tuple[list[str], dict[str, list[str]]]:
    """Return headings and rows of the table."""
    from kvgym.experiments.labels import short_labels

    many = len(result.seeds) > 1
    counted = len({c.workers for c in result.capacities}) > 1
    headings = ["policy", "requests/s"]
    headings += ["95 % interval", "on every seed"] if many else []
    headings += ["per worker", "efficiency"] if counted else []
    headings += [FAILS, *(console.heading(t.metric) for t in result.targets)]
    short = short_labels(c.label for c in result.capacities)
    rows: dict[str, list[str]] = {}
    for c in result.capacities:
        row = [console.number(c.estimate.value)]
        row += [console.interval(c.estimate), console.number(c.on_every_seed)] if many else []
        if counted:
            row += [console.number(c.estimate.value / (c.workers or 1)), f"{result.efficiency(c):.0%}"]
        row += [_limit(c), *(console.number(c.values[t.metric]) for t in result.targets)]
        rows[short[c.label] + c.signs] = row
    return headings, rows


def _table(result: CapacityResult, *, files: str = "") -> ResultTable:
    """Return the table for a terminal."""
    from kvgym.experiments.describing import titled

    seeds = f"means over {len(result.seeds)} seeds" if len(result.seeds) > 1 else "one seed"
    sizes = sorted({probe.played.num_requests for probe in result.probes})
    size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    caption = (
        f"{seeds}; bisected to {result.tolerance:.1%}; {size} requests a run; metrics at the sustained rate"
    )
    if any(map(_counts_seeds, result.capacities)):
        caption += "; fails next: with the number of seeds"
    targets = ", ".join(map(str, result.targets)) or "no growing backlog"
    title = f"{titled(result.heading, result.scenario)}\n{targets}"
    table = ResultTable(title, caption, files=files)
    headings, rows = _cells(result)
    for heading in headings:
        table.column(heading, rank=LEAST.get(heading), words=heading in ("policy", FAILS))
    for label, cells in rows.items():
        table.row(label, *cells)
    return table
