"""The same under other overheads per batch, which the paper does not give."""

from __future__ import annotations

from typing import Any

from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import mean_interval, ratio_interval
from papers.slai.measurements import Measurements
from papers.slai.setting import DYNAMIC, FCFS, FCFS_AT_HIGH_LOAD, SPF, TTFT_BOUND, Plan
from papers.slai.tables import text, titled


def sensitivity(scenario: Scenario, plan: Plan) -> tuple[str, list[dict[str, Any]]]:
    """Return capacities and high-load medians under other overheads per batch, and the runs."""
    rows, runs = [], []
    for overhead in plan.overheads:
        changed = scenario.override(batch_time={**scenario.batch_time, "overhead": overhead})
        policies = (FCFS, SPF, DYNAMIC)
        data = Measurements(changed, policies, plan.sensitivity_rates, plan.sensitivity_seeds, plan)
        runs += [{"overhead": overhead, **row} for row in data.rows]
        capacity = {p: data.rate_at(p, TTFT_BOUND) for p in policies}
        matched = data.rate_at(FCFS, FCFS_AT_HIGH_LOAD)
        medians = {p: data.at(p, matched, "ttft_median") for p in policies}
        rows.append(
            [
                f"{1000 * overhead:g}",
                text(mean_interval(capacity[FCFS])),
                text(ratio_interval(capacity[SPF], capacity[FCFS]), percent=True),
                text(ratio_interval(capacity[DYNAMIC], capacity[FCFS]), percent=True),
                text(mean_interval(matched)),
                text(ratio_interval(medians[SPF], medians[FCFS]), percent=True),
                text(ratio_interval(medians[DYNAMIC], medians[FCFS]), percent=True),
            ]
        )
    header = [
        "overhead, ms", "capacity of Sarathi FCFS, 1/s", "Sarathi SPF", "SLAI SPF, dynamic δ",
        "rate where Sarathi FCFS has 1.5 s, 1/s", "median TTFT there: Sarathi SPF", "SLAI SPF, dynamic δ",
    ]  # fmt: skip
    return titled("Other overheads per batch, 5 % paying", header, rows), runs
