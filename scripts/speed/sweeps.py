"""Time a sweep in one process and in several, kill it repeatedly, and kill a node of a Ray cluster under it.

The figures are those of docs/sweeps.md: wall time, and the share of simulation in CPU time; then whether anything is
lost, repeated or different after SIGKILL at random moments, and after the death of a Ray node.

    python scripts/speed/sweeps.py                    # 1,000 runs of 2,000 requests, 20 kills; about 3 minutes
    python scripts/speed/sweeps.py --only ray         # needs kvgym[ray]
    python scripts/speed/sweeps.py --smoke            # seconds: checks that it runs; its figures mean nothing
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvgym.studies.sweeping.sweep import SweepResult, sweep

RUN = """
import json, sys
from kvgym.studies.sweeping.sweep import sweep
if __name__ == "__main__":
    sweep(json.loads(sys.argv[1]), sys.argv[2], resume=True, jobs=int(sys.argv[3]))
"""


POLICIES = ("mc_sf", "mc_benchmark", "sarathi:token_budget=256", "ranked")


def plan_of(runs: int, requests: int, policies: Sequence[str]) -> dict[str, Any]:
    """Return a sweep of about ``runs`` runs: five rates, the policies, and seeds."""
    return {
        "fields": {"rate": [8, 12, 16, 20, 24], "num_requests": requests},
        "policies": list(policies),
        "seeds": max(1, runs // (5 * len(policies))),
    }


def timed(plan: dict[str, Any], jobs: int) -> tuple[SweepResult, float, float]:
    """Return a sweep, its seconds, and the CPU seconds of this process."""
    started, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = sweep(plan, folder, jobs=jobs)
    return result, time.perf_counter() - started, time.process_time() - cpu


def scaling(plan: dict[str, Any], most: int, repeats: int) -> SweepResult:
    """Time the sweep in one process and in several, alternately, and return it."""
    sweep({**plan, "seeds": 1})  # compile
    best: dict[int, float] = {}
    for _ in range(repeats):
        for jobs in (1, most):
            result, seconds, cpu = timed(plan, jobs)
            best[jobs] = min(seconds, best.get(jobs, seconds))
            runs = len(result.runs)
            simulated = sum(played.record.wall_time for played in result.runs.values())
            print(
                f"{jobs} process{'es' if jobs > 1 else ''}: {seconds:.1f} s; "
                f"simulation of a run {1e3 * simulated / runs:.2f} ms"
                + (f" of {1e3 * cpu / runs:.2f} ms CPU time" if jobs == 1 else "")
            )
    print(f"{most} processes are {best[1] / best[most]:.2f} times as fast as one")
    return result


def killed(plan: dict[str, Any], whole: SweepResult, kills: int, jobs: int) -> None:
    """Kill a sweep at random moments, continue it each time, and compare."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        script, runs = Path(folder) / "go.py", Path(folder) / "runs"
        script.write_text(RUN)
        file = runs / "runs.jsonl"
        counts = [0]
        for left in range(kills, 0, -1):
            process = subprocess.Popen([sys.executable, str(script), json.dumps(plan), str(runs), str(jobs)])
            goal = counts[-1] + rng.randint(1, max(1, 2 * (len(whole.runs) - counts[-1]) // (left + 1)))
            while process.poll() is None and count(file) < goal:
                time.sleep(rng.uniform(0, 0.02))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            counts.append(count(file))
        after = sweep(plan, runs, resume=True)
        keys = [json.loads(line)["key"] for line in file.read_text().splitlines()]
    grown = all(b >= a for a, b in itertools.pairwise(counts))
    equal = after.to_frame().equals(whole.to_frame())
    print(f"{jobs} process(es), killed {kills} times with {', '.join(map(str, counts[1:]))} runs written:")
    lost = "none" if grown and after.num_new == len(keys) - counts[-1] else "SOME"
    print(f"  lost: {lost}; repeated: {len(keys) - len(set(keys))}; bits equal: {'yes' if equal else 'NO'}")


def count(file: Path) -> int:
    """Return the number of saved runs."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def on_ray(plan: dict[str, Any], whole: SweepResult) -> None:
    """Run on a cluster of two nodes, and kill one halfway."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    dead: list[int] = []

    def kill(_: str, done: int, total: int) -> None:
        if not dead and done >= total // 2:
            cluster.remove_node(second, allow_graceful=False)
            dead.append(done)

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = sweep(plan, folder, ray="auto", progress=kill)
        keys = [json.loads(line)["key"] for line in (Path(folder) / "runs.jsonl").read_text().splitlines()]
    equal = result.to_frame().equals(whole.to_frame())
    print(
        f"Ray, a node of two killed after {dead[0]} of {len(keys)} runs: {time.perf_counter() - started:.1f} s"
    )
    lost, repeated = len(whole.runs) - len(keys), len(keys) - len(set(keys))
    print(f"  lost: {lost}; repeated: {repeated}; bits equal: {'yes' if equal else 'NO'}")
    ray.shutdown()
    cluster.shutdown()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="seconds: checks that it runs; its figures mean nothing"
    )
    parser.add_argument("--only", choices=("scaling", "kills", "ray"))
    parser.add_argument("--jobs", type=int, default=2, help="number of processes to compare with one")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="policies to run at every point")
    args = parser.parse_args(arguments)
    plan = plan_of(40, 50, args.policies) if args.smoke else plan_of(1000, 2000, args.policies)
    if args.only in (None, "scaling"):
        whole = scaling(plan, args.jobs, 1 if args.smoke else 3)
    else:
        whole = sweep(plan, jobs=args.jobs)
    if args.only in (None, "kills"):
        for jobs in (1, args.jobs):
            killed(plan, whole, 2 if args.smoke else args.kills // 2, jobs)
    if args.only in (None, "ray"):
        on_ray(plan, whole)


if __name__ == "__main__":
    main()
