"""Compare autoscalers with the best fixed size: the table of docs/fleets.md.

    python scripts/compare_autoscalers.py                 all of it
    python scripts/compare_autoscalers.py --seeds 1       one test seed for each load

A worker serves about 3 requests a second, 16 at a time. The load is a sinusoid from 2.5 to 20 requests a second, over
half an hour with a period of 15 minutes or over an hour with one of an hour. The one weight of each rule is chosen on
seeds 0 and 1; the table has seeds from 3,000,000. Cost is in GPU-hours: those that are billed, and 20 GPU-seconds for
each request that misses a time to first token of 2 s.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import numpy as np

from kvgym.experiments.comparison import Comparison, compare
from kvgym.experiments.fleet.choices import fixed_sizes
from kvgym.experiments.scenario import Scenario

FIRST_SEED = 3_000_000
TUNING = (0, 1)
LOADS = {"period 15 min": (900.0, 1800.0), "period 60 min": (3600.0, 3600.0)}
"""Period and length of each load, seconds."""

RULES: dict[str, tuple[str, ...]] = {
    "hpa, down 300 s": tuple(f"hpa:target={n}" for n in (4, 6, 8, 10, 12)),
    "hpa, down 60 s": tuple(f"hpa:target={n},down=60" for n in (4, 6, 8, 10, 12)),
    "ray": tuple(f"ray:target={n}" for n in (4, 6, 8, 10, 12)),
    "keda, waiting requests": tuple(f"keda:target={n}" for n in (0.25, 0.5, 1, 2)),
    "keda, ongoing requests": tuple(f"keda:metric=ongoing,target={n}" for n in (4, 6, 8, 10, 12)),
}
"""Settings of each rule that are tried."""


def scenario_of(period: float, duration: float, startup: float) -> Scenario:
    """Return a fleet of up to 14 workers under a load."""
    rate = 11.25
    return Scenario(
        name="fleet",
        batch_time={"kind": "affine", "constant": 0.03, "per_decode_token": 0.00125, "per_prefill_token": 1e-4},
        kv_capacity=16 * 600,
        workload={
            "num_requests": int(rate * duration),
            "lengths": {
                "kind": "independent",
                "prompt": {"kind": "constant", "value": 500},
                "output": {"kind": "lognormal", "median": 78, "mean": 94},
            },
            "arrivals": {"kind": "sinusoid", "rate": rate, "amplitude": 7 / 9, "period": period, "phase": -np.pi / 2},
            "ttft_slo": 2.0,
        },
        workers=({"count": 2, "least": 1, "most": 14, "startup": startup},),
        fleet={"penalty": 20.0},
        router="join_shortest_queue",
        policies=("fcfs",),
    )  # fmt: skip


def cheapest(found: Comparison, specs: Sequence[str]) -> str:
    """Return the spec with the least mean cost."""
    costs = [found.estimate(spec, "fleet_cost").value for spec in specs]
    return specs[int(np.nanargmin(costs))]


def cell(found: Comparison, label: str) -> str:
    """Return the cost, the billed GPU-hours and the share of requests that missed their target."""
    cost, hours, met = (
        found.estimate(label, name).value for name in ("fleet_cost", "gpu_hours", "slo_attainment")
    )
    return f"{cost:.2f} ({hours:.2f}; {100 * (1 - met):.1f} %)"


def column(scenario: Scenario, seeds: int) -> dict[str, str]:
    """Return the cells of a load and a start-up time by rule, with the settings that were chosen."""
    sizes = fixed_sizes(scenario)
    rules = {"best fixed": tuple(sizes), **RULES}
    every = tuple(dict.fromkeys(spec for specs in rules.values() for spec in specs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        tuned = compare(scenario, autoscalers=every, seeds=TUNING)
        chosen = {rule: cheapest(tuned, specs) for rule, specs in rules.items()}
        specs = tuple(dict.fromkeys(chosen.values()))
        found = compare(scenario, autoscalers=specs, seeds=range(FIRST_SEED, FIRST_SEED + seeds))
    return {rule: f"{cell(found, spec)} `{spec.partition(':')[2]}`" for rule, spec in chosen.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="test seeds of each load")
    options = parser.parse_args(arguments)
    columns = {
        f"{load}, start-up {startup:g} s": column(scenario_of(*times, startup), options.seeds)
        for load, times in LOADS.items()
        for startup in (100.0, 10.0)
    }
    print(f"| cost in GPU-hours (billed; missed) | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for rule in ("best fixed", *RULES):
        print(f"| {rule} | {' | '.join(cells[rule] for cells in columns.values())} |")


if __name__ == "__main__":
    main()
