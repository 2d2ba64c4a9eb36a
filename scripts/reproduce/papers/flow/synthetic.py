"""Section 4.1: three classes of requests in slotted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.workloads.table import RequestTable
from papers.flow.runs import Plan, Values, run_all
from papers.flow.search import PATIENCE, choose, tuning_seeds
from papers.flow.tables import print_leaders, print_results


def synthetic(name: str, plan: Plan) -> dict[str, object]:
    """Run Section 4.1 with known (``flow-classes``) or unknown lengths (``flow-unknown``); print the tables."""
    scenario = load_scenario(name)
    known = name == "flow-classes"
    print(f"## Section 4.1, {'known' if known else 'unknown'} lengths\n")
    tuning = slotted(scenario, plan.horizons[0], tuning_seeds(plan))
    impatient = replace(scenario.make_system(), stall_limit=PATIENCE["4.1"])
    alphas = [f"alpha_greedy:alpha={a}" for a in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)]
    alpha = choose(impatient, tuning, alphas, "α", plan)
    if known:
        policies = ["flow_control_classes:budgets=4/4/4", "mc_sf", "mc_benchmark", alpha]
    else:
        whole = [f"flow_control:budget={b}" for b in range(8, 21)]
        constant = choose(impatient, tuning, whole, "budget, constant", plan)
        means = [
            f"flow_control:budget={b},random=True" for b in (10, 11, 11.5, 12, 12.5, 13, 14, 15, 16, 18, 20)
        ]
        drawn = choose(impatient, tuning, means, "mean budget, random", plan)
        # 12 is the largest budget below M / E[w], that is the largest one that satisfies (4) for some ε.
        policies = [*dict.fromkeys(("flow_control:budget=12", constant, drawn)), "a_min", "mc_longest", alpha]
    found: dict[str, object] = {}
    for reading in ("stopped at the horizon", "drained"):
        by_horizon: dict[int, dict[str, Values]] = {}
        for horizon in plan.horizons:
            system = scenario.make_system()
            if reading != "drained":
                system = replace(system, horizon=float(horizon))
            tables = slotted(scenario, horizon, range(plan.seeds))
            by_horizon[horizon] = run_all(system, tables, policies, plan.where)
        print(f"### {reading.capitalize()}\n")
        for horizon in (plan.horizons[0], plan.horizons[-1]):
            print(f"{horizon:,} slots, {plan.seeds} seeds (mean, 95 % interval):\n")
            print_results(by_horizon[horizon], "slots")
        print("First by metric, over the horizons:\n")
        print_leaders(by_horizon)
        found[reading] = by_horizon
    return found


def slotted(scenario: Scenario, horizon: int, seeds: Sequence[int]) -> list[RequestTable]:
    """Return the requests of Section 4.1 that arrive in the first ``horizon`` slots, by seed."""
    workload = {**dict(scenario.workload), "duration": horizon}  # type: ignore[arg-type]
    source = scenario.override(workload=workload).make_workload()
    return [source.sample(seed) for seed in seeds]
