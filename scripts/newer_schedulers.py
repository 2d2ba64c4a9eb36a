"""Compare the newer schedulers with `ranked` and FCFS, and try their published claims: the tables of its page.

    python scripts/newer_schedulers.py --azure azure.csv --mooncake mooncake.jsonl    minutes on two cores
    python scripts/newer_schedulers.py --only claims --seeds 2 --num-requests 100      seconds

Every policy is tuned alike: each of its settings in SETTINGS runs on two seeds that the tables do not use, and the one
with the least mean latency counts. Traces give pairs of lengths, drawn with replacement; arrivals are Poisson.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvgym import compute_metrics, make_policy, simulate
from kvgym.errors import LivelockError
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.statistics import mean_interval
from kvgym.runner import SimulationResult

TUNING_SEEDS = (9001, 9002)
FIRST_SEED = 3_000_000

MARGINS = tuple(f"protection={p}" for p in (0.0, 0.05, 0.1, 0.2))
SETTINGS: dict[str, tuple[str, ...]] = {
    "fcfs": MARGINS,
    "ranked": ("", "prompt=0.0", "footprint=1.0", "waiting=2.0"),
    "mc_sf": ("", "protection=0.1", "protection=0.15", "protection=0.2"),
    "learned_rank": MARGINS,
    "tie": MARGINS,
    "trail": MARGINS,
    "bounded_srpt": MARGINS,
    "gamma_boost": tuple(f"gamma={g},{m}" for g in (0.03, 0.3) for m in MARGINS[1:3]),
    "after_sagesched": MARGINS,
    "fast_serve": MARGINS,
    "past_future": ("reserved=0.03", "reserved=0.1", "initial=128", "initial=128,reserved=0.1"),
    "vtc": MARGINS,
}
PREDICTIONS = {"kind": "distribution", "shape": "log_t", "sigma": 0.5, "renew_every": 20, "renew_error": 0.5}
"""What all policies may observe: a distribution, its mean as length, and renewals."""


def scenario_of(lengths: dict[str, Any], base: str, rate: float, count: int, **changes: Any) -> Scenario:
    """Return a scenario with requests of ten clients."""
    workload = {
        **lengths, "num_requests": count, "predictions": PREDICTIONS, "clients": {"count": 10, "zipf": 1.0}, **changes,
    }  # fmt: skip
    if "preset" in lengths:
        return load_scenario(base).override(workload={**workload, "rate": rate})
    return load_scenario(base).override(workload={**workload, "arrivals": {"kind": "poisson", "rate": rate}})


def play(scenario: Scenario, spec: str, seeds: Iterable[int]) -> list[SimulationResult]:
    """Return the runs of a policy, none if one livelocks."""
    system, workload = scenario.make_system(), scenario.make_workload()
    found = []
    for seed in seeds:
        table = scenario.sample(workload, seed, system.usable_capacity)
        try:
            found.append(simulate(system, table, make_policy(spec), seed=seed))
        except LivelockError:
            return []
    return found


def mean_latency(runs: Sequence[SimulationResult]) -> float:
    """Return the mean latency of runs, seconds; inf without any."""
    return float(np.mean(values(runs, "e2e_latency_mean"))) if runs else math.inf


def values(runs: Sequence[SimulationResult], metric: str) -> list[float]:
    """Return a metric of each run; ``per_token`` is the mean latency per output token."""
    if metric == "per_token":
        return [
            float(np.mean((r.requests["finish_time"] - r.table.arrival_time) / r.table.output_len))
            for r in runs
        ]
    return [compute_metrics(r, [metric])[metric] for r in runs]


def tuned(scenario: Scenario, name: str) -> str:
    """Return the setting of a policy with the least mean latency on the tuning seeds."""
    specs = [f"{name}:{setting}" if setting else name for setting in SETTINGS[name]]
    return min(specs, key=lambda spec: mean_latency(play(scenario, spec, TUNING_SEEDS)))


def shown(figures: Sequence[float], digits: int = 3) -> str:
    """Return a mean with its interval."""
    e = mean_interval(figures)
    return f"{e.value:.{digits}g} ({e.low:.{digits}g} – {e.high:.{digits}g})"


def comparison(title: str, scenario: Scenario, seeds: Sequence[int]) -> None:
    """Print the table of all policies on one workload."""
    print(
        f"\n### {title}\n\n| policy | mean latency, s | P99, s | mean TTFT, s | evictions |\n|---|---|---|---|---|"
    )
    rows = []
    for name in SETTINGS:
        spec = tuned(scenario, name)
        runs = play(scenario, spec, seeds)
        cells = [
            shown(values(runs, metric)) if runs else "livelock"
            for metric in ("e2e_latency_mean", "e2e_latency_p99", "ttft_mean", "evictions")
        ]
        rows.append((mean_latency(runs), f"| `{spec}` | {' | '.join(cells)} |"))
    print("\n".join(text for _, text in sorted(rows)), flush=True)


def ratios(scenario: Scenario, one: str, other: str, seeds: Sequence[int], metric: str) -> list[float]:
    """Return a metric of the first policy divided by that of the second, for each seed, both tuned."""
    pairs = [values(play(scenario, tuned(scenario, name), seeds), metric) for name in (one, other)]
    return [a / b for a, b in zip(*pairs, strict=True)]


def claims(count: int, seeds: Sequence[int]) -> None:
    """Print the figures of the claims."""

    def lmsys(rate: float, **changes: Any) -> Scenario:
        return scenario_of({"preset": "lmsys"}, "a100-llama2-70b", rate, count, **changes)

    print("\n### Claims\n\n| what | figure |\n|---|---|")
    lines: list[tuple[str, Callable[[], str]]] = []
    for tau in (0.19, 0.56, 1.0):
        ranks = lmsys(24, predictions={"kind": "rank", "tau": tau})
        lines.append(
            (
                f"`fcfs` / `learned_rank`, mean latency, τ = {tau}",
                lambda s=ranks: shown(ratios(s, "fcfs", "learned_rank", seeds, "e2e_latency_mean")),
            )
        )
    usual = lmsys(24)
    exact = lmsys(24, predictions={"kind": "exact"})
    lines += [
        (
            "`learned_rank` / `tie`, mean latency per token",
            lambda: shown(ratios(usual, "learned_rank", "tie", seeds, "per_token")),
        ),
        (
            "`fcfs` / `trail`, mean latency",
            lambda: shown(ratios(usual, "fcfs", "trail", seeds, "e2e_latency_mean")),
        ),
        (
            "`gamma_boost` / `bounded_srpt`, P99 latency, exact lengths",
            lambda: shown(ratios(exact, "gamma_boost", "bounded_srpt", seeds, "e2e_latency_p99")),
        ),
        (
            "`after_sagesched` / `ranked`, mean latency",
            lambda: shown(ratios(usual, "after_sagesched", "ranked", seeds, "e2e_latency_mean")),
        ),
    ]
    for name in ("vtc", "fcfs"):
        runs = play(usual, f"{name}:protection=0.1", seeds)
        longest = max(int(r.table.prompt_len.max()) for r in runs)
        bound = 2 * max(longest, 2 * int(runs[0].system.usable_capacity))
        lines.append(
            (
                f"service difference of `{name}`, tokens (bound {bound:,})",
                lambda r=runs: shown(values(r, "service_difference"), 4),
            )
        )
    for what, figure in lines:
        print(f"| {what} | {figure()} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", type=Path, help="Azure's conversation trace of 2023, CSV")
    parser.add_argument("--mooncake", type=Path, help="Mooncake's conversation trace, JSON lines")
    parser.add_argument("--only", choices=("claims", "default", "azure", "mooncake"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--num-requests", type=int, default=600)
    options = parser.parse_args(arguments)
    seeds, count = range(FIRST_SEED, FIRST_SEED + options.seeds), options.num_requests
    if options.only in (None, "claims"):
        claims(count, seeds)
    if options.only in (None, "default"):
        title = "Llama-2-70B on two A100, LMSYS lengths, 24 requests per second"
        comparison(title, scenario_of({"preset": "lmsys"}, "a100-llama2-70b", 24, count), seeds)
    for name, path, rate in (("azure", options.azure, 8.0), ("mooncake", options.mooncake, 0.8)):
        if path is not None and options.only in (None, name):
            lengths = {"lengths": {"kind": "trace", "path": str(path), "mode": "resample"}}
            limits = {"max_total_len": 30_000, "policy": "clip"}
            title = f"Llama-3-8B on one A100, lengths of {name.title()}, {rate:g} requests per second"
            comparison(title, scenario_of(lengths, "a100-llama3-8b", rate, count, limits=limits), seeds)


if __name__ == "__main__":
    main()
