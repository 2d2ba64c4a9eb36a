"""Time every policy's iterations as the number of waiting or running requests grows.

A cell is a policy with a given number of waiting and running requests. Requests are chats (LMSYS lengths): a burst at
the start, then about as many as are served, so that the queue keeps its length. After a warm-up, iterations of 20 ms
are timed in slices, and each slice counts with its fastest repetition. Cells run in a separate process. With another
checkout, two processes run every cell alternately and must make equal decisions.

    python scripts/speed/growth.py                     # about 5 minutes, and compiling
    python scripts/speed/growth.py --against PATH      # with another checkout: ratios
    python scripts/speed/growth.py --only slai wait    # some policies
    python scripts/speed/growth.py --plot docs/images/growth.png
    python scripts/speed/growth.py --longest --only ranked  # single iterations: the longest one against the median
    python scripts/speed/growth.py --smoke             # seconds: checks that it runs; its figures mean nothing

With ``--longest`` every iteration is one call, with its fastest of several equal runs, less the cost of a call: the
fastest iteration of fcfs. Caches are cold after a call from Python, so times are longer than in slices.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WAITING, ACTIVE = (100, 1_000, 10_000, 100_000), (80, 250, 800, 2_500)
USUAL_WAITING, USUAL_ACTIVE = 10_000, 80
"""Value of one while the other grows."""

TOKENS_EACH, ITERATIONS_EACH, SECONDS_EACH = 200, 85, 0.02
"""Typical memory of a chat request (tokens), its iterations, and their duration (s)."""

WARM_UP, SLICE, SLICES = 300, 500, 4
"""Iterations before timing, iterations of a slice, and number of slices."""

LONGEST_WAITING, LONGEST_REPEATS = (2_300, 60_000), 4
"""Waiting requests of the cells, and equal runs of each; every iteration is timed alone."""

CLIENTS = 30
"""Clients that send the requests."""

SECONDS, REPEATS = 0.8, 15
"""Limits of a cell in a checkout: seconds and repetitions."""

GIVEN = {"wait": "thresholds=4", "nested_wait": "thresholds=4"}
UNCAPPED = {
    "sarathi": "token_budget=8192,max_batch_requests=4096",
    "slai": "token_budget=8192,max_active=4096,max_decodes=4096",
    "vllm": "max_batch_requests=4096",
    "vllm_v1": "max_num_batched_tokens=8192,max_num_seqs=4096",
}
"""Settings for all cells (no thresholds are derived for an overload); settings without limits other than memory."""

VARIANTS = {"sarathi": ("sarathi", "sarathi:order=spf"), "slai": ("slai", "slai:order=fcfs")}
IN_PLOT = (
    "mc_sf",
    "fcfs",
    "sarathi:order=spf",
    "slai",
    "flow_control_classes",
    "cost_aware",
    "wait",
    "nested_wait",
)


def spec_of(policy: str, uncapped: bool) -> str:
    """Return the policy with the settings of a cell."""
    name = policy.partition(":")[0]
    settings = ",".join(filter(None, (GIVEN.get(name), UNCAPPED.get(name) if uncapped else None)))
    return policy + ("," if ":" in policy else ":") + settings if settings else policy


@functools.lru_cache(maxsize=1)
def chat(burst: int, n: int, rate: float) -> Any:
    """Return n requests with every column that a policy can need: ``burst`` at the start, then ``rate`` per second."""
    from kvgym import make_workload
    from kvgym.workloads.classes import ClassStatistics
    from kvgym.workloads.forecasts import Forecasts

    table = make_workload("lmsys", num_requests=n, rate=rate).sample(0)
    output, rng = table.output_len, np.random.default_rng(0)
    paying = rng.random(n) < 0.05
    shares = np.linspace(0.2, 2.0, 10)  # a distribution around the length, and predictions that become better
    every, count = 200, output // 200
    start = np.cumsum(count) - count
    again = np.repeat(np.ceil(1.1 * output).astype(np.int64), count)
    tenths = np.maximum(1, np.rint(output[:, None] * shares)).astype(np.int64)
    return table.replace(
        arrival_time=np.maximum(0.0, table.arrival_time - table.arrival_time[burst]),
        predicted_low=np.maximum(1, output // 2),
        predicted_high=2 * output,
        class_id=rng.integers(0, 3, n),
        client_id=rng.integers(0, CLIENTS, n),
        forecasts=Forecasts(tenths=tenths, every=every, renewed=again, start=start, count=count),
        priority=paying.astype(int),
        tbt_slo=np.where(paying, 0.1, 0.5),
        classes=tuple(ClassStatistics(name, 10.0, 60.0, 80.0) for name in "abc"),
    )


def cell_of(waiting: int, active: int, iterations: int) -> tuple[Any, Any]:
    """Return the system and the requests of a cell."""
    from kvgym import System, make_batch_time

    coming = iterations * active // ITERATIONS_EACH
    batch_time = make_batch_time({"kind": "affine", "constant": SECONDS_EACH})
    return System(kv_capacity=max(TOKENS_EACH * active, 4_096), batch_time=batch_time), chat(
        waiting + active, waiting + active + coming, active / ITERATIONS_EACH / SECONDS_EACH
    )


def time_singly(policy: str, waiting: int, active: int, iterations: int, repeats: int) -> NDArray[np.float64]:
    """Return the CPU nanoseconds of each iteration of a cell after the warm-up, each in its fastest run."""
    from harness import prepare
    from kvgym.simulator.loop import run_loop

    times = np.full((repeats, iterations), np.inf)
    for row in times:
        simulation, run = prepare(*cell_of(waiting, active, WARM_UP + iterations), policy, True)
        run(WARM_UP)
        advance = functools.partial(simulation._call, run_loop, 1)
        for k in range(iterations):
            before = time.thread_time_ns()
            advance()
            row[k] = time.thread_time_ns() - before
    fastest: NDArray[np.float64] = times.min(axis=0)
    return fastest


def print_longest(policies: Sequence[str], smoke: bool) -> list[dict[str, Any]]:
    """Print and return the rows of ``--longest``."""
    names = ("policy", "waiting", "median, µs", "99.9 %", "longest", "longest / median")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    size = (50, 1) if smoke else (SLICES * SLICE, LONGEST_REPEATS)
    rows = []
    for waiting in (300,) if smoke else LONGEST_WAITING:
        call = float(time_singly("fcfs", waiting, USUAL_ACTIVE, *size).min())
        for policy in policies:
            times = (
                np.maximum(time_singly(spec_of(policy, False), waiting, USUAL_ACTIVE, *size) - call, 1.0)
                / 1e3
            )
            median, rare, longest = (float(x) for x in np.quantile(times, (0.5, 0.999, 1.0)))
            rows.append(
                {"policy": policy, "waiting": waiting, "median": median, "99.9 %": rare, "longest": longest}
            )
            cells = (policy, f"{waiting:,}", *(f"{x:.1f}" for x in (median, rare, longest, longest / median)))
            print(f"| {' | '.join(cells)} |", flush=True)
    return rows


def run_cell(policy: str, waiting: int, active: int, slices: int) -> dict[str, Any]:
    """Run a cell once.

    Returns:
        Nanoseconds per iteration of each slice, mean waiting and running requests, and clock and totals to compare
        decisions; or an error.
    """
    from harness import prepare
    from kvgym.errors import KVGymError

    try:
        simulation, run = prepare(*cell_of(waiting, active, WARM_UP + slices * SLICE), policy, True)
        ended = run(WARM_UP)
        times, seen = [], []
        while not ended and len(times) < slices:
            before = time.process_time_ns()
            ended = run(SLICE)
            times.append((time.process_time_ns() - before) / SLICE)
            seen.append([int(simulation.worker[name]) for name in ("num_waiting", "num_active")])
    except KVGymError as error:
        return {"error": str(error)}
    worker = simulation.worker
    totals = ("clock", "total_admitted", "total_evicted", "total_output_tokens", "kv_time")
    means = np.mean(seen, axis=0) if seen else (0, 0)
    return {
        "ns": times,
        "waiting": float(means[0]),
        "active": float(means[1]),
        "decided": [float(worker[name]) for name in totals],
    }


def serve() -> None:
    """Run cells from standard input; both cells and answers are lines of JSON."""
    for line in sys.stdin:
        print(json.dumps(run_cell(*json.loads(line))), flush=True)


class Server:
    """Process that runs cells with the code of a checkout."""

    def __init__(self, checkout: Path) -> None:
        """Start it."""
        path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *cell: Any) -> dict[str, Any]:
        """Run a cell."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(
    servers: list[Server], policy: str, grows: str, waiting: int, active: int, smoke: bool
) -> dict[str, Any]:
    """Return the row of a cell, run in every checkout (this one first)."""
    row: dict[str, Any] = {"policy": policy, "grows": grows, "waiting": waiting, "active": active}
    cell = (spec_of(policy, grows == "active"), waiting, active, 1 if smoke else SLICES)
    found = [server.run(*cell) for server in servers]  # the first run compiles
    best, started, repeats = [np.full(SLICES, np.inf) for _ in servers], time.monotonic(), 0
    while repeats == 0 or (
        repeats < REPEATS and time.monotonic() - started < SECONDS * len(servers) and not smoke
    ):
        found = [server.run(*cell) for server in servers]
        if "error" in found[0] or not found[0]["ns"]:
            return {**row, "error": found[0].get("error", "it ended before it was timed")}
        if any(other["decided"] != found[0]["decided"] for other in found[1:]):
            raise SystemExit(f"{cell}: the checkouts make different decisions: {found}")
        for times, one in zip(best, found, strict=True):
            taken = len(one["ns"])
            times[:taken] = np.minimum(times[:taken], one["ns"])
        repeats += 1
    row |= {"mean waiting": found[0]["waiting"], "mean active": found[0]["active"]}
    row |= {"ns": float(best[0][:taken].mean())}
    if len(servers) > 1:
        row |= {"ns before": float(best[1][:taken].mean())}
        row["ratio"] = row["ns"] / row["ns before"]
    return row


