"""Compare routers with prefix caches: the tables of docs/routing.md.

    python scripts/fleets/compare_prefix_routers.py tune                     the best values of each router
    python scripts/fleets/compare_prefix_routers.py sessions                 coding agents on 4 and 16 workers
    python scripts/fleets/compare_prefix_routers.py mooncake --trace FILE    Mooncake's conversations
    python scripts/fleets/compare_prefix_routers.py sessions --routers lmetric --staleness 0.1    caches known late

Each takes a minute or two. Routers are tuned on seeds from 0; the tables have seeds from 3,000,000, which neither
tuning nor training draws.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

from kvgym.cli.console import number
from kvgym.experiments.comparison import Comparison, compare, label_of
from kvgym.experiments.scenario import Scenario
from kvgym.policies.routing import make_router

FIRST_SEED = 3_000_000
METRICS = ("ttft_mean", "ttft_p99", "e2e_latency_mean", "hit_rate")
TUNED = "e2e_latency_mean"
SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "prefix_aware": {"prefix": (1, 2, 4, 8), "queue": (1, 4), "relative": (True, False)},
    "cache_aware": {"threshold": (0.3, 0.5, 0.8), "absolute": (4, 16, 64)},
    "lmetric": {"queued": (False, True)},
    "preble": {"output": (5, 45, 200)},
}
"""Values that are tried for each router."""

PUBLISHED = (
    "round_robin",
    "join_shortest_queue",
    "least_outstanding_work",
    "session_affinity",
    "prefix_aware",
    "prefix_aware:prefix=3,queue=2,free=2,relative=false",
    "cache_aware",
    "lmetric",
    "preble",
    "weighted:cached=1",
)
"""Routers without tuning, with the values of their sources."""


def scenario_of(workers: int, workload: dict[str, Any], unit: int, staleness: float = 0.0) -> Scenario:
    """Return the workers of the tables with prefix caches: Llama-3-8B on an H100 each."""
    return Scenario(
        name=f"{workers} workers",
        hardware={"model": "llama3-8b", "gpu": "h100"},
        workers=workers,
        workload=workload,
        system={**ENGINE, "prefix_block": unit, "cache_staleness": staleness},
    )


ENGINE = {
    "block_size": 16,
    "first_token": "counted",
    "progress_on_evict": "recompute",
    "requeue": "front",
    "prefix_cache": "computed",
}


def agents(workers: int, num_requests: int, load: float = 1.0, staleness: float = 0.0) -> Scenario:
    """Return coding agents, 12 open sessions and ``load`` / 4 requests per second for each worker.

    Routers know their caches ``staleness`` seconds late.
    """
    turns = {
        "number": {"kind": "lognormal", "median": 30, "p90": 57},
        "open": 12 * workers,
        "max_context": 200_000,
        "gaps": [{"kind": "tool", "median": 1.0, "mean": 5.0}],
    }
    prefixes = {"levels": [{"count": 1, "tokens": 11_000}], "turns": turns}
    workload = {
        "preset": "coding-agent", "rate": load * workers / 4, "num_requests": num_requests, "prefixes": prefixes
    }  # fmt: skip
    return scenario_of(workers, workload, 256, staleness)


def specs(name: str) -> list[str]:
    """Return the specs of a router that are tried."""
    space = SPACES[name]
    points = itertools.product(*space.values())
    return [f"{name}:{','.join(f'{k}={v}' for k, v in zip(space, p, strict=True))}" for p in points]


def table(comparison: Comparison, title: str) -> str:
    """Return a table of all routers: means, in brackets their 95 % intervals."""
    lines = [f"| {title} | {' | '.join(METRICS)} |", "|---" * (1 + len(METRICS)) + "|"]
    for name in comparison.policies:
        cells = []
        for metric in METRICS:
            found = comparison.estimate(name, metric)
            interval = f" ({number(found.low)} – {number(found.high)})" if found.low < found.high else ""
            cells.append(f"{number(found.value)}{interval}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"\n`{name}`: {error}" for name, error in comparison.errors().items())])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("tune", "sessions", "mooncake"))
    parser.add_argument("--trace", help="file of Mooncake's conversations")
    parser.add_argument("--part", type=float, nargs=2, default=(900, 1900), help="of the trace, seconds")
    parser.add_argument("--routers", nargs="+", help="instead of those with published values")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--staleness", type=float, default=0.0, help="cache_staleness of the system, seconds")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--num-requests", type=int, default=2000)
    options = parser.parse_args(arguments)
    if options.what == "tune":
        scenario = agents(options.workers[0], options.num_requests, options.load)
        for name in SPACES:
            routers = specs(name)
            found = compare(scenario, ["vllm_v1"], seeds=range(options.seeds), routers=routers)
            labels = [label_of(make_router(spec)) for spec in routers]
            best = min(labels, key=lambda label: found.estimate(label, TUNED).value)
            print(f"{best}: {TUNED} {number(found.estimate(best, TUNED).value)}", flush=True)
        return
    for workers in options.workers:
        if options.what == "mooncake":
            start, end = options.part
            workload = {"trace": options.trace, "start": start, "end": end}
            scenario, seeds = scenario_of(workers, workload, 512), range(1)
        else:
            scenario = agents(workers, options.num_requests, options.load, options.staleness)
            seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
        found = compare(scenario, ["vllm_v1"], seeds=seeds, routers=options.routers or PUBLISHED)
        print(f"\n{table(found, f'{workers} workers')}", flush=True)


if __name__ == "__main__":
    main()
