"""Fixtures of live pages: a source without a clock of its own, and a small run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kvgym
from kvgym.cli.watch.server import WatchServer
from kvgym.cli.watch.simulation import LiveRun
from kvgym.cli.watch.source import Source


@pytest.fixture
def live_run() -> Callable[..., LiveRun]:
    """Return a function that makes a run of 20 requests in slotted time, not started."""

    def make(speed: float = 1e6, **changes: Any) -> LiveRun:
        scenario = kvgym.load_scenario("mc-sf-model-2").override(**changes)
        scenario = scenario.override(workload={"preset": scenario.workload, "num_requests": 20})
        system, policy = scenario.make_system(), kvgym.make_policy("fcfs")
        table = scenario.sample(scenario.make_workload(), 0, system.usable_capacity)
        router = scenario.make_router()
        return LiveRun(
            system, table, policy, router=router, seed=0, speed=speed, title="fcfs", about=["small"]
        )

    return make


@pytest.fixture
def serve() -> Iterator[Callable[[Source], WatchServer]]:
    """Return a function that serves a source until the end of the test."""
    servers = []

    def start(source: Source) -> WatchServer:
        servers.append(WatchServer(source))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.close()
