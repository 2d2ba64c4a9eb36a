"""Time and memory of runs with requests in pieces, and of one run in one piece.

Chat requests at 6 per second under ``fcfs``. The memory is the most of the process until then, so the run in one piece
is the last one. Its means are compared with those of the same run in pieces.

    python scripts/speed/streaming.py                        # 10^6 and 10^7 requests: half a minute
    python scripts/speed/streaming.py --requests 100000000   # minutes
    python scripts/speed/streaming.py --smoke                # seconds: checks that it runs
"""

from __future__ import annotations

import resource
import time
from typing import Any

from harness import command_line, write_json
from kvgym import simulate
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.experiments.streaming import stream_scenario
from kvgym.metrics.compute import compute_metrics
from policies import print_row


def row(what: str, metrics: dict[str, float], seconds: float) -> dict[str, Any]:
    """Return the figures of a run."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "requests": what,
        "iterations": int(metrics["iterations"]),
        "CPU s": seconds,
        "peak memory, GB": peak,
    }


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--requests", type=int, nargs="+", default=[10**6, 10**7], help="sizes of runs in pieces"
    )
    options = parser.parse_args()
    sizes = [1000] if options.smoke else options.requests
    scenarios = [build_scenario(OVERLOAD_SCENARIO, num_requests=n, rate=6.0) for n in [500, *sizes]]
    stream_scenario(scenarios[0], "fcfs")  # compile
    rows, found = [], {}
    for n, scenario in zip(sizes, scenarios[1:], strict=True):
        began = time.process_time()
        found[n] = stream_scenario(scenario, "fcfs").metrics
        rows.append(row(f"{n:,}", found[n], time.process_time() - began))
        print_row(rows[-1])
    if (least := min(sizes)) <= 10**6:
        scenario, began = scenarios[1 + sizes.index(least)], time.process_time()
        result = simulate(scenario.make_system(), scenario.make_workload().sample(0), "fcfs")
        whole = compute_metrics(result)
        rows.append(row(f"{least:,}, in one piece", whole, time.process_time() - began))
        print_row(rows[-1])
        means = [name for name in found[least] if name.endswith("_mean")]
        error = max(abs(found[least][name] / whole[name] - 1) for name in means)
        print(f"largest relative difference of a mean: {error:.1e}")
    write_json(options.json, {"streaming": rows})


if __name__ == "__main__":
    main()
