"""Train autoscalers on ``scale-day`` and compare them with fixed sizes and tuned rules: the table of docs/fleets.md.

    python scripts/fleets/train_autoscaler.py                        five agents, then the tables of all scenarios
    python scripts/fleets/train_autoscaler.py --agents 0             the tables of rules alone
    python scripts/fleets/train_autoscaler.py --runs runs/scale      agents that are there already are not trained again

Sizes, and the one weight of each rule, are chosen on seeds 0 and 1; agents learn on other seeds. The tables have ten
test seeds from 3,000,000, the same for all; the plan in hindsight is for the first of them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from compare_autoscalers import EFFORT, FIRST_SEED, TUNING, cheapest

from kvgym.agents import load_training, train
from kvgym.experiments.comparison import Comparison, compare
from kvgym.experiments.fleet.choices import fixed_sizes
from kvgym.experiments.scenario import load_scenario
from kvgym.studies.capacity.hindsight import FleetRuns, plan_in_hindsight

SCENARIOS = ("scale-day", "scale-fast", "scale-slow", "scale-failures")

RULES: dict[str, tuple[str, ...]] = {
    "hpa": tuple(f"hpa:target={n}" for n in (3, 4, 5, 6, 8, 10, 13, 16)),
    "hpa, down 60 s": tuple(f"hpa:target={n},down=60" for n in (3, 4, 5, 6, 8, 10, 13, 16)),
    "keda, ongoing requests": tuple(f"keda:metric=ongoing,target={n}" for n in (3, 4, 5, 6, 8, 10, 13, 16)),
    "ray": tuple(f"ray:target={n}" for n in (3, 4, 6, 8, 10, 13)),
    "foresight of the mean rate": tuple(f"foresight:share={x}" for x in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)),
}
"""Settings of each rule that are tried; foresight knows the rates to come, as no rule of a real fleet does."""


HINDSIGHT = "fixed, the best of the test seeds"
"""A size that nothing but hindsight could choose."""


def trained(folder: Path, seed: int) -> str:
    """Return the file of the agent of a training seed, after training it if it is not there."""
    file = folder / f"{seed}" / "best.json"
    if not (folder / f"{seed}" / "final.json").is_file():
        began = time.process_time()
        config = load_training("scale").model_copy(update={"seed": seed, "jobs": 1})
        train(config, folder / f"{seed}")
        print(f"agent {seed}: {time.process_time() - began:.0f} s of CPU time", flush=True)
    return str(file)


def table(name: str, agents: Sequence[str], seeds: int) -> None:
    """Print the table of a scenario: the best size, the rules with their best settings, and agents."""
    scenario = load_scenario(name)
    rules = {"best fixed": tuple(fixed_sizes(scenario)), **RULES}
    every = tuple(dict.fromkeys(spec for specs in rules.values() for spec in specs))
    tuned = compare(scenario, autoscalers=every, seeds=TUNING)
    chosen = {rule: cheapest(tuned, specs) for rule, specs in rules.items()}
    sizes = rules["best fixed"]
    specs = tuple(dict.fromkeys((*chosen.values(), *sizes, *agents)))
    found = compare(scenario, autoscalers=specs, seeds=range(FIRST_SEED, FIRST_SEED + seeds))
    print(f"\n| {name} | setting | cost in GPU-hours | billed | missed |\n|---|---|---|---|---|")
    chosen = {"best fixed": chosen["best fixed"], HINDSIGHT: cheapest(found, sizes), **chosen}
    for rule, spec in chosen.items():
        print(f"| {rule} | `{spec.partition(':')[2]}` | {cells(found, spec)} |")
    for k, agent in enumerate(agents):
        print(f"| agent {k} | | {cells(found, agent)} |")
    runs = FleetRuns.of(scenario, FIRST_SEED)
    _, plan = plan_in_hindsight(runs, chosen["foresight of the mean rate"], effort=EFFORT)
    cost, hours, met = (plan[name] for name in ("fleet_cost", "gpu_hours", "slo_attainment"))
    print(
        f"| plan in hindsight, one seed | | {cost:.2f} | {hours:.2f} | {100 * (1 - met):.2f} % |", flush=True
    )
    rules_alone = [chosen[rule] for rule in RULES if not rule.startswith("foresight")]
    best = cheapest(found, rules_alone)
    bases = {rule: chosen[rule] for rule in ("best fixed", HINDSIGHT)} | {f"the best rule, {best}": best}
    for label, spec in bases.items():
        if agents:
            print(f"\nsaved against {label}: {saved(found, agents, spec)}")


def cells(found: Comparison, label: str) -> str:
    """Return the cost with its interval, the billed GPU-hours and the share of requests that missed their target."""
    cost = found.estimate(label, "fleet_cost")
    hours, met = (found.estimate(label, name).value for name in ("gpu_hours", "slo_attainment"))
    return f"{cost.value:.2f} ({cost.low:.2f} … {cost.high:.2f}) | {hours:.2f} | {100 * (1 - met):.2f} %"


def saved(found: Comparison, agents: Sequence[str], spec: str) -> str:
    """Return the mean saving of the agents over another autoscaler, per cent of its cost, and that of each."""
    base = found.values(spec, "fleet_cost").mean()
    each = [100 * (1 - found.values(agent, "fleet_cost").mean() / base) for agent in agents]
    half = (
        2.776 * np.std(each, ddof=1) / np.sqrt(len(each)) if len(each) == 5 else np.nan
    )  # t for four degrees
    return f"{np.mean(each):.1f} % ± {half:.1f} (each: {', '.join(f'{x:.1f}' for x in each)})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=5, help="training seeds")
    parser.add_argument("--seeds", type=int, default=10, help="test seeds of each scenario")
    parser.add_argument("--runs", type=Path, default=Path("runs/scale"), help="folder of the training runs")
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS, help="scenarios with a table")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", RuntimeWarning)
    agents = [trained(options.runs, seed) for seed in range(options.agents)]
    for name in options.scenarios:
        table(name, agents if name == "scale-day" else (), options.seeds)


if __name__ == "__main__":
    main()
