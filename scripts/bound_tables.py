"""Print the tables of docs/bounds.md: schedulers against the bound, and what is left to gain by load.

python scripts/bound_tables.py azure_2023_conv.csv              # about ten minutes
python scripts/bound_tables.py azure_2023_conv.csv --quick      # check that it runs; figures mean nothing
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from kvgym.cli.console import interval, markdown_table, number
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import BOUNDED, Comparison, compare
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.studies.capacity.finding import find_capacity
from kvgym.theory.hindsight.bounds import REFERENCE

POLICIES = ("mc_sf", "ranked", "vllm_v1", "sarathi", "mc_benchmark", "fcfs", "alpha_greedy", "alpha_beta")
"""Schedulers of the tables, including the scenarios' own."""

LOADS = (0.5, 1.0, 2.0)
"""Rates, relative to the highest one at which the reference's backlog does not grow."""

HARDWARE = ("llama2-70b-a100-tp2", "llama3-8b-a100-tp1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparisons and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, help="the Azure 2023 conversation trace, or another")
    parser.add_argument("--quick", action="store_true", help="few requests and one seed")
    given = parser.parse_args(arguments)
    count, quick = (100, True) if given.quick else (None, False)
    default = build_scenario(OVERLOAD_SCENARIO, num_requests=count)
    _compared("The default scenario", default, 1 if quick else 5)
    slotted = load_scenario("mc-sf-model-1")
    _compared("Slotted time: `mc-sf-model-1`", slotted, 2 if quick else 50, ("mc_sf", "mc_benchmark", "fcfs"))
    azure = build_scenario(
        OVERLOAD_SCENARIO,
        hardware="llama3-8b-a100-tp1",
        trace=given.trace,
        too_long="drop",
        num_requests=count,
    )
    _compared("The Azure conversation trace of 2023, Llama-3-8B on one A100", azure, 1)
    for hardware in HARDWARE:
        _by_load(hardware, count or 2000, 1 if quick else 3)
    return 0


def _compared(title: str, scenario: Scenario, seeds: int, policies: Sequence[str] = POLICIES) -> None:
    """Print a table with a row per policy, the bound last."""
    started = time.process_time()
    found = compare(scenario, policies, seeds=seeds, bound=True)
    rows = {}
    for policy in sorted(found.policies, key=lambda p: found.estimate(p, BOUNDED).value):
        mean = found.estimate(policy, BOUNDED)
        name = "clairvoyant" if policy in found.clairvoyant else ""
        rows[policy] = (number(mean.value), interval(mean), f"≤ {number(found.at_most(policy))}", name)
    rows["no scheduler below"] = (number(found.bound().value), interval(found.bound()), "", _methods(found))
    print(f"\n### {title}\n")
    print(markdown_table(("policy", "E2E mean (s)", "95 % interval", "× optimum", ""), rows))
    seconds, over = time.process_time() - started, "one seed" if seeds == 1 else f"{seeds} seeds"
    print(f"\n{sum(found.num_requests):,} requests on {over}, {seconds:.0f} s of processor time.")


def _methods(found: Comparison) -> str:
    return "; ".join(sorted({bound.method for bound in found.bounds}))


def _by_load(hardware: str, count: int, seeds: int) -> None:
    """Print a table with a row per load: bound, reference and the best scheduler."""
    scenario = build_scenario(OVERLOAD_SCENARIO, hardware=hardware, num_requests=count)
    capacity = find_capacity(scenario, [], [REFERENCE], seeds=1, num_requests=count, curve=(), tolerance=0.05)
    (rate,) = capacity.capacities[0].held
    rows = {}
    for load in LOADS:
        loaded = build_scenario(OVERLOAD_SCENARIO, hardware=hardware, num_requests=count, rate=load * rate)
        found = compare(loaded, POLICIES, seeds=seeds, bound=True)
        means = {p: found.estimate(p, BOUNDED).value for p in found.policies}
        best = min((p for p in means if p not in found.clairvoyant), key=lambda p: means[p])
        bound, known = found.bound().value, means[REFERENCE]
        rows[f"{load:g} × {rate:.2f}/s"] = (
            number(bound),
            number(known),
            f"{best}: {number(means[best])}",
            f"{100 * (1 - known / means[best]):.1f} %",
            f"{100 * (1 - bound / means[best]):.1f} %",
            _methods(found),
        )
    headings = (
        "load", "no scheduler below (s)", "clairvoyant (s)", "best scheduler (s)", "the clairvoyant gains",
        "left at most", "bound",
    )  # fmt: skip
    print(f"\n### What is left to gain: {hardware}\n\n{markdown_table(headings, rows)}")


if __name__ == "__main__":
    raise SystemExit(main())
