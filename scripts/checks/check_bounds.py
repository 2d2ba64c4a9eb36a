"""Search for a schedule that beats a bound: random small instances, every policy, every rule of the engine.

python scripts/checks/check_bounds.py --jobs 2       # 10,000 instances, about 10 minutes; Ctrl-C ends it with a summary
python scripts/checks/check_bounds.py --first 5000 --instances 500
python scripts/checks/check_bounds.py --policies mc_sf,ranked --json out.json

Each run checks the instances from --first on; --json records which ones.

Exits with 1 if a bound is broken and names the instance; --first and --instances 1 repeat it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.batch_time import (
    COMPOSITIONS,
    AffineBatchTime,
    BatchTimeModel,
    PiecewiseBatchTime,
    RooflineBatchTime,
    TileBatchTime,
    UnitBatchTime,
    hardware_names,
    load_hardware,
)
from kvgym.batch_time.models.piecewise import QUANTITIES
from kvgym.errors import ConfigError, LivelockError
from kvgym.metrics.catalogue import metric_info
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES
from kvgym.policies.routing import ROUTERS
from kvgym.policies.runner import simulate
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System, Worker
from kvgym.theory.hindsight.calibrated.bounds import METRICS, bounds_calibrated
from kvgym.utils.execution import make_executor
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

TOLERANCE = 1e-9
"""Relative difference of sums of seconds that their order may cause."""

PORTION = 20
"""Instances per task of a process."""


def random_model(rng: np.random.Generator) -> BatchTimeModel:
    """Return a batch-time model of any kind."""
    kind = rng.integers(7)
    if kind == 0:
        return UnitBatchTime()
    if kind == 1:
        a, b, c, d = rng.exponential([0.5, 0.02, 0.05, 0.005]) * rng.integers(0, 2, 4)
        return AffineBatchTime(a + 0.01, b, c, d, include_new=bool(rng.integers(2)))
    if kind == 2:
        count = int(rng.integers(1, 5))
        places = np.cumsum(rng.integers(1, 30, count)).tolist()
        times = np.cumsum(rng.exponential(0.3, count)).tolist()
        return PiecewiseBatchTime(str(rng.choice(list(QUANTITIES))), places, times, rng.exponential(0.02))
    overhead = float(rng.exponential(0.003))
    if kind == 3:
        return RooflineBatchTime("a100-80gb", "llama3-8b", overhead=overhead)
    if kind == 4:
        return TileBatchTime("a100-80gb", "llama3-8b", t_col=int(rng.choice([4, 16, 128])), overhead=overhead)
    hardware = load_hardware(str(rng.choice(list(hardware_names()))))
    engine = {"base_ms": float(rng.exponential(5)), "per_request_ms": float(rng.exponential(0.3))}
    return hardware.batch_time(
        composition=str(rng.choice(list(COMPOSITIONS))), engine=engine if rng.random() < 0.5 else None
    )


def random_requests(rng: np.random.Generator, second: float) -> RequestTable:
    """Return up to 20 requests with all columns, at times long prompts among short ones.

    Args:
        rng: what is drawn from.
        second: about what a batch takes.
    """
    n, most = int(rng.integers(1, 21)), int(rng.choice([6, 20, 80]))
    output = np.minimum(rng.geometric(2 / most, n), most)
    guess = np.maximum(1, output + (rng.integers(-2, 3, n) if rng.random() < 0.5 else 0))
    gap = second * rng.choice([0.0, 0.3, 2.0, 20.0])
    prompt = rng.integers(1, int(rng.choice([3, 12, most])) + 1, n)
    if rng.random() < 0.3:
        prompt[: rng.integers(1, 4)] *= int(rng.choice([10, 100]))
    return RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(gap, n)),
        prompt_len=prompt,
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 2,
        class_id=rng.integers(0, 2, n),
        ttft_slo=second * rng.uniform(1, 20, n),
        tbt_slo=second * rng.uniform(0.5, 3, n),
        classes=(ClassStatistics("short", 0.2, 5.0, 3.0), ClassStatistics("long", 0.2, 5.0, 6.0)),
    )


def random_instance(seed: int) -> tuple[System, RequestTable, str | None]:
    """Return a system, requests for it and, for a cluster, a router."""
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    table = random_requests(rng, float(model(num_decodes=1, decode_context=10)))
    packed = rng.random() < 0.1
    if packed:  # a batch that takes all memory can serve all
        table = table.replace(arrival_time=np.zeros(len(table)), output_len=np.ones(len(table), np.int64))
    longest = int((table.prompt_len + table.output_len).max())
    block = int(rng.choice([1, 1, 2, 5, 16]))
    peaks = -(-(table.prompt_len + table.output_len) // block) * block
    least = -(-longest // block) * block

    def capacity() -> int:
        if packed or rng.random() < 0.15:
            return int(peaks.sum())  # filled to the last block by all requests at their last tokens
        return least + int(longest * rng.choice([0.0, 0.3, 1.5, 8.0]) * rng.random()) + 1

    rules: dict[str, Any] = {
        "first_token": str(rng.choice(list(FIRST_TOKEN))),
        "progress_on_evict": str(rng.choice(list(PROGRESS_ON_EVICT))),
        "requeue": str(rng.choice(list(REQUEUE))),
        "swap_time": float(rng.choice([0.0, 1e-3])),
        "block_size": block,
        "stall_limit": 2_000,
    }
    shape = rng.random()
    if shape < 0.7:
        return System(kv_capacity=capacity(), batch_time=model, **rules), table, None
    count = int(rng.integers(2, 5))
    roles = ["mixed"] * count if shape < 0.9 else ["prefill"] + ["decode"] * (count - 1)
    workers = [Worker(capacity(), model if rng.random() < 0.6 else random_model(rng), role) for role in roles]
    moved = {
        "transfer_latency": float(rng.choice([0.0, 0.01])),
        "transfer_time": float(rng.choice([0.0, 1e-4])),
    }
    return System.cluster(workers, **rules, **moved), table, str(rng.choice(list(ROUTERS)))


@dataclass
class Check:
    """What became of one instance.

    Attributes:
        runs: simulations that finished.
        broken: for each bound that a run beat: policy, metric, bound and figure.
        ratios: least figure over bound by metric (bound over figure where more is better).
    """

    runs: int
    broken: list[tuple[str, str, float, float]]
    ratios: dict[str, float]


def check_instance(seed: int, policies: Sequence[str]) -> Check:
    """Run policies on an instance and compare their results with its bounds."""
    system, table, router = random_instance(seed)
    bounds = {metric: bound.value for metric, bound in bounds_calibrated(table, system).items()}
    found = Check(0, [], {})
    for policy in policies:
        try:
            result = simulate(system, table, policy, router=router, seed=seed)
        except (ConfigError, LivelockError):
            continue  # the policy does not support this system, or livelocks; such runs prove nothing
        found.runs += 1
        for metric, figure in compute_metrics(result, list(bounds)).items():
            ends = (figure, bounds[metric])
            above, below = ends if metric_info(metric).lower_is_better else ends[::-1]
            ratio = above / below if below else np.inf
            found.ratios[metric] = min(found.ratios.get(metric, np.inf), ratio)
            if ratio < 1 - TOLERANCE:
                found.broken.append((policy, metric, bounds[metric], figure))
    return found


class Checks:
    """Checks instances in one process after the other; see :mod:`kvgym.utils.execution`.

    Args:
        policies: to run on each.
    """

    def __init__(self, policies: Sequence[str]) -> None:
        self.policies = tuple(policies)

    def __call__(self, seeds: Sequence[int], /) -> list[tuple[int, Check]]:
        """Return the check of each instance."""
        return [(seed, check_instance(seed, self.policies)) for seed in seeds]


def summary(ratios: dict[str, list[float]]) -> list[str]:
    """Return lines on how near the best policy of each instance came to the bounds."""
    lines = []
    for metric, values in ratios.items():
        low, middle, high = np.percentile(values, (0, 50, 90), method="lower")
        reached = np.mean(np.array(values) < 1 + 1e-6)
        lines.append(
            f"{metric:20s} best policy / bound: least {low:.6f}, median {middle:.3f}, 90 % {high:.3f}; reached in "
            f"{reached:.1%} of instances"
        )
    return lines


def main() -> int:
    """Check the requested instances."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one, which is its seed")
    parser.add_argument("--policies", help="comma-separated; all that are registered by default")
    parser.add_argument("--jobs", type=int, default=1, help="processes; 0 = as many as there are cores")
    parser.add_argument("--json", type=Path, help="write the outcome to this file")
    options = parser.parse_args()
    policies = options.policies.split(",") if options.policies else list(POLICIES)
    started, checked = time.perf_counter(), dict[int, Check]()
    seeds = range(options.first, options.first + options.instances)
    portions = [seeds[k : k + PORTION] for k in range(0, len(seeds), PORTION)]
    reported = 0
    try:
        with make_executor(Checks(policies), options.jobs) as executor:
            for _, found in executor.stream(portions):
                checked.update(found)
                _print_broken(found)
                if len(checked) >= reported + 100:
                    reported = len(checked)
                    left = (options.instances - reported) * (time.perf_counter() - started) / reported
                    print(f"{reported:,} instances; {left:,.0f} s left", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    seconds = time.perf_counter() - started
    runs = sum(check.runs for check in checked.values())
    broken = [(seed, *entry) for seed in sorted(checked) for entry in checked[seed].broken]
    print(
        f"{len(checked):,} instances x {len(policies)} policies, {runs:,} runs in {seconds:,.0f} s: "
        f"{len(broken)} broken"
    )
    by_metric = {m: [c.ratios[m] for c in checked.values() if m in c.ratios] for m in METRICS}
    print("\n".join(summary({m: v for m, v in by_metric.items() if v})))
    for policy, count in Counter(entry[1] for entry in broken).most_common():
        print(f"  {policy}: {count}")
    if options.json:
        outcome = {
            "instances": len(checked),
            "seeds": _spans(sorted(checked)),
            "runs": runs,
            "seconds": seconds,
            "broken": broken,
            "policies": policies,
        }
        options.json.write_text(json.dumps(outcome, indent=2) + "\n")
    return 1 if broken else 0


def _print_broken(found: list[tuple[int, Check]]) -> None:
    for seed, check in found:
        for policy, metric, bound, figure in check.broken:
            text = f"instance {seed}: {policy} has {metric} {figure!r} where the bound is {bound!r}"
            print(text, flush=True)


def _spans(seeds: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of successive numbers."""
    starts = [s for k, s in enumerate(seeds) if k == 0 or seeds[k - 1] != s - 1]
    ends = [s for k, s in enumerate(seeds) if k + 1 == len(seeds) or seeds[k + 1] != s + 1]
    return list(zip(starts, ends, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