def print_row(row: dict[str, Any]) -> None:
    """Print a row of results as a line of a Markdown table."""
    cells = [row["policy"], row["grows"], f"{row[row['grows']]:,}"]
    if "error" in row:
        cells += [row["error"][:60]]
    else:
        cells += [f"{row['mean waiting']:,.0f}", f"{row['mean active']:,.0f}"]
        cells += [f"{row[key]:,.0f}" for key in ("ns", "ns before") if key in row]
        cells += [f"{row['ratio']:.2f}"] if "ratio" in row else []
    print(f"| {' | '.join(cells)} |", flush=True)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw time per iteration over waiting and running requests; the other checkout dotted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    for axes, grows in zip(figure.subplots(1, 2), ("waiting", "active"), strict=True):
        for n, policy in enumerate(IN_PLOT):
            points = [
                r
                for r in rows
                if r["policy"] == policy and r["grows"] == grows and r.get(f"mean {grows}", 0) >= 1
            ]
            for key, style in (("ns before", ":"), ("ns", "-")):
                drawn = [(r[f"mean {grows}"], r[key] / 1e3) for r in points if key in r]
                if drawn:
                    label = policy if key == "ns" else None
                    axes.plot(*zip(*drawn, strict=True), style, color=f"C{n}", marker=".", label=label)
        axes.set(xscale="log", yscale="log", xlabel=f"{grows} requests", ylabel="CPU time per iteration, µs")
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run the benchmark."""
    from harness import command_line, write_json

    parser = command_line(__doc__)
    parser.add_argument("--against", type=Path, help="another checkout of kvgym")
    parser.add_argument("--only", nargs="+", help="policies, with or without settings")
    parser.add_argument("--plot", type=Path, help="draw the results into this file")
    parser.add_argument("--longest", action="store_true", help="time iterations one by one")
    options = parser.parse_args()
    from kvgym.policies.policy import POLICIES

    policies = options.only or [spec for name in sorted(POLICIES) for spec in VARIANTS.get(name, (name,))]
    if options.longest:
        write_json(options.json, {"rows": print_longest(policies, options.smoke)})
        return
    cells = [("waiting", waiting, USUAL_ACTIVE) for waiting in WAITING]
    cells += [("active", USUAL_WAITING, active) for active in ACTIVE]
    if options.smoke:
        cells = [("waiting", 100, 25), ("active", 100, 25)]
    here = Path(__file__).resolve().parents[2]
    servers = [Server(path) for path in (here, options.against) if path is not None]
    columns = ["policy", "what grows", "to", "mean waiting", "mean active", "ns per iteration"]
    columns += ["before", "ratio"] if options.against else []
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    rows = []
    for policy in policies:
        for cell in cells:
            rows.append(measure(servers, policy, *cell, options.smoke))
            print_row(rows[-1])
    for server in servers:
        server.close()
    write_json(options.json, {"rows": rows})
    if options.plot is not None:
        plot(rows, options.plot)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        main()
