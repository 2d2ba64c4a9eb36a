"""``kvgym provision``: find how many workers a load needs, and their cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvgym.cli import console
from kvgym.cli.commands.capacity import reason, run_spinner
from kvgym.cli.options.scenario import ROUTERS, Declared, ScenarioOption, group, scenario_options
from kvgym.cli.options.shared import JobsOption, RayOption, ReportOption, split_names, time_option
from kvgym.cli.options.targets import (
    PoliciesOption,
    SloOption,
    given_slos,
    parse_prices,
)
from kvgym.cli.result_folder import OutOption, command_line, default_folder, make_folder, replacing, reporting
from kvgym.cli.tables import ResultTable
from kvgym.errors import printable
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.specs import split_specs

if TYPE_CHECKING:
    from kvgym.studies.capacity.plan import Plan, Provisioning

Cells = tuple[list[str], list[list[str]]]
"""Headings and rows of a table."""


TEXT_COLUMNS = ("hardware", "policy", "router", "estimate", "window", "one fewer misses")
RANKS = {
    **dict.fromkeys(("hardware", "policy", "router", "window", "estimate"), 1),
    **dict.fromkeys(("workers", "simulated"), 2), "cost/hour": 3, "cost/million output tokens": 4, "requests/s": 4,
    "one fewer misses": 6, "theory ⌈λ/μ⌉": 7, "theory": 7, "by one worker's rate within targets": 8,
}  # fmt: skip
"""Ranks of columns; those of the targets' metrics have 5."""

SEVERAL = Declared(typer.Option(help="Hardware to compare, comma-separated (default: the scenario's)."))


@scenario_options(
    after={
        "slo": group("requests", "lengths"),
        "policies": (*group("hardware"), "router"),
        "window": group("slos"),
    },
    instead={"hardware": SEVERAL, "router": ROUTERS},
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
    seed: Annotated[int, typer.Option(min=0, help="Seed of workload, policies and routers.")] = 0,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also show estimates of the rate that one worker serves.")
    ] = False,
    report: ReportOption = True,
    markdown: Annotated[bool, typer.Option(help="Print Markdown tables.")] = False,
    progress: Annotated[bool, typer.Option(help="Show progress.")] = True,
) -> None:
    """Find how many workers a load needs, by theory and by simulation, and their cost.

    Shows the smallest number of workers that meets the targets and its cost, with --window also over time, and with
    --details estimates of the rate that one worker serves beside the measured rate. If no number of workers can meet
    a target, because a single request takes longer, this is reported at once. Writes report.html, provision.json,
    estimates.csv, windows.csv, probes.csv (with the extra parquet also probes.parquet) and config.json.
    docs/capacity.md has the definitions.
    """
    from kvgym.batch_time.deployments.described import is_described
    from kvgym.batch_time.deployments.load import hardware_label
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.describing import engine_line
    from kvgym.experiments.labels import short_labels, shortener
    from kvgym.studies.capacity.provisioning import CURVE, on_hardware
    from kvgym.studies.capacity.provisioning import provision as plan_workers
    from kvgym.studies.capacity.targets import parse_targets

    targets = parse_targets(slo)
    prices = parse_prices(price, "--price") if price else None
    kinds = split_specs(options.hardware) if options.hardware else None
    first = next(filter(is_described, kinds), kinds[0]) if kinds else None  # rules do not depend on the order
    chosen = build_scenario(scenario, options, hardware=first, router=None, ttft_slo=None, tbt_slo=None)
    if kinds and len(kinds) > 1:  # the name is that of the first
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
            folder=folder,
            jobs=jobs,
            ray=ray,
            progress=advance,
        )
    with replacing(folder, options.trace, kept=True):
        result.save(folder, command=command_line())
    short, shorten = short_labels(_labels(result)), shortener(_labels(result))
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
    tables = [("Workers", _plans(result)), ("Workers over time", _windows(result))]
    if details:
        tables.append(("Requests/s that one worker serves: estimates and measurements", _estimates(result)))
    for title, cells in tables:
        if cells[1]:
            _show(title, cells, markdown, files=f"{folder / 'provision.json'}")
    console.print_notes(result.notes, _labels(result))
    for own in result.workers:
        if own.error:
            console.out.print(f"{short[own.policy]}: {own.error}", style="red", markup=False)
        elif own.remark and details:
            console.out.print(
                f"{hardware_label(own.hardware)} {short[own.policy]}: {own.remark}".strip(), markup=False
            )
    for plan in result.plans:
        for note in plan.notes:
            console.out.print(
                f"{short[plan.policy]} via {short.get(plan.router, plan.router)}: {note}", markup=False
            )
    console.out.print(f"{time.perf_counter() - started:.1f} s")
    if report:
        again = f"run the same command with --out {folder}"
        with reporting(folder, "report.html", again), console.optional("report"):
            from kvgym.studies.reports import write_provisioning_report

            path = write_provisioning_report(result, folder / "report.html", command=command_line())
            console.print_line(f"report:  {path}")
    console.print_line(f"results: {folder}")
    if all(plan.simulated is None for plan in result.plans):
        raise typer.Exit(1)  # no number of workers meets the targets: scripts should notice


def _labels(result: Provisioning) -> list[str]:
    """Return the labels of policies and routers."""
    routers = (plan.router for plan in result.plans)
    return list(dict.fromkeys([*(own.policy for own in result.workers), *routers]))


