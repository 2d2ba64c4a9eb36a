"""CPU time of ``ranked`` per iteration compared with Sarathi-Serve, by load, hardware and predictions.

Medians of process CPU time; the schedulers take turns on the same requests. The first Sarathi-Serve has at most 128
running requests and reads none of them if all decode. The second has as many as fit into memory, as does ``ranked``,
which scores and orders them. Ratios are of the time per iteration to the first and the second, and of the whole run to
the first: with more running requests, an iteration does more.

    python scripts/speed/ranking.py             # about half a minute
    python scripts/speed/ranking.py --smoke     # seconds, to test that it runs
    python scripts/speed/ranking.py --json out.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import kvgym
from harness import AFFINE, command_line, write_json
from kvgym.experiments.scenario import load_scenario
from kvgym.workloads import make_workload
from policies import M, chat, measure, print_row

NOISY = {"kind": "noisy", "epsilon": 0.5}
UNKNOWN = {"kind": "interval", "bounds": [1, 2048]}
SLO_CLASSES = [
    {"name": "paying", "weight": 0.5, "priority": 1, "tbt_slo": 0.1, "ttft_slo": 5},
    {"name": "free", "weight": 0.5, "priority": 0, "tbt_slo": 0.5, "ttft_slo": 30},
]
POLICIES = ("sarathi", "sarathi:max_batch_requests=1024", "ranked")
Case = tuple[str, kvgym.System, kvgym.RequestTable]


def conversations(n: int, **workload: Any) -> kvgym.RequestTable:
    """Return requests with LMSYS's lengths."""
    return make_workload("lmsys", num_requests=n, **workload).sample(0)


def cases(n: int) -> Iterator[Case]:
    """Return name, system and requests of every case."""
    affine = kvgym.System(kv_capacity=M, batch_time=kvgym.make_batch_time(AFFINE))
    for rate in (8, 20, 50):
        yield f"affine, exact, {rate}/s", affine, conversations(n, rate=rate)
    large, small = (
        load_scenario("a100-llama2-70b").override(hardware=name).make_system()
        for name in ("llama2-70b-a100-tp2", "llama3-8b-a100-tp1")
    )
    for rate in (3, 7, 12, 20):
        yield f"Llama-2-70B, noisy, {rate}/s", large, conversations(n, rate=rate, predictions=NOISY)
    yield "Llama-2-70B, unknown, 20/s", large, conversations(n, rate=20, predictions=UNKNOWN)
    wide = load_scenario("a100-llama2-70b").override(hardware="llama2-70b-h100-tp4-2023").make_system()
    for rate in (30, 45, 80, 120):
        yield f"Llama-3-8B, unknown, {rate}/s", small, conversations(n, rate=rate, predictions=UNKNOWN)
    yield "Llama-2-70B on 4 H100, unknown, 100/s", wide, conversations(n, rate=100, predictions=UNKNOWN)
    for rate in (45, 80):
        table = conversations(n, rate=rate, classes=SLO_CLASSES, predictions=UNKNOWN)
        yield f"Llama-3-8B, objectives, {rate}/s", small, table
    base = load_scenario("slai-50")
    for rate in (1.5, 2.2):
        workload = {"preset": "slai-paying-50", "num_requests": n // 4, "rate": rate, "classes": SLO_CLASSES}
        scenario = base.override(workload={**workload, "predictions": {"kind": "none"}})
        table = scenario.make_workload().sample(0)
        yield f"Mistral-7B, objectives, {rate}/s", scenario.make_system(), table
    yield "affine, TBT objectives, 50/s", affine, chat(n)
    for rate in (7, 12):
        table = conversations(n, rate=rate, predictions=NOISY, classes=SLO_CLASSES)
        yield f"Llama-2-70B, objectives, {rate}/s", large, table


def compare(name: str, system: kvgym.System, table: kvgym.RequestTable, repeats: int) -> dict[str, Any]:
    """Time all schedulers in turn."""
    runs: dict[str, list[dict[str, Any]]] = {policy: [] for policy in POLICIES}
    for policy in runs:
        measure(system, table.select(slice(0, 50)), policy, 1)  # compile
    for _ in range(repeats):
        for policy, found in runs.items():
            found.append(measure(system, table, policy, 1))
    row: dict[str, Any] = {"case": name}
    row |= {f"active, {policy}": found[0]["active"] for policy, found in runs.items()}
    for policy, found in runs.items():
        row[f"ns, {policy}"] = statistics.median(one["ns_per_iteration"] for one in found)
    first, second, ranked = (row[f"ns, {policy}"] for policy in POLICIES)
    row |= {"ratio": ranked / first, "ratio to the second": ranked / second}
    iterations = {policy: found[0]["iterations"] for policy, found in runs.items()}
    row["ratio of runs"] = ranked * iterations["ranked"] / (first * iterations["sarathi"])
    return row | {f"iterations, {policy}": number for policy, number in iterations.items()}


def main() -> None:
    """Run the benchmark."""
    options = command_line(__doc__).parse_args()
    n, repeats = (200, 1) if options.smoke else (10_000, 9)
    print(
        "| requests | active, 1st | 2nd | ranked | ns, 1st | 2nd | ranked | ratio to 1st | to 2nd | of runs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for case in cases(n):
        rows.append(compare(*case, repeats))
        print_row({name: cell for name, cell in rows[-1].items() if not name.startswith("iterations")})
    write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
