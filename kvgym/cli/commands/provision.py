"""``kvgym capacity provision``: find how many workers a load needs, and their cost."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kvgym.cli import console
from kvgym.cli.fields import AUTOSCALERS, ROUTERS, Field, group
from kvgym.cli.options.scenario import ScenarioOption, scenario_options
from kvgym.cli.options.shared import (
    JobsOption,
    ProgressOption,
    RayOption,
    ReportOption,
    split_names,
    time_option,
)
from kvgym.cli.options.targets import (
    PoliciesOption,
    SloOption,
    given_slos,
    parse_prices,
)
from kvgym.cli.outcomes import LONGEST_REASON, run_spinner, table_texts, terminal_table, write_outcome_report
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing
from kvgym.errors import printable
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.specs import split_specs

SEVERAL = Field("hardware", "Hardware to compare, comma-separated.", "NAMES", complete="hardware")


@scenario_options(
    *group("requests", "slos", "lengths", "hardware"),
    "router",
    "startup",
    "autoscaler",
    instead={"hardware": SEVERAL, "router": ROUTERS, "autoscaler": AUTOSCALERS},
)
def provision(
    options: ScenarioOptions,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    slo: SloOption = "ttft_p99<1,tbt_p99<0.2",
    policies: PoliciesOption = None,
    price: Annotated[
        str | None,
        typer.Option(
            help="Price per worker and hour: 2.5, or by hardware llama3-8b-a100-tp1=2.5,roofline:model=…,gpu=l4=1.2."
        ),
    ] = None,
    window: Annotated[
        float | None, time_option("--window", "Also plan for windows of this length: peak, 95 %, mean")
    ] = None,
    most_workers: Annotated[int, typer.Option(min=1, help="Maximum number of workers to try.")] = 256,
    tune_budgets: Annotated[
        bool,
        typer.Option(
            "--tune-budgets",
            help="Also plan with the best token budget, of 512 to 8,192, of every policy that has one: that with which "
            "one worker meets the targets at the highest rate.",
        ),
    ] = False,
    hindsight: Annotated[
        bool, typer.Option("--hindsight", help="With --autoscaler, also search for the best plan over time.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload, policies and routers.")] = 0,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also show estimates of the rate that one worker serves.")
    ] = False,
    report: ReportOption = True,
    markdown: Annotated[bool, typer.Option(help="Print Markdown tables.")] = False,
    progress: ProgressOption = True,
) -> None:
    """Find how many workers a load needs, by theory and by simulation, and their cost.

    Shows the smallest number of workers that meets the targets and its cost, with --window also over time, and with
    --details estimates of the rate that one worker serves next to the measured rate. With --autoscaler it also shows
    the GPU-hours of workers that come and go: for each autoscaler, the setting with the fewest that meets the targets.
    If no number of workers can meet a target, because a single request takes longer, this is reported at once. Writes
    report.html, provision.json, estimates.csv, windows.csv, fleets.csv, probes.csv (with the extra parquet also
    probes.parquet) and config.json.
    docs/capacity.md has the definitions.
    """
    from kvgym.batch_time.deployments.described import HardwareName
    from kvgym.batch_time.deployments.load import hardware_label
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.describing import engine_line
    from kvgym.experiments.labels import short_labels, shortener
    from kvgym.studies.capacity.outcome_tables import (
        estimate_table,
        fleet_table,
        labels_of,
        plan_table,
        window_table,
    )
    from kvgym.studies.capacity.provisioning import CURVE, on_hardware
    from kvgym.studies.capacity.provisioning import provision as plan_workers
    from kvgym.studies.capacity.targets import parse_targets

    targets = parse_targets(slo)
    prices = parse_prices(price, "--price") if price else None
    kinds = [HardwareName(name) for name in split_specs(options.hardware)] if options.hardware else None
    # The rules do not depend on the order.
    first = next((name for name in kinds if name.described), kinds[0]) if kinds else None
    apart = {"router": None, "startup": None, "autoscaler": None, "ttft_slo": None, "tbt_slo": None}
    chosen = build_scenario(scenario, options, hardware=first, **apart)
    if kinds and len(kinds) > 1:  # the name is the first one's
        chosen = chosen.model_copy(update={"name": chosen.make_workload().spec.name})
    folder = make_folder(out or default_folder("provision", chosen.name))
    started = time.perf_counter()
    with run_spinner(progress) as advance:
        result = plan_workers(
            chosen,
            targets,
            split_names(policies) or None,
            hardware=kinds,
            routers=split_specs(options.router) if options.router else None,
            prices=prices,
            window=window,
            seed=seed,
            request_slos=given_slos(options),
            most_workers=most_workers,
            curve=CURVE if report else (),
            tune_budgets=tune_budgets,
            autoscalers=split_specs(options.autoscaler) if options.autoscaler else (),
            startup=options.startup,
            hindsight=hindsight,
            folder=folder,
            jobs=jobs,
            ray=ray,
            progress=advance,
        )
    with replacing(folder, options.trace, kept=True):
        result.save(folder, command=command_line())
    labels = labels_of(result)
    short, shorten = short_labels(labels), shortener(labels)
    console.out.print(
        f"{result.scenario.name}: {result.num_requests:,} requests, {result.rate:.3f}/s; targets: "
        f"{', '.join(map(str, result.targets))}",
        markup=False,
    )
    on = [
        on_hardware(result.scenario, name) for name in dict.fromkeys(p.hardware for p in result.plans) if name
    ]
    if line := engine_line(*on):
        console.print_line(line)
    for answer in map(shorten, result.answers()):
        console.out.print(answer, style="bold", markup=False)
    tables = [
        ("Workers", plan_table(result, LONGEST_REASON)),
        ("Workers that come and go", fleet_table(result)),
        ("Workers over time", window_table(result, console.number)),
    ]
    if details:
        title = "Requests/s that one worker serves: estimates and measurements"
        tables.append((title, estimate_table(result)))
    for title, table in tables:
        if table.rows and markdown:
            headings, rows = table_texts(table)
            lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
            print(
                printable("\n".join([f"\n{title}:\n", *lines, *(f"| {' | '.join(row)} |" for row in rows)]))
            )
        elif table.rows:
            console.print_table(terminal_table(table, title, files=f"{folder / 'provision.json'}"))
    console.print_notes(result.notes, labels)
    for own in result.workers:
        if own.error:
            console.out.print(f"{short[own.policy]}: {own.error}", style="red", markup=False)
        elif own.remark and details:
            console.out.print(
                f"{hardware_label(own.hardware)} {short[own.policy]}: {own.remark}".strip(), markup=False
            )
    for plan in result.plans:
        for note in plan.notes:
            console.out.print(f"{short[plan.policy]} via {short[plan.router]}: {note}", markup=False)
    console.out.print(f"{time.perf_counter() - started:.1f} s")
    write_outcome_report(result, folder, report)
    if all(plan.simulated is None for plan in result.plans):
        raise typer.Exit(1)  # no number of workers meets the targets: scripts should notice
