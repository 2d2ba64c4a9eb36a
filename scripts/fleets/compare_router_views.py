"""Compare what routers know of the workers: the table of docs/routing.md.

    python scripts/fleets/compare_router_views.py              half a minute
    python scripts/fleets/compare_router_views.py --load 0.9   nearer to what the workers sustain
    python scripts/fleets/compare_router_views.py --burst      the burst of inference-sim's issue 507


Eight workers serve 2.9 requests a second each, 16 at a time, first come, first served; requests go to the worker with
the fewest unfinished ones, as far as the router knows. Seeds are from 4,000,000.

The burst is `examples/regression_workload_cache_warmup.yaml` of inference-sim: 5,000 requests in 5 s, 85 % of them with
one of three system prompts of 512, 384 and 128 tokens. Its issue 507 runs it on four instances with equal weights of a
cached prefix and of a low load: E2E is 22.9 % lower if the load counts requests from dispatch to completion. Model and
GPU are not named there; here they are Llama-3-8B on an H100.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvgym.cli.console import number
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.knowledge import Knowledge
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

FIRST_SEED = 4_000_000
WORKERS, RATE = 8, 2.9
"""Workers, and requests a second of each when it is always full: 0.05 s of prefill, and 94 sixteenths of 0.05 s."""

METRICS = ("ttft_mean", "ttft_p99", "e2e_latency_mean")

VIEWS: dict[str, dict[str, Any] | None] = {
    "exact": None,
    **{f"scrapes every {s} s": {"router_view": "scraped", "scrape": s} for s in (0.05, 1, 5)},
    **{
        f"scrapes every 5 s and own counts, {n} router{'s' * (n > 1)}": {
            "router_view": "both", "scrape": 5, "routers": n
        }
        for n in (1, 4)
    },
    **{
        f"own counts alone, {n} router{'s' * (n > 1)}": {"router_view": "inflight", "routers": n}
        for n in (1, 4, 8, 16)
    },
}  # fmt: skip
"""Fields of what routers know, by the name of the row."""


def scenario_of(load: float, num_requests: int) -> Scenario:
    """Return eight equal workers under Poisson arrivals, at a share of what they sustain when they are always full."""
    return Scenario(
        name="views",
        batch_time={"kind": "affine", "constant": 0.03, "per_decode_token": 0.00125, "per_prefill_token": 1e-4},
        kv_capacity=16 * 600,
        workload={
            "num_requests": num_requests,
            "lengths": {
                "kind": "independent",
                "prompt": {"kind": "constant", "value": 500},
                "output": {"kind": "lognormal", "median": 78, "mean": 94},
            },
            "arrivals": {"kind": "poisson", "rate": load * WORKERS * RATE},
        },
        workers=WORKERS,
        router="join_shortest_queue",
    )  # fmt: skip


GROUPS = (
    (0.30, (300, 80, 100, 600), 64, 512, 1.0),
    (0.30, (400, 100, 150, 800), 80, 384, 1.0),
    (0.25, (100, 30, 40, 250), 40, 128, 1.0),
    (0.15, (600, 200, 200, 1200), 150, 0, 3.0),
)
"""Clients of the burst: share of the rate; mean, deviation, least and most tokens of their own prompts; mean output;
tokens of the system prompt; coefficient of variation of the times between requests.
"""

BURST_VIEWS: dict[str, Knowledge | None] = {
    "scrapes every 5 s": Knowledge("scraped", interval=5.0),
    "scrapes every 1 s": Knowledge("scraped", interval=1.0),
    "scrapes every 50 ms": Knowledge("scraped", interval=0.05),
    "scrapes every 5 s and own counts": Knowledge("both", interval=5.0),
    "own counts alone": Knowledge("inflight"),
    "exact": None,
}


def burst(seed: int) -> RequestTable:
    """Return the requests of the burst."""
    rng = np.random.default_rng(seed)
    arrival, prompt, output, first = [], [], [], []
    for g, (share, (mean, deviation, least, most), tokens, system, variation) in enumerate(GROUPS):
        n = round(5000 * share)
        shape = 1 / variation**2
        arrival.append(np.cumsum(rng.gamma(shape, 1 / (1000 * share * shape), n)))
        prompt.append(system + np.clip(rng.normal(mean, deviation, n), least, most).astype(int))
        output.append(np.maximum(1, rng.exponential(tokens, n)).astype(int))
        first.append(np.full(n, g if system else -1))
    order = np.argsort(np.concatenate(arrival), kind="stable")
    table = RequestTable.from_columns(
        arrival_time=np.concatenate(arrival)[order], prompt_len=np.concatenate(prompt)[order],
        output_len=np.concatenate(output)[order],
    )  # fmt: skip
    group, unique, rows = np.concatenate(first)[order], 1_000, []
    for i, g in enumerate(group.tolist()):
        blocks = -(-int(table.prompt_len[i]) // 16)
        shared = GROUPS[g][3] // 16 if g >= 0 else 0
        rows.append([*range(g * 100, g * 100 + shared), *range(unique, unique + blocks - shared)])
        unique += blocks - shared
    return table.replace(hashes=BlockHashes.from_rows(rows, table.prompt_len, 16))


def burst_table(seeds: int) -> None:
    """Print the table of the burst."""
    scenario = build_scenario(
        "vllm-v1", hardware="roofline:model=llama3-8b,gpu=h100", prefix_cache="scheduled", workers=4
    )
    system, router = scenario.make_system(), "prefix_aware:prefix=1,queue=1,free=0,relative=false"
    print("| a router knows | E2E mean (s) | TTFT mean (s) | most requests of a worker |\n|---|---|---|---|")
    for name, known in BURST_VIEWS.items():
        found = []
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            own = replace(system, knowledge=known)
            result = simulate(own, burst(seed), "vllm_v1", router=router, seed=seed)
            metrics = compute_metrics(result, ("e2e_latency_mean", "ttft_mean"))
            found.append([*metrics.values(), result.worker["total_routed"].max() / len(result.table)])
        e2e, ttft, share = np.mean(found, axis=0)
        print(f"| {name} | {number(e2e)} | {number(ttft)} | {100 * share:.0f} % |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", type=float, default=0.8, help="share of what the workers sustain")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--num-requests", type=int, default=12_000)
    parser.add_argument("--burst", action="store_true", help="the burst instead")
    options = parser.parse_args(arguments)
    if options.burst:
        burst_table(options.seeds)
        return
    print("| a router knows | TTFT mean (s) | TTFT p99 (s) | E2E mean (s) |\n|---|---|---|---|")
    scenario = scenario_of(options.load, options.num_requests)
    for name, fields in VIEWS.items():
        known = scenario if fields is None else scenario.override(knowledge=fields)
        found = compare(known, ["fcfs"], seeds=range(FIRST_SEED, FIRST_SEED + options.seeds))
        (label,) = found.policies
        cells = (number(found.estimate(label, metric).value) for metric in METRICS)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
