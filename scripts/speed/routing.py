"""Time of clusters and a fleet of 1,000 workers, with routers that read every worker for each of 10^6 requests.

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
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.knowledge import Knowledge
from kvgym.workloads.workload import make_workload

VIEWS: dict[str, tuple[str, Knowledge | None, str | None]] = {
    "`round_robin`": ("round_robin", None, None),
    "`join_shortest_queue`, exact": ("join_shortest_queue", None, None),
    "the same, own counts": ("join_shortest_queue", Knowledge("inflight"), None),
    "the same, own counts of 16 routers": ("join_shortest_queue", Knowledge("inflight", 16), None),
    "the same, scrapes every second": ("join_shortest_queue", Knowledge("scraped", interval=1.0), None),
    "exact, a fleet of half of them to all, `hpa`": ("join_shortest_queue", None, "hpa:target=20"),
}
"""Routers, what they know, and the autoscaler of a fleet, by the name of the row."""


def main() -> None:
    """Print the table."""
    options = command_line(__doc__).parse_args()
    n, workers = (1_000, 20) if options.smoke else (1_000_000, 1_000)
    system = kvgym.System(kv_capacity=16_492, batch_time=kvgym.make_batch_time(AFFINE)).replicate(workers)
    requests = make_workload("lmsys", num_requests=n, rate=4.0 * workers).sample(0)
    print("| router | iterations | run, s | µs per request | peak memory, GB |\n|---|---|---|---|---|")
    rows = []
    for name, (router, known, autoscaler) in VIEWS.items():
        own, policy = replace(system, knowledge=known), make_policy("fcfs")
        if autoscaler is not None:
            own = replace(own, fleet=Fleet((Pool(workers // 2, most=workers, startup=10.0),)))
        prepare_run(own, requests.select(slice(0, 100)), policy, router, autoscaler=autoscaler)[
            0
        ].run()  # compiles
        simulation, _ = prepare_run(own, requests, policy, router, autoscaler=autoscaler)
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
