"""Compare a learned router with others on clusters of equal and of unequal workers: the tables of docs/routing.md.

    python scripts/fleets/compare_routers.py routing
    python scripts/fleets/compare_routers.py results/routing/best.json --seeds 2 --num-requests 100     seconds

Seeds are from 2,000,000, which no training draws; the load is a multiple of the estimate of
`kvgym.agents.evolution.capacity` for the lengths of the first of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kvgym.agents.evolution.capacity import sustained_rate
from kvgym.cli.console import number, percent
from kvgym.experiments.comparison import Comparison, compare, label_of
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.policies.routing import make_router

FIRST_SEED = 2_000_000
OTHERS = ("weighted", "join_shortest_queue", "least_outstanding_work", "round_robin")
METRIC = "e2e_latency_mean"
CLUSTERS: dict[str, Any] = {
    "four times 2 A100": 4,
    "two times 2 A100, two times 4 H100": [
        {"count": 2},
        {"count": 2, "hardware": "llama2-70b-h100-tp4-2023"},
    ],
}
PREDICTIONS: dict[str, Any] = {
    "unknown lengths": {"kind": "none"},
    "noisy lengths (ε = 0.5)": {"kind": "noisy", "epsilon": 0.5},
}


def scenario_of(workers: Any, predictions: Any, load: float, num_requests: int) -> tuple[Scenario, float]:
    """Return a scenario at a load, and its requests per second."""
    workload = {"preset": "lmsys", "num_requests": num_requests, "predictions": predictions}
    base = load_scenario("a100-llama2-70b").override(workers=workers, workload=workload)
    system = base.make_system()
    rate = load * sustained_rate(system, base.make_workload().sample(FIRST_SEED))
    return base.override(workload={**workload, "rate": rate}), rate


def row(comparison: Comparison, learned: str, others: Sequence[str], where: str) -> str:
    """Return a row: the learned router's mean, and by how much it is better than each other one."""
    cells = [where, number(comparison.estimate(learned, METRIC).value)]
    for other in others:
        gain = comparison.improvement(learned, other, METRIC)
        cells.append(f"{percent(gain.value)} ({percent(gain.low)} – {percent(gain.high)})")
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("router", help="name or file of the learned router")
    parser.add_argument("--others", nargs="+", default=OTHERS, help="routers to compare it with")
    parser.add_argument("--policy", default="ranked", help="policy of the workers")
    parser.add_argument("--loads", nargs="+", type=float, default=[0.7, 1.2, 2.0])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--num-requests", type=int, default=2000)
    options = parser.parse_args(arguments)
    learned, *others = (label_of(make_router(spec)) for spec in (options.router, *options.others))
    for known, predictions in PREDICTIONS.items():
        print(f"\n### {known[0].upper()}{known[1:]}\n")
        heads = ["cluster and load", f"`{learned}`", *(f"better than `{other}`" for other in others)]
        print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
        for title, workers in CLUSTERS.items():
            for load in options.loads:
                scenario, rate = scenario_of(workers, predictions, load, options.num_requests)
                comparison = compare(
                    scenario,
                    [options.policy],
                    seeds=range(FIRST_SEED, FIRST_SEED + options.seeds),
                    routers=[options.router, *options.others],
                )
                where = f"{title}, load {load:g} ({rate:.0f}/s)"
                print(row(comparison, learned, others, where), flush=True)
                for name, message in comparison.errors().items():
                    print(f"\n`{name}`: {message}\n")


if __name__ == "__main__":
    main()
