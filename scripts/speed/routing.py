"""Time of a cluster of 1,000 workers with a router that reads every worker for each of 10^6 requests.

python scripts/speed/routing.py    some minutes
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import kvgym
from harness import AFFINE, command_line, write_json
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import prepare_run
from kvgym.simulator.knowledge import Knowledge
from kvgym.workloads.workload import make_workload

VIEWS = {
    "`round_robin`": ("round_robin", None),
    "`join_shortest_queue`, exact": ("join_shortest_queue", None),
    "the same, own counts": ("join_shortest_queue", Knowledge("inflight")),
    "the same, own counts of 16 routers": ("join_shortest_queue", Knowledge("inflight", 16)),
    "the same, scrapes every second": ("join_shortest_queue", Knowledge("scraped", interval=1.0)),
}
"""Routers and what they know, by the name of the row."""


def main() -> None:
    """Print the table."""
    options = command_line(__doc__).parse_args()
    n, workers = (1_000, 20) if options.smoke else (1_000_000, 1_000)
    system = kvgym.System(kv_capacity=16_492, batch_time=kvgym.make_batch_time(AFFINE)).replicate(workers)
    requests = make_workload("lmsys", num_requests=n, rate=4.0 * workers).sample(0)
    print("| router | iterations | run, s | µs per request | peak memory, GB |\n|---|---|---|---|---|")
    rows = []
    for name, (router, known) in VIEWS.items():
        own, policy = replace(system, knowledge=known), make_policy("fcfs")
        prepare_run(own, requests.select(slice(0, 100)), policy, router)[0].run()  # compiles
        simulation, _ = prepare_run(own, requests, policy, router)
        start = time.process_time()
        simulation.run()
        seconds, batches = time.process_time() - start, int(simulation.workers["iteration"].sum())
        del simulation
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append({"router": name, "iterations": batches, "run": seconds, "memory": memory})
        print(
            f"| {name} | {batches:,} | {seconds:.1f} | {seconds / n * 1e6:.1f} | {memory:.1f} |", flush=True
        )
    write_json(options.json, {"routing": rows})


if __name__ == "__main__":
    main()
