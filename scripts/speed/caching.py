"""CPU time of runs with a prefix cache compared with the same runs without, by policy and unit.

Requests of a trace with block hashes, on one H100 with Llama-3-8B, blocks of 16 tokens. The runs take turns; a figure
is the least process CPU time of one. Requests that find a part of their prompt make fewer iterations, so the ratio is
of whole runs.

    python scripts/speed/caching.py --trace mooncake_conversation.jsonl   # about half a minute
    python scripts/speed/caching.py --smoke                               # seconds, to test that it runs
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kvgym
from harness import command_line, time_runs, write_json
from kvgym.experiments.scenario import Scenario
from policies import print_row

POLICIES = ("fcfs", "vllm_v1")
UNITS = (0, 512, 16)
"""Tokens per unit, 0 without a cache."""


def case(trace: str | None, num_requests: int) -> tuple[kvgym.System, kvgym.RequestTable]:
    """Return the worker and the first requests of a trace; without one, requests of coding agents."""
    scenario = Scenario(
        name="caching",
        hardware={"model": "llama3-8b", "gpu": "h100"},
        workload={"trace": trace} if trace else {"preset": "coding-agent", "num_requests": num_requests},
        system={
            "block_size": 16,
            "first_token": "counted",
            "progress_on_evict": "recompute",
            "requeue": "front",
        },
    )
    return scenario.make_system(), scenario.make_workload().sample(0).select(slice(0, num_requests))


def caching(system: kvgym.System, table: kvgym.RequestTable, repeats: int) -> list[dict[str, Any]]:
    """Time every policy without a cache and with each size of units."""
    rows = []
    for policy in POLICIES:
        systems = {
            unit: replace(system, prefix_cache="computed", prefix_block=unit) if unit else system
            for unit in UNITS
        }
        for chosen in systems.values():
            time_runs(chosen, table.select(slice(0, 50)), policy, 1)  # compile
        least = dict.fromkeys(UNITS, float("inf"))
        iterations = {}
        for _ in range(repeats):
            for unit, chosen in systems.items():
                timing = time_runs(chosen, table, policy, 1)
                least[unit] = min(least[unit], timing.run)
                iterations[unit] = timing.iterations
        for unit in UNITS:
            row = {
                "policy": policy,
                "unit": unit,
                "iterations": iterations[unit],
                "run_ms": 1e3 * least[unit],
                "ratio": least[unit] / least[0],
            }
            rows.append(row)
            print_row(row)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__)
    parser.add_argument("--trace", help="trace with block hashes; needed without --smoke")
    parser.add_argument("--requests", type=int, default=6000, help="first requests of it")
    options = parser.parse_args()
    if options.trace is None and not options.smoke:
        parser.error("--trace FILE is needed, a trace with block hashes such as Mooncake's")
    print("| policy | unit | iterations | run, ms | ratio to no cache |")
    print("|---|---|---|---|---|")
    requests, repeats = (60, 1) if options.smoke else (options.requests, 9)
    write_json(options.json, {"caching": caching(*case(options.trace, requests), repeats)})


if __name__ == "__main__":
    main()
