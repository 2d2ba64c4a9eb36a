"""Time per iteration of every registered policy, as a ratio to MC-SF on the same requests in the same run.

A run that the policy cannot finish (a livelock) is listed with its reason. Clusters are timed as well. Times are the
median process CPU time of several repetitions.

    python scripts/speed/policies.py            # about a minute
    python scripts/speed/policies.py --smoke    # seconds: shows that it runs, the figures mean nothing
    python scripts/speed/policies.py --json out.json
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import kvgym
from harness import AFFINE, command_line, time_runs, write_json
from kvgym.errors import KVGymError
from kvgym.policies.policy import POLICIES
from kvgym.workloads import make_workload

M = 16_492
SPECS = {
    "sarathi": ("sarathi", "sarathi:order=spf"),
    "slai": ("slai", "slai:order=fcfs", "slai:low_offset=5"),
    "wait": ("wait", "wait:rule=practical"),
    "nested_wait": ("nested_wait", "nested_wait:rule=practical"),
}
"""Variants that differ in what they do per iteration; every other policy runs with its defaults."""


def chat(n: int) -> kvgym.RequestTable:
    """Return overloaded chat requests (LMSYS lengths, 50/s) with every column a policy can need, except class rates."""
    table = make_workload("lmsys", num_requests=n).sample(0)
    forecasts = {"kind": "distribution", "shape": "log_t", "renew_every": 20}
    forecast = make_workload("lmsys", num_requests=n, predictions=forecasts).sample(0)
    output, rng = table.output_len, np.random.default_rng(0)
    paying = rng.random(n) < 0.05
    return table.replace(
        forecasts=forecast.forecasts,
        predicted_low=np.maximum(1, output // 2),
        predicted_high=2 * output,
        class_id=rng.integers(0, 3, n),
        client_id=np.arange(n) % 4,
        priority=paying.astype(int),
        tbt_slo=np.where(paying, 0.1, 0.5),
    )


def workloads(n: int) -> dict[str, tuple[kvgym.System, kvgym.RequestTable]]:
    """Return system and requests by name; threshold policies need classes with rates below the stability limit."""
    batch_time = kvgym.make_batch_time(AFFINE)
    fluid = kvgym.System(
        kv_capacity=117_648,
        batch_time=kvgym.make_batch_time({"kind": "wait", "d0": 0.01, "d1": 2e-7}),
        first_token="decode",
        requeue="back",
    )
    return {
        "lmsys, M = 16,492": (kvgym.System(kv_capacity=M, batch_time=batch_time), chat(n)),
        "wait-low, M = 117,648": (fluid, make_workload("wait-low", num_requests=n).sample(0)),
        "wait-bins-low, M = 1,000,000": (
            replace(fluid, kv_capacity=1_000_000),
            make_workload("wait-bins-low", num_requests=n).sample(0),
        ),
    }


def measure(system: kvgym.System, table: kvgym.RequestTable, policy: str, repeats: int) -> dict[str, Any]:
    """Return iterations, evictions, mean active requests, milliseconds of the run, nanoseconds per iteration."""
    timing = time_runs(system, table, policy, repeats)
    workers = timing.simulation.workers
    return {
        "iterations": timing.iterations,
        "evictions": int(workers["total_evicted"].sum()),
        "active": float(workers["active_time"].sum() / workers["busy_time"].sum()),
        "run_ms": 1e3 * timing.run,
        "ns_per_iteration": 1e9 * timing.run / timing.iterations,
    }


def policies(n: int, repeats: int) -> list[dict[str, Any]]:
    """Time every policy on every workload that it can run on."""
    rows: list[dict[str, Any]] = []
    for name, (system, table) in workloads(n).items():
        measure(system, table.select(slice(0, 50)), "mc_sf", 1)  # compile
        reference: dict[str, Any] = {}
        for policy in sorted(POLICIES, key=lambda policy: policy != "mc_sf"):  # the reference first
            for spec in SPECS.get(policy, (policy,)):
                row = {"workload": name, "policy": spec}
                needs_rates = "class_rates" in POLICIES[policy].info.needs
                if needs_rates != bool(table.classes) and policy != "mc_sf":
                    continue  # the threshold policies on their own workload, the others on the chat requests
                try:
                    measure(system, table.select(slice(0, 50)), spec, 1)
                    row |= measure(system, table, spec, repeats)
                    reference = reference or row
                    row["ratio"] = row["ns_per_iteration"] / reference["ns_per_iteration"]
                except KVGymError as error:
                    row["error"] = str(error)
                rows.append(row)
                print_row(row)
    return rows


def clusters(n: int, repeats: int) -> list[dict[str, Any]]:
    """Time runs of one worker, and of growing clusters, with the rate scaled by their size."""
    system = kvgym.System(kv_capacity=M, batch_time=kvgym.make_batch_time(AFFINE))
    rows = []
    for name, chosen, workers in (
        ("one worker", system, 1),
        *((f"cluster of {count}", system.replicate(count), count) for count in (1, 8, 64, 1000)),
    ):
        workload = make_workload(
            "lmsys", num_requests=max(n, min(n // 300, 30) * workers), rate=50.0 * workers
        )
        requests = workload.sample(0)
        measure(chosen, requests.select(slice(0, 50)), "mc_sf", 1)
        rows.append({"system": name, **measure(chosen, requests, "mc_sf", repeats)})
        print_row(rows[-1])
    return rows


def print_row(row: dict[str, Any]) -> None:
    """Print a row of results as a line of a Markdown table."""
    cells = (
        f"{v:,.3g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v for v in row.values()
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Run the benchmark."""
    options = command_line(__doc__).parse_args()
    n, repeats = (150, 1) if options.smoke else (10_000, 9)
    print(
        "| workload | policy | iterations | evictions | mean active | run, ms | ns per iteration | ratio to mc_sf |"
    )
    print("|---|---|---|---|---|---|---|---|")
    results = {"policies": policies(n, repeats), "clusters": clusters(n, repeats)}
    write_json(options.json, results)


if __name__ == "__main__":
    main()
