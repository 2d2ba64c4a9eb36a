"""Time the simulator: full runs per policy, against the same code uncompiled and a textbook engine.

Everything is measured in one process on one core, as process CPU time, the median of some repetitions; the
ratios are what can be compared between machines. Cold and warm start are wall time of fresh processes.

    python scripts/benchmark/engine.py                 # about 6 minutes
    python scripts/benchmark/engine.py --quick         # about 1 minute, smaller sizes
    python scripts/benchmark/engine.py --smoke         # seconds: shows that it runs, the figures mean nothing
    python scripts/benchmark/engine.py --json out.json # also as data
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvgym import RequestTable, System, load_hardware, make_batch_time, make_policy, make_workload
from kvgym.experiments.scenario import DEFAULT_SCENARIO, load_scenario
from kvgym.policy import CompiledPolicy
from kvgym.runner import system_info
from kvgym.simulator import textbook
from kvgym.simulator.simulation import Simulation

POLICIES = ("mc_sf", "mc_benchmark", "fcfs", "alpha_greedy", "alpha_beta")
TEXTBOOK: dict[str, Callable[..., Any]] = {name: getattr(textbook, name) for name in POLICIES}
AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}


def prepare(
    system: System, table: RequestTable, policy: str, *, compiled: bool = True
) -> tuple[Simulation, Any]:
    """Return a simulation ready to run, and its policy."""
    made = make_policy(policy)
    assert isinstance(made, CompiledPolicy)
    simulation = Simulation(system, table, needs=made.info.needs, policy_name=policy, compiled=compiled)
    made.reset(system_info(system, table, 0, made.info.needs))
    return simulation, made


def run_time(system: System, table: RequestTable, policy: str, repeats: int) -> tuple[float, float, int]:
    """Return median CPU seconds of set-up and of the run, and the iterations."""
    set_up, running = [], []
    iterations = 0
    for _ in range(repeats):
        started = time.process_time()
        simulation, made = prepare(system, table, policy)
        ready = time.process_time()
        simulation.run(made.kernel, made.arguments())
        ended = time.process_time()
        set_up.append(ready - started)
        running.append(ended - ready)
        iterations = int(simulation.worker["iteration"])
    return statistics.median(set_up), statistics.median(running), iterations


def full_runs(systems: dict[str, System], sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Time every policy with every batch-time model and size."""
    rows = []
    for n, repeats in sizes:
        table = make_workload("lmsys", num_requests=n).sample(0)
        for time_model, system in systems.items():
            for policy in POLICIES:
                set_up, seconds, iterations = run_time(system, table, policy, repeats)
                rows.append(
                    {
                        "policy": policy,
                        "batch_time": time_model,
                        "requests": n,
                        "iterations": iterations,
                        "set_up_ms": 1e3 * set_up,
                        "run_ms": 1e3 * seconds,
                        "ns_per_iteration": 1e9 * seconds / iterations,
                        "requests_per_second": n / seconds,
                    }
                )
                print_row(rows[-1])
    return rows


def slow_twins(system: System, n: int) -> list[dict[str, Any]]:
    """Time the uncompiled engine and the textbook engine against the compiled one, and compare schedules."""
    table = make_workload("lmsys", num_requests=n).sample(0)
    rows = []
    for policy in POLICIES:
        _, compiled, _ = run_time(system, table, policy, 9)
        simulation, made = prepare(system, table, policy, compiled=False)
        started = time.process_time()
        simulation.run(made.kernel, made.arguments())
        uncompiled = time.process_time() - started
        row = {
            "policy": policy,
            "requests": n,
            "compiled_ms": 1e3 * compiled,
            "uncompiled_ratio": uncompiled / compiled,
        }
        if policy != "alpha_beta":  # its coins come from another generator: not the same schedule
            started = time.process_time()
            times = textbook.run_textbook(table, system.kv_capacity, system.batch_time, TEXTBOOK[policy])
            row["textbook_ratio"] = (time.process_time() - started) / compiled
            row["same_schedule"] = bool(np.array_equal(times.finish, simulation.requests["finish_time"]))
        rows.append(row)
        print_row(row)
    return rows


START = (
    "import time; t = time.perf_counter()\n"
    "import kvgym\n"
    "kvgym.compare(policies=['mc_sf'], seeds=1)\n"
    "print(time.perf_counter() - t)\n"
)


def start_times() -> dict[str, float]:
    """Return wall seconds of import plus a first comparison, with an empty cache and with a full one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "KVGYM_CACHE_DIR": folder}
        command = [sys.executable, "-c", START]
        runs = [
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in "cw"
        ]
    seconds = [float(run.stdout) for run in runs]
    return {"cold_s": seconds[0], "warm_s": seconds[1]}


def print_row(row: dict[str, Any]) -> None:
    """Print a row of results."""
    print(
        "  ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    sizes = (
        (100, 200, 100)
        if options.smoke
        else (10_000, 100_000, 1_000)
        if options.quick
        else (10_000, 1_000_000, 10_000)
    )
    hardware = load_hardware("llama2-70b-a100-tp2")
    capacity = load_scenario(DEFAULT_SCENARIO).make_system().kv_capacity
    systems = {
        "affine": System(kv_capacity=capacity, batch_time=make_batch_time(AFFINE)),
        "profile": System(kv_capacity=capacity, batch_time=hardware.batch_time()),
    }
    for system in systems.values():  # compile and warm up
        for policy in POLICIES:
            run_time(system, make_workload("lmsys", num_requests=100).sample(0), policy, 1)
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    results = {
        "full_runs": full_runs(systems, [(sizes[0], 9), (sizes[1], 3)]),
        "slow_twins": slow_twins(systems["affine"], sizes[2]),
        "start": start_times(),
    }
    print_row(results["start"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
