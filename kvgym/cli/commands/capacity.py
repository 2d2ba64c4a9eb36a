"""``kvgym capacity``: find the highest arrival rate at which schedulers meet targets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.fields import ROUTERS, group
from kvgym.cli.options.scenario import PANELS, ScenarioOption, scenario_options
from kvgym.cli.options.shared import (
    JobsOption,
    ProgressOption,
    RayOption,
    ReportOption,
    TuneBudgetsOption,
    split_names,
)
from kvgym.cli.options.targets import (
    PoliciesOption,
    SloOption,
    given_slos,
    parse_counts,
)
from kvgym.cli.outcomes import LONGEST_REASON, run_spinner, table_texts, terminal_table, write_outcome_report
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.specs import split_specs

if TYPE_CHECKING:
    from kvgym.studies.capacity.result import CapacityResult


@scenario_options(
    *(name for name in group("requests", "slos", "lengths", "hardware", "cluster") if name != "workers"),
    instead={"router": ROUTERS},
)
def capacity(
    options: ScenarioOptions,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    slo: SloOption = "ttft_p99<1,tbt_p99<0.2",
    policies: PoliciesOption = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="Numbers of workers, with a capacity for each: 1,2,4,8.",
            rich_help_panel=PANELS["cluster"],
        ),
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
    progress: ProgressOption = True,
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
    from kvgym.studies.capacity.outcome_tables import capacity_table
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
    table = capacity_table(result, LONGEST_REASON)
    if markdown:
        headings, rows = table_texts(table)
        print(console.markdown_table(headings, {name: cells for name, *cells in rows}))
    else:
        title, caption = _around(result)
        console.print_table(terminal_table(table, title, caption, files=f"{folder / 'capacity.json'}"))
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
    write_outcome_report(result, folder, report)
    if all(c.estimate.value == 0 for c in result.capacities):
        raise typer.Exit(1)  # no policy meets the targets at any rate: scripts should notice


def _around(result: CapacityResult) -> tuple[str, str]:
    """Return title and caption of the table."""
    from kvgym.experiments.describing import titled
    from kvgym.report.numbers import count_range
    from kvgym.studies.capacity.outcome_tables import counts_seeds

    seeds = f"means over {len(result.seeds)} seeds" if len(result.seeds) > 1 else "one seed"
    size = count_range([probe.played.num_requests for probe in result.probes])
    caption = (
        f"{seeds}; bisected to {result.tolerance:.1%}; {size} requests a run; metrics at the sustained rate"
    )
    if any(map(counts_seeds, result.capacities)):
        caption += "; fails next: with the number of seeds"
    targets = ", ".join(map(str, result.targets)) or "no growing backlog"
    return f"{titled(result.heading, result.scenario)}\n{targets}", caption
