"""How many workers a load needs."""

from __future__ import annotations

from harness import print_table
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.statistics import Estimate
from kvgym.runner import simulate
from kvgym.theory.stability import provision
from papers.stab.queues import estimates, queue_figures, signed
from papers.stab.setting import FCFS, SLACK, M, Plan, rate_of, replace_workload


def print_provisioning(plan: Plan) -> dict[str, dict[str, Estimate]]:
    """Print how many workers a load of 24 requests per second needs, and what one fewer does."""
    print("## Provisioning, 1:1, 24 requests per second\n")
    service, rate = rate_of("stab-1-1", 0.0372), 24.0
    counts = {
        "⌈λ/μ⌉": provision(rate, service),
        "⌈λ/(0.9 μ)⌉": provision(rate, service, utilisation=0.9),
        "λ < nμ(1−δ)": provision(rate, service, slack=SLACK),
    }
    print(f"μ = {service:.3f}: " + ", ".join(f"{rule} gives {n}" for rule, n in counts.items()) + ".\n")
    enough = counts["⌈λ/μ⌉"]
    rows, found = [], {}
    one = load_scenario("stab-1-1").make_system()
    for workers in (enough - 1, enough, enough + 1):
        runs = []
        for seed in range(plan.seeds):
            table = replace_workload("stab-1-1", rate, plan.requests_8).sample(seed)
            result = simulate(one.replicate(workers), table, FCFS, router="round_robin", log=True)
            runs.append(queue_figures(result, (1 - SLACK) * M))
        e = estimates(runs)
        found[str(workers)] = e
        load = f"{rate / (workers * service):.3f}"
        worst = f"{max(r['max'] for r in runs):.0f}"
        rows.append((str(workers), load, signed(e["slope"]), f"{e['mean'].value:.1f}", worst))
    print_table(("workers", "λ/(nμ)", "slope of waiting, 1/s", "mean waiting", "most waiting"), rows)
    return found
