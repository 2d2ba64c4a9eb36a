"""Reproduce Section 7 and Appendix F of the SLAI paper: TTFT and TBT against the request rate, and capacities.

A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice". The
scenarios slai-5, slai-50 and slai-95 hold hardware, workload and policies. Prints Markdown tables, and writes them with
every measurement and the figure to --out. What comes out is discussed in docs/reproductions/slai.md.

    python scripts/reproduce/slai.py            # a few minutes on one core
    python scripts/reproduce/slai.py --quick    # seconds: shows that it runs, the figures mean nothing
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from harness import command_line, save_figure, where, write_json
from kvgym.experiments.result_files import jsonable, run_context
from kvgym.experiments.scenario import load_scenario
from papers.slai.figure import draw
from papers.slai.measurements import Measurements
from papers.slai.sensitivity import sensitivity
from papers.slai.setting import DYNAMIC, FCFS, QUICK, SCENARIOS, WATCHED, Plan
from papers.slai.tables import (
    by_rate,
    capacity_table,
    class_table,
    high_load_table,
    margin_table,
    paying_first_table,
    state_table,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, print the tables, write the files."""
    parser = command_line(__doc__, seeds=Plan.seeds)
    parser.add_argument("--out", type=Path, default=Path("results/slai"), help="folder for the files")
    options = parser.parse_args(arguments)
    plan = replace(QUICK if options.quick else Plan(), where=where(options))
    seeds = options.seeds or plan.seeds
    high = [r for r in (1.2, 1.4, 1.6) if r in plan.rates]
    tables, runs = list[str](), list[dict[str, Any]]()

    def add(table: str) -> None:
        tables.append(table)
        print(table, flush=True)

    for name, share in SCENARIOS.items():
        scenario = load_scenario(name)
        data = Measurements(scenario, scenario.policies, plan.rates, seeds, plan)
        runs += data.rows
        add(capacity_table(f"Capacity, {share}", data))
        add(high_load_table(f"Median TTFT at high load, {share}, s", data, high))
        if name == "slai-5":
            for table in detailed(data, plan, high, share):
                add(table)
            save_figure(draw(data), options.out / "slai.png", dpi=100)
        else:
            add(class_table(f"TBT by class, {share}", data, high[:1], (FCFS, DYNAMIC)))
    table, sensitivity_runs = sensitivity(load_scenario("slai-5"), plan)
    add(table)
    (options.out / "tables.md").write_text("\n".join(tables), encoding="utf-8")
    pl.DataFrame(runs).write_csv(options.out / "runs.csv")
    pl.DataFrame(sensitivity_runs).write_csv(options.out / "sensitivity.csv")
    config = {"plan": {**vars(plan), "seeds": seeds, "where": None}, **run_context()}
    write_json(options.out / "config.json", jsonable(config), indent=2)


def detailed(data: Measurements, plan: Plan, high: Sequence[float], share: str) -> Iterator[str]:
    """Yield the tables by rate, class and state of one scenario."""
    loads = [r for r in (0.4, 0.8, 1.2, 1.6) if r in plan.rates]
    yield by_rate(f"Median TTFT, {share}, s", data, plan.shown, "ttft_median", 2)
    yield by_rate(f"P99 TBT of all tokens, {share}, s", data, plan.shown, "tbt_p99", 3)
    yield margin_table(f"Margins of SLAI, and its medians beside Sarathi's, {share}", data, plan.shown)
    yield class_table(f"TBT by class, {share}", data, loads, WATCHED)
    for rate in high:
        title = f"{rate:g} requests per second, {share}"
        yield state_table(title, data, rate, data.scenario.policies)
    yield paying_first_table(f"Mean TTFT by class, {share}, s", data, loads)


if __name__ == "__main__":
    main()
