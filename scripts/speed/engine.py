"""Time the simulator: full runs per policy, compared with uncompiled code and a textbook engine.

Times are medians of process CPU time, measured in one process on one core. Only ratios are comparable between
machines.

    python scripts/speed/engine.py                 # about 6 minutes
    python scripts/speed/engine.py --quick         # about 1 minute, smaller sizes
    python scripts/speed/engine.py --smoke         # seconds: checks that it runs; its figures mean nothing
    python scripts/speed/engine.py --json out.json # results as JSON as well
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import textbook
from harness import AFFINE, command_line, time_runs, write_json
from kvgym import RequestTable, System, load_hardware, make_batch_time, make_workload
from kvgym.experiments.scenario import load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO

POLICIES = ("mc_sf", "mc_benchmark", "fcfs", "alpha_greedy", "alpha_beta")
TEXTBOOK: dict[str, Callable[..., Any]] = {name: getattr(textbook, name) for name in POLICIES}


def full_runs(systems: dict[str, System], sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Time every policy with every batch-time model and size."""
    rows = []
    for n, repeats in sizes:
        table = make_workload("lmsys", num_requests=n).sample(0)
        for time_model, system in systems.items():
            for policy in POLICIES:
                run = full_run(system, table, policy, repeats)
                rows.append({"policy": policy, "batch_time": time_model, "requests": n, **run})
                print_row(rows[-1])
    return rows


def full_run(system: System, table: RequestTable, policy: str, repeats: int) -> dict[str, float]:
    """Return the figures of one policy."""
    timing = time_runs(system, table, policy, repeats)
    return {
        "iterations": timing.iterations,
        "set_up_ms": 1e3 * timing.set_up,
        "run_ms": 1e3 * timing.run,
        "ns_per_iteration": 1e9 * timing.run / timing.iterations,
        "requests_per_second": len(table) / timing.run,
    }


def slow_twins(system: System, n: int) -> list[dict[str, Any]]:
    """Time the uncompiled engine and the textbook engine against the compiled one, and compare schedules."""
    table = make_workload("lmsys", num_requests=n).sample(0)
    rows = []
    for policy in POLICIES:
        compiled = time_runs(system, table, policy, 9).run
        uncompiled = time_runs(system, table, policy, 1, compiled=False)
        row = {
            "policy": policy,
            "requests": n,
            "compiled_ms": 1e3 * compiled,
            "uncompiled_ratio": uncompiled.run / compiled,
        }
        if policy != "alpha_beta":  # it draws its coins from another generator: different schedule
            started = time.process_time()
            times = textbook.run_textbook(table, system.kv_capacity, system.batch_time, TEXTBOOK[policy])
            row["textbook_ratio"] = (time.process_time() - started) / compiled
            row["same_schedule"] = bool(
                np.array_equal(times.finish, uncompiled.simulation.requests["finish_time"])
            )
        rows.append(row)
        print_row(row)
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Print a row of results."""
    print(
        "  ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True
    )


def main() -> None:
    """Run the benchmark."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    options = parser.parse_args()
    sizes = (
        (100, 200, 100)
        if options.smoke
        else (10_000, 100_000, 1_000)
        if options.quick
        else (10_000, 1_000_000, 10_000)
    )
    hardware = load_hardware("llama2-70b-a100-tp2")
    capacity = load_scenario(OVERLOAD_SCENARIO).make_system().kv_capacity
    systems = {
        "affine": System(kv_capacity=capacity, batch_time=make_batch_time(AFFINE)),
        "profile": System(kv_capacity=capacity, batch_time=hardware.batch_time()),
    }
    for system in systems.values():  # compile and warm up
        for policy in POLICIES:
            time_runs(system, make_workload("lmsys", num_requests=100).sample(0), policy, 1)
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    results = {
        "full_runs": full_runs(systems, [(sizes[0], 9), (sizes[1], 3)]),
        "slow_twins": slow_twins(systems["affine"], sizes[2]),
    }
    write_json(options.json, results)


if __name__ == "__main__":
    main()
