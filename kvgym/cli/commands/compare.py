"""``kvgym compare``: compare schedulers on identical workloads."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvgym.cli import console
from kvgym.cli.fields import ALL, AUTOSCALERS, ROUTERS
from kvgym.cli.options.scenario import PANELS, ScenarioOption, scenario_options
from kvgym.cli.options.shared import (
    OUTPUT,
    JobsOption,
    ProgressOption,
    RayOption,
    ReportOption,
    TuneBudgetsOption,
    metrics_option,
    policies_option,
    split_names,
)
from kvgym.cli.progress import run_progress
from kvgym.cli.result_folder import (
    OutOption,
    command_line,
    default_folder,
    make_folder,
    replacing,
    reporting,
)
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO, ScenarioOptions
from kvgym.utils.specs import split_specs


@scenario_options(*ALL, instead={"router": ROUTERS, "autoscaler": AUTOSCALERS})
def compare(
    options: ScenarioOptions,
    scenario: ScenarioOption = DEFAULT_SCENARIO,
    policies: Annotated[
        list[str] | None,
        policies_option("Schedulers or agents: fcfs,alpha_beta:alpha=0.2."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of seeds.")] = None,
    first_seed: Annotated[int, typer.Option(min=0, metavar="N", help="The first seed.")] = 0,
    metrics: Annotated[list[str] | None, metrics_option("Columns of the table (kvgym list metrics).")] = None,
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            help="Also show a bound for any scheduler, and a reference.",
        ),
    ] = False,
    together: Annotated[
        bool | None,
        typer.Option(
            help="Also run separate workers as equal ones.",
            rich_help_panel=PANELS["cluster"],
        ),
    ] = None,
    tune_budgets: TuneBudgetsOption = False,
    jobs: JobsOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    output: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="table, or vllm-bench: also writes such files.",
            rich_help_panel=OUTPUT,
        ),
    ] = "table",
    report: ReportOption = True,
    progress: ProgressOption = True,
) -> None:
    """Run schedulers, routers or autoscalers on identical workloads and compare them.

    Shows a table with 95 % bootstrap intervals and writes runs.csv, summary.json, config.json and
    report.html; with the extra parquet also runs.parquet.
    """
    from kvgym.experiments.budget_comparison import compare_budgets, compare_fleets
    from kvgym.experiments.changes import build_scenario
    from kvgym.experiments.comparison import compare as run_comparison
    from kvgym.experiments.describing import describe_scenario
    from kvgym.metrics.catalogue import metric_info
    from kvgym.policies.policy import make_policy

    if output not in ("table", "vllm-bench"):
        raise ConfigError(f"--format {output}: valid are table, vllm-bench")
    routers = split_specs(options.router or "")
    scalers = split_specs(options.autoscaler or "")
    chosen = build_scenario(
        scenario, options, router=routers[0] if routers else None, autoscaler=scalers[0] if scalers else None
    )
    if output == "vllm-bench":
        from kvgym.report.export import vllm_bench

        vllm_bench.check_window(chosen)
    columns_shown = console.DEFAULT_COLUMNS if metrics is None else tuple(split_names(metrics))
    if not columns_shown:
        raise ConfigError(
            f"--metrics {shown(','.join(metrics or ()))} names no metric; kvgym list metrics shows them"
        )
    for name in columns_shown:
        metric_info(name)
    specs = split_names(policies) or list(chosen.policies)
    several = routers if len(routers) > 1 else None
    if several:
        chosen = chosen.model_copy(update={"summary": describe_scenario(chosen, several)})
    folder = make_folder(out or default_folder("compare", chosen.name))
    count = seeds if seeds is not None else (1 if options.trace is not None else chosen.seeds)
    numbers = range(first_seed, first_seed + count)
    added = False
    if bound:  # loads SciPy's optimisers
        from kvgym.theory.hindsight.bounds import REFERENCE

        added = all(make_policy(spec).info.name != REFERENCE for spec in specs)
    both = together is True or (
        together is None and (options.prefill_workers or options.decode_workers) is not None
    )
    runs = (len(specs) + added) * max(1, len(routers)) * count * (1 + both)
    if scalers:
        runs *= 1 + len(scalers)
    if tune_budgets and (several or both):
        raise ConfigError(
            "--tune-budgets compares policies with one router in one setting; give one router, and --no-together"
        )
    with run_progress(runs, progress) as advance:
        arguments: dict[str, Any] = {
            "seeds": numbers, "keep_examples": report, "bound": bound, "folder": folder, "jobs": jobs, "ray": ray,
            "progress": advance,
        }  # fmt: skip
        if tune_budgets:
            metric = "e2e_latency_mean" if metrics is None else columns_shown[0]
            comparison = compare_budgets(chosen, specs, metric=metric, **arguments)
        elif scalers:
            comparison = compare_fleets(chosen, specs, scalers, routers=several, together=both, **arguments)
        else:
            comparison = run_comparison(chosen, specs, routers=several, together=both, **arguments)
    with replacing(folder, options.trace, kept=True):
        comparison.save(folder, command=command_line())
    if metrics is None and comparison.has_targets:
        columns_shown = (*columns_shown, "slo_attainment")
    if metrics is None and scalers:
        columns_shown = ("fleet_cost", "gpu_hours", "slo_attainment", "ttft_p99", "ready_workers")
    console.print_table(
        console.comparison_table(comparison, columns_shown, files=f"{folder / 'summary.json'}")
    )
    console.print_remarks(comparison)
    total = sum(comparison.num_requests) * len(comparison.policies)
    finished = sum(int(r.metrics["finished"]) for r in comparison.runs if not r.error)
    once = all(r.completed_once for r in comparison.runs)
    console.out.print(
        f"{finished:,} of {total:,} requests completed"
        + (", each exactly once." if once else "; see the notes for the others.")
    )
    if output == "vllm-bench":
        vllm_bench.write_comparison(comparison, folder / "vllm-bench")
    if report:
        again = f"run the same command with --out {folder}"
        with reporting(folder, "report.html", again), console.optional("report"):
            from kvgym.report import write_report

            path = write_report(comparison, folder / "report.html", command=command_line())
            console.print_line(f"report:  {path}")
    console.print_line(f"results: {folder}")
    if all(run.error for run in comparison.runs):
        raise typer.Exit(1)  # no run finished: scripts should notice
