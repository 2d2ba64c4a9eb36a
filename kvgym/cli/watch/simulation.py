"""A run that follows a clock: the engine pauses before every decision, until its time has come.

The run is the same as any other; only the moments at which it continues depend on the clock.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.cli.watch.source import Chart, Row, Source
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.policies.runner import prepare_run, steps_of
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.workloads.table import RequestTable

INTERVAL = 0.1
"""Shortest time between two rows, seconds."""


def charts_of(num_workers: int) -> list[Chart]:
    """Return the charts: a line per worker, if there are several."""
    workers = tuple(f"worker {k}" for k in range(num_workers))
    rest = [
        Chart("Last batch", "tokens", ("prefill", "decode")),
        Chart("Mean latency so far", "s", ("to the first token", "to the end")),
    ]
    if num_workers == 1:
        return [Chart("KV memory", "%", ("in use",)), Chart("Requests", "", ("waiting", "running")), *rest]
    return [
        Chart("KV memory", "%", workers),
        Chart("Waiting", "", workers),
        Chart("Running", "", workers),
        *rest,
    ]


class LiveRun(Source):
    """A run of a policy as a source of states.

    Args:
        system: the worker or the cluster.
        table: the requests.
        policy: the policy.
        router: of a cluster.
        autoscaler: of a fleet, its spec.
        seed: of the policy.
        speed: simulated seconds per second.
        title: heading of the page.
        about: lines below it.
    """

    def __init__(
        self, system: System, table: RequestTable, policy: Policy, *, router: Router | None, seed: int,
        speed: float, title: str, about: list[str], autoscaler: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(title, about, charts_of(len(system.all_workers)), "simulated seconds", speed)
        self._run, self._autoscaler = (system, table, policy, router, seed), autoscaler
        self._recorded, self._shown = -INTERVAL, -1.0  # moment and clock of the last row
        self._origin = 0.0, 0.0, 0.0  # since when, in real and in simulated seconds, and the speed since then

    def follow(self) -> None:
        """Run to the end."""
        system, table, policy, router, seed = self._run
        self.update(status="compiling")
        simulation, copies = prepare_run(system, table, policy, router, seed, autoscaler=self._autoscaler)
        for _ in steps_of(simulation, policy, copies):
            if not self._keep_time(simulation):
                return
        self._record(simulation, "finished")

    def _keep_time(self, simulation: Any) -> bool:
        """Wait until the decision of a worker is due; return False if the page ends before."""
        clock = float(simulation.worker["clock"])
        while not self._stopped:
            now, (began, origin, speed) = time.monotonic(), self._origin
            if self.paused or speed != self.speed:
                self._origin = now, clock, 0.0 if self.paused else self.speed or 1.0
                due = np.inf if self.paused else 0.0
            else:
                due = (clock - origin) / speed - (now - began)
                if (
                    due < -INTERVAL
                ):  # the machine was busy; go on at this pace, rather than catch up in a jump
                    self._origin = now, clock, speed
            status = "paused" if self.paused else "running"
            fresh = clock != self._shown and now - self._recorded >= INTERVAL
            if fresh or status != self._changing["status"]:
                self._record(simulation, status)
            if due <= 0:
                return True
            with self.changed:
                if not self._stopped and (self.paused or speed == self.speed):
                    self.changed.wait(min(due, INTERVAL))
        return False

    def _record(self, simulation: Any, status: str) -> None:
        """Add a row with the present state, and the figures so far."""
        workers, ended = simulation.workers, status == "finished"
        clock = float(workers["clock"].max() if ended else simulation.worker["clock"])
        self._recorded, self._shown = time.monotonic(), clock
        latencies = _latencies(simulation)
        used = 100.0 * workers["kv_allocated"] / simulation.system.usable_capacities
        columns = used, workers["num_waiting"], workers["num_active"]
        load = (simulation.load[name].sum() for name in ("prefill_tokens", "num_decodes"))
        row: Row = [clock, *(float(x) for x in np.concatenate(columns)), *map(float, load)]
        row += [float(x.mean()) if len(x) else None for x in latencies[:2]]
        self.update([row], status=status, tiles=_tiles(simulation, clock, *latencies))


def _latencies(simulation: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return TTFT, latency and time per output token of the finished requests, seconds."""
    records = simulation.requests
    done = np.flatnonzero(records["status"] == FINISHED)
    arrival, first = records["arrival_time"][done], records["first_token_time"][done]
    finish, steps = records["finish_time"][done], np.maximum(records["num_output_tokens"][done] - 1, 1)
    return first - arrival, finish - arrival, (finish - first) / steps


def _tiles(
    simulation: Any, clock: float, ttft: NDArray[np.float64], latency: NDArray[np.float64],
    per_token: NDArray[np.float64],
) -> list[tuple[str, str]]:  # fmt: skip
    """Return the figures so far; latencies are of finished requests."""
    tiles = [
        ("Simulated time", f"{clock:.1f} s"),
        ("Finished", f"{len(ttft):,} of {len(simulation.table):,}"),
        ("Evictions", f"{int(simulation.workers['total_evicted'].sum()):,}"),
    ]
    if len(ttft) == 0:
        return tiles
    return [
        *tiles,
        ("Mean latency", f"{latency.mean():.2f} s"),
        ("Mean TTFT", f"{ttft.mean():.2f} s"),
        ("99 % of TTFT below", f"{np.quantile(ttft, 0.99):.2f} s"),
        ("Mean time per token", f"{1e3 * per_token.mean():.0f} ms"),
    ]
