"""Fleets with runs worked by hand: each worker has one slot; a prefill takes 1 s, as does each further token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvgym.baselines.autoscalers.given import Plan
from kvgym.batch_time import AffineBatchTime
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.cluster.luck import Lives, StartUps
from kvgym.simulator.cluster.members import DOWN, DRAINS, OFF, STARTING, UP, Members
from kvgym.simulator.fleet import Failures, Fleet, Pool, Users
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable

SECOND = AffineBatchTime(constant=1.0)


def members_of(fleet: Fleet, load: Sequence[int], kinds: Sequence[int] = ()) -> Members:
    """Return the places of a fleet, with numbers of unfinished requests that a test sets."""
    startups = StartUps(fleet, np.random.SeedSequence(0))
    lives = Lives(fleet, np.random.SeedSequence(0))
    counts = [pool.count for pool in fleet.pools]
    return Members(fleet, counts, load.__getitem__, startups, lives, lambda k: None, kinds)


def table_of(*requests: tuple[float, int]) -> RequestTable:
    """Return requests from their arrivals and the seconds that they decode; no two of them fit on a worker."""
    arrival, decode = zip(*requests, strict=True)
    return RequestTable.from_columns(
        arrival_time=np.array(arrival, float),
        prompt_len=np.full(len(arrival), 1023),
        output_len=np.array(decode) + 1,
    )


def system_of(*pools: Pool, roles: tuple[str, ...] = (), **settings: Any) -> System:
    """Return a fleet of workers with one slot; a transfer takes 1 s."""
    places = [
        Worker(1900, SECOND, role)
        for pool, role in zip(pools, roles or ("mixed",) * len(pools), strict=True)
        for _ in range(pool.most)
    ]
    return replace(System.cluster(places, transfer_time=1 / 1024), fleet=Fleet(pools, **settings))


@dataclass(frozen=True)
class Case:
    """A case: pools, plan and requests, and what must come out: first tokens, ends, states, billed GPU-seconds.

    ``again`` has the requests that come more than once, and how often.
    """

    pools: tuple[Pool, ...]
    plan: tuple[tuple[float, tuple[int, ...]], ...]
    requests: tuple[tuple[float, int], ...]
    first: tuple[float | None, ...]
    end: tuple[float | None, ...]
    workers: tuple[int, ...]
    changes: tuple[tuple[float, int, int], ...]
    gpu_seconds: float
    budget: int | None = None
    roles: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    again: tuple[tuple[int, int], ...] = ()
    router: str = "join_shortest_queue"

    def system(self, price: float = 1.0) -> System:
        """Return the fleet."""
        pools = (replace(pool, price=price) for pool in self.pools)
        return system_of(*pools, roles=self.roles, budget=self.budget, **self.settings)

    def play(
        self, compiled: bool = True, ttft_slo: float | None = None, price: float = 1.0
    ) -> SimulationResult:
        """Run the case, with a target for all requests and a price of the workers."""
        table = table_of(*self.requests)
        if ttft_slo is not None:
            table = table.replace(ttft_slo=np.full(len(table), ttft_slo))
        return simulate(
            self.system(price), table, "fcfs", router=self.router,
            autoscaler=Plan(file=self.plan) if self.plan else None,
            compiled=compiled,
        )  # fmt: skip


CASES = {
    "start-up: two requests wait outside, and are routed when the worker is ready": Case(
        (Pool(0, most=2, least=0, startup=60),), ((10, (1,)),), ((5, 4), (20, 4)),
        (71, 76), (75, 80), (0, 0), ((10, 0, STARTING), (70, 0, UP)), 70,
    ),
    "same time: a worker that becomes ready serves the request that arrives then": Case(
        (Pool(1, most=2, startup=10),), ((0, (2,)),), ((0, 19), (10, 1), (20, 1)),
        (1, 11, 21), (20, 12, 22), (0, 1, 0), ((0, 0, UP), (0, 1, STARTING), (10, 1, UP)), 44,
    ),
    "drain: the worker with fewer requests, which finishes them": Case(
        (Pool(2, most=2),), ((2, (1,)),), ((0, 9), (0, 4), (1, 2), (3, 1)),
        (1, 1, 11, 14), (10, 5, 13, 15), (0, 1, 0, 0), ((0, 0, UP), (0, 1, UP), (2, 1, DRAINS), (5, 1, OFF)), 20,
    ),
    "requeue: of equal workers the last drains, and its waiting request moves": Case(
        (Pool(2, most=2, drain="requeue"),), ((2, (1,)),), ((0, 9), (0, 9), (1, 1), (1, 1)),
        (1, 1, 11, 13), (10, 10, 12, 14), (0, 1, 0, 0), ((0, 0, UP), (0, 1, UP), (2, 1, DRAINS), (10, 1, OFF)), 24,
    ),
    "a cancelled drain: ready again at once": Case(
        (Pool(2, most=2),), ((2, (1,)), (4, (2,))), ((0, 9), (0, 4), (5, 1)),
        (1, 1, 6), (10, 5, 7), (0, 1, 1), ((0, 0, UP), (0, 1, UP), (2, 1, DRAINS), (4, 1, UP)), 20,
    ),
    "budget: a start waits for the GPU of a drain": Case(
        (Pool(2, most=2, startup=0), Pool(0, most=1, least=0, startup=3)), ((1, (1, 1)),), ((0, 9), (0, 4), (9, 1)),
        (1, 1, 10), (10, 5, 11), (0, 1, 2),
        ((0, 0, UP), (0, 1, UP), (1, 1, DRAINS), (5, 1, OFF), (5, 2, STARTING), (8, 2, UP)), 22, 2,
    ),
    "up-time: a start is cancelled, and the older worker drains when it has been up for long enough": Case(
        (Pool(1, most=3, startup=10, min_uptime=20),), ((0, (3,)), (5, (2,)), (15, (1,))), ((16, 1), (25, 1)),
        (17, 26), (18, 27), (0, 1),
        ((0, 0, UP), (0, 1, STARTING), (0, 2, STARTING), (5, 2, OFF), (10, 1, UP), (20, 0, DRAINS), (20, 0, OFF)), 52,
    ),
    "limit: a drain is cut, and what the worker has comes again": Case(
        (Pool(2, most=2, drain_limit=5),), ((2, (1,)),), ((0, 9), (0, 9), (1, 1), (1, 1)),
        (1, 1, 11, 23), (10, 22, 12, 24), (0, 0, 0, 0), ((0, 0, UP), (0, 1, UP), (2, 1, DRAINS), (7, 1, OFF)), 31,
        again=((1, 2), (3, 2)),
    ),
    "failure: a worker is replaced at once, and its requests come again to the one that is ready": Case(
        (Pool(2, most=3, startup=5),), (), ((0, 9), (0, 9), (1, 1)),
        (1, 1, 21), (20, 10, 22), (1, 1, 1),
        ((0, 0, UP), (0, 1, UP), (4, 0, DOWN), (4, 2, STARTING), (9, 2, UP), (14, 0, OFF)), 44,
        settings={"failures": Failures(at=((4.0, 0),), repair=10), "retry_delay": 1.0}, again=((0, 2), (2, 2)),
    ),
    "failure at an end: the request that ends then is served": Case(
        (Pool(1, most=2, startup=2),), (), ((0, 3), (1, 1)),
        (1, 7), (4, 8), (0, 1), ((0, 0, UP), (4, 0, DOWN), (4, 1, STARTING), (6, 1, UP)), 8,
        settings={"failures": Failures(at=((4.0, 0),), repair=100)}, again=((1, 2),),
    ),
    "failure in a transfer: prefilled again, and the first token stays": Case(
        (Pool(1, most=1), Pool(2, most=2)), (), ((0, 2),),
        (1,), (6,), (2,), ((0, 0, UP), (0, 1, UP), (0, 2, UP), (1.5, 1, DOWN)), 13.5,
        roles=("prefill", "decode"), again=((0, 2),),
        settings={"failures": Failures(at=((1.5, 1),), repair=100), "retry_delay": 0.5},
    ),
    "shed: a request is refused while one waits, and its user tries again": Case(
        (Pool(1, most=1),), (), ((0, 4), (1, 1), (2, 1)),
        (1, 6, 8), (5, 7, 9), (0, 0, 0), ((0, 0, UP),), 9,
        settings={"users": Users(again=1.0, delay=5.0)}, again=((2, 2),), router="shedding:queue=1",
    ),
}  # fmt: skip