def _show(title: str, cells: Cells, markdown: bool, *, files: str) -> None:
    """Print a table."""
    headings, rows = cells
    if markdown:
        lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
        print(printable("\n".join([f"\n{title}:\n", *lines, *(f"| {' | '.join(row)} |" for row in rows)])))
        return
    table = ResultTable(title, files=files)
    for heading in headings:
        table.column(heading, rank=RANKS.get(heading, 5), words=heading in TEXT_COLUMNS)
    for row in rows:
        table.row(*row)
    console.print_table(table)


def _estimates(result: Provisioning) -> Cells:
    """Return a row per estimate of a worker's rate, with its error, and the measured rates."""
    from kvgym.batch_time.deployments.load import hardware_label
    from kvgym.experiments.labels import short_labels
    from kvgym.studies.capacity.estimates import OBVIOUS, SOUND

    short = short_labels(_labels(result))
    rows = []
    for own in result.workers:
        names = [hardware_label(own.hardware) or "–", short[own.policy]]
        for e in own.estimates:
            what = f"μ, {e.estimator} batch time, {'saturated' if e.run == SOUND[0] else 'trace ' + e.run}"
            if (e.run, e.estimator) in (SOUND, OBVIOUS):
                what += " (theory)" if (e.run, e.estimator) == SOUND else " (obvious)"
            figures = [
                f"{1000 * e.batch_time:.1f}",
                console.number(e.service),
                f"{e.error:+.1%}",
                str(e.workers),
            ]
            rows.append([*names, what, *figures])
        for what, measured in (
            ("measured: throughput of a saturated worker", own.measured),
            ("measured: backlog does not grow, Poisson arrivals", own.backlog_rate),
            ("measured: targets are met, load compressed", own.target_rate),
        ):
            off = "" if measured is own.measured else f"{measured / own.measured - 1:+.1%}"
            least = "–" if not measured > 0 else str(-int(-result.rate // measured))
            rows.append([*names, what, "", console.number(measured), off, least])
    return ["hardware", "policy", "estimate", "batch time (ms)", "requests/s", "error", "workers"], rows


def _names(result: Provisioning) -> list[str]:
    """Return what plans differ in beside the policy, of hardware and router."""
    return [
        name for name in ("hardware", "router") if len({getattr(plan, name) for plan in result.plans}) > 1
    ]


def _name(plan: Plan, what: str) -> str:
    """Return the hardware or the router of a plan."""
    from kvgym.batch_time.deployments.load import hardware_label

    return plan.router if what == "router" else hardware_label(plan.hardware) or "–"


def _plans(result: Provisioning) -> Cells:
    """Return a row per hardware, policy and router."""
    priced = any(plan.price is not None for plan in result.plans)
    from kvgym.experiments.labels import short_labels

    named, short = _names(result), short_labels(_labels(result))
    headings = [
        *named,
        "policy",
        "workers",
        *(console.heading(t.metric) for t in result.targets),
        "one fewer misses",
    ]
    headings += ["cost/hour", "cost/million output tokens"] if priced else []
    headings += ["theory ⌈λ/μ⌉", "by one worker's rate within targets"]
    rows = []
    for plan in result.plans:
        row = [
            *(short.get(own := _name(plan, name), own) for name in named),
            short[plan.policy],
            _count(plan.simulated),
        ]
        row += [console.number(plan.values[t.metric]) for t in result.targets]
        row += ["; ".join(map(reason, plan.one_fewer)) or "–"]
        if priced:
            costs = (plan.cost_per_hour, result.cost_per_million_tokens(plan))
            row += ["–" if cost is None else console.number(cost) for cost in costs]
        rows.append([*row, _count(plan.by_theory), _count(plan.by_targets)])
    return headings, rows


def _windows(result: Provisioning) -> Cells:
    """Return a row per window, and a summary over the windows of each plan."""
    from kvgym.batch_time.deployments.load import hardware_label
    from kvgym.experiments.labels import short_labels

    short = short_labels(_labels(result))
    rows = []
    for plan in result.plans:
        policy = short[plan.policy]
        names = [
            f"{hardware_label(plan.hardware)}: {policy}" if plan.hardware else policy,
            short.get(plan.router, plan.router),
        ]
        windows = result.windows_of(plan)
        for w in windows:
            when = f"{w.start:,.0f} – {w.end:,.0f} s"
            rows.append([*names, when, console.number(w.rate), _count(w.by_theory), _count(w.simulated)])
        profile = result.profile(plan)
        if profile is not None:
            rows += [
                [*names, "peak", "", "", str(profile.peak)],
                [*names, "sufficient in 95 % of the windows", "", "", str(profile.p95)],
                [
                    *names,
                    "mean, paid for with autoscaling",
                    "",
                    "",
                    f"{profile.mean:.2f}{_saved(plan, profile.mean)}",
                ],
            ]
    return ["policy", "router", "window", "requests/s", "theory", "simulated"], rows


def _saved(plan: Plan, mean: float) -> str:
    """Return the price of the mean number of workers per hour, "" if it is unknown."""
    return "" if plan.price is None else f" (cost/hour {console.number(mean * plan.price)})"


def _count(number: int | None) -> str:
    return "–" if number is None else str(number)
