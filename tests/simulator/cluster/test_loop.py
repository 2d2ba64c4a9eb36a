"""Clusters compared with single workers, and invariants of every run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helpers.amount import number, some
from helpers.runs.clusters import (
    AFFINE,
    STAIRS,
    UNIT,
    PlainRouter,
    apart,
    assert_equal,
    equal_tables,
    rules_of,
    workload,
)
from helpers.selection import EACH_FAMILY, others_long
from kvgym.batch_time import AffineBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import LivelockError
from kvgym.policies.policy import (
    POLICIES,
    CompiledPolicy,
    Decision,
    Policy,
    PolicyInfo,
    SystemInfo,
    make_policy,
)
from kvgym.policies.routing import make_router
from kvgym.policies.runner import SimulationResult, known_to, result_of, simulate, system_info
from kvgym.simulator.recording.gaps import gap_bin
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import ACTIVE, FINISHED, FUTURE, GAP_BINS, TRANSFERRING, WAITING
from kvgym.simulator.view import SystemView
from kvgym.workloads.table import RequestTable

TIMES = {"unit": UNIT, "affine": AFFINE}


def outcome(system: System, table: RequestTable, policy: Any, **options: Any) -> Any:
    try:
        return simulate(system, table, policy, log=True, **options)
    except LivelockError as error:
        return str(error)


class ThroughView(Policy):
    """Wraps a policy and calls it through ``schedule``, like a user's policy."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]

    def reset(self, system: SystemInfo) -> None:
        self.inner.reset(system)

    def schedule(self, view: SystemView) -> Decision:
        return self.inner.schedule(view)


# ---------------------------------------------------------------- a cluster of one worker is that worker


@EACH_FAMILY
@pytest.mark.parametrize("time", TIMES)
def test_one_worker_is_the_single_worker(name: str, time: str) -> None:
    ended = 0
    for j, k in some(enumerate(range(0, 27, 2)), 4):
        for horizon, capacity, gap in ((math.inf, 48, 0.0), (math.inf, 28, 45.0), (19.5, 32, 8.0)):
            system = System(capacity, TIMES[time], horizon=horizon, stall_limit=80, **rules_of(k))
            table = workload(j, gap=gap)
            one = outcome(system, table, name, seed=k)
            other = outcome(system.replicate(1), table, name, seed=k)
            if isinstance(one, str) or isinstance(other, str):
                assert one == other
                continue
            ended += 1
            assert_equal(one, other)
    assert ended >= number(15, 4)


class Waits(Policy):
    """Waits or runs empty batches for a while, then serves all requests."""

    info = PolicyInfo(name="waits", summary="waits")

    def __init__(self, *, first: Sequence[Any] = ()) -> None:
        self.first = list(first)

    def reset(self, system: SystemInfo) -> None:
        self.left = list(self.first)

    def schedule(self, view: SystemView) -> Decision:
        if self.left and view.num_waiting:
            until = self.left.pop(0)
            return Decision(wait_until=None if until is None else view.clock + until)
        return Decision(admit=view.waiting.request_id.tolist())


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("horizon", [1.0, 2.5, 6.0, math.inf])
@pytest.mark.parametrize(
    "first",
    [[1, math.inf], [None, None], [None, math.inf], [0.5, 0.5, 0.5], [math.inf] * 3, [0.25] * 5, [1.5, None]],
)
def test_one_worker_that_waits(first: list[Any], horizon: float, limit: int) -> None:
    """Waits end with an arrival, at the horizon, or never; livelocks are found at the same decision."""
    system = System(100, UNIT, stall_limit=limit, horizon=horizon)
    table = RequestTable([0, 1.5, 4, 4], [5, 5, 2, 2], [2, 3, 1, 1])
    one, other = (outcome(s, table, Waits(first=first)) for s in (system, system.replicate(1)))
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert_equal(one, other)


def test_an_empty_table() -> None:
    nothing = RequestTable([], [], [])
    for system in (System(40, UNIT), System(40, UNIT).replicate(3), apart(1, 2)):
        for compiled in (True, False):
            result = simulate(system, nothing, "fcfs", log=True, compiled=compiled)
            assert result.completed
            assert (result.worker["clock"] == 0).all()
            assert len(result.log) == 0


# ---------------------------------------------------------------- workers do not touch each other


def alone(
    system: System, table: RequestTable, name: str, worker: int, ids: Any, seed: int
) -> SimulationResult:
    """Run one worker of a cluster on its requests, under a policy with the same information as in the cluster."""
    of = system.all_workers[worker]
    rules = {name: getattr(system, name) for name in ("first_token", "progress_on_evict", "requeue")}
    single = System(of.kv_capacity, of.batch_time, stall_limit=system.stall_limit, **rules)
    keep = np.zeros(len(table), bool)
    keep[ids] = True
    policy = make_policy(name)
    assert isinstance(policy, CompiledPolicy)
    known = known_to(policy, table)
    policy.reset(system_info(system, table, seed, known, worker))
    simulation = Simulation(single, table.select(keep), needs=known, log=True)
    simulation.set_policies([policy])
    simulation.run()
    return result_of(simulation, policy)


def histogram(result: SimulationResult) -> Any:
    """Return the number of gaps in every bin and their sums, of which a result has those with gaps, (2, bins)."""
    found = np.zeros((2, GAP_BINS))
    for count, total in zip(result.gap_counts, result.gap_sums, strict=True):
        found[:, uncompiled(gap_bin)(total / count)] += count, total
    return found


@EACH_FAMILY
@pytest.mark.parametrize("router", ["round_robin", "uniform_random"])
def test_workers_equal_single_workers_on_their_requests(name: str, router: str) -> None:
    unlike = [Worker(40, AFFINE), Worker(64, UNIT), Worker(48, STAIRS)]
    compared = 0
    for seed in range(number(4, 2)):
        rules: dict[str, Any] = rules_of(7 * seed + 1)
        for system in (
            System.cluster(unlike, stall_limit=300, **rules),
            System(40, AFFINE, stall_limit=300, **rules).replicate(4),
        ):
            r = len(system.all_workers)
            table = workload(seed, n=60, rate=0.5 * r, gap=15.0 * (seed % 2))
            whole = outcome(system, table, name, router=router, seed=seed)
            if isinstance(whole, str):
                continue
            compared += 1
            if router == "round_robin":
                np.testing.assert_array_equal(whole.requests["worker"], np.arange(60) % r)
            parts = []
            for k in range(r):
                ids = np.flatnonzero(whole.requests["worker"] == k)
                parts.append(own := alone(system, table, name, k, ids, seed))
                links = ("worker", "queue_next", "queue_prev")
                searched = ("index", "effort_before", "total_queue_steps")  # past requests of other workers
                equal_tables(whole.requests[ids], own.requests, f"requests of worker {k}", links)
                equal_tables(whole.worker[k : k + 1], own.worker, f"worker {k}", searched)
                equal_tables(whole.log[whole.log["worker"] == k], own.log, f"log of worker {k}", ("worker",))
            counts, sums = histogram(whole)
            np.testing.assert_array_equal(counts, sum(histogram(own)[0] for own in parts))
            np.testing.assert_allclose(sums, sum(histogram(own)[1] for own in parts), rtol=1e-12)
            assert (np.diff(whole.log["end_time"]) >= 0).all(), "rows are written as batches end"
    assert compared >= number(4, 2)


@pytest.mark.parametrize("name", others_long(list(POLICIES), {"fcfs", "ranked", "dist_serve"}))
def test_compiled_uncompiled_and_through_the_views_are_equal(name: str) -> None:
    """The checks of every policy compare its own modes; here are those of the cluster's loop."""
    workers = [Worker(32, AFFINE), Worker(48, UNIT), Worker(40, STAIRS)]
    stages = [Worker(48, UNIT, "prefill"), Worker(32, AFFINE, "decode"), Worker(48, STAIRS, "decode")]
    for k, kind in some(((4, workers), (26, stages), (23, workers), (9, stages)), 2)[: number(4, 2)]:
        system = System.cluster(
            kind, stall_limit=120, transfer_latency=0.3, transfer_time=0.01, **rules_of(k)
        )
        table, router = workload(k, 14, rate=1.5), ("least_outstanding_work", "uniform_random")[k % 2]
        outcomes = [
            outcome(
                system,
                table,
                ThroughView(make_policy(name)) if through else name,
                router=PlainRouter(make_router(router)) if plain else router,
                seed=k,
                compiled=compiled,
            )
            for through, plain, compiled in (
                (False, False, True), (False, False, False), (False, True, True), (True, False, True),
                (True, True, False),
            )
        ]  # fmt: skip
        for other in outcomes[1:]:
            if isinstance(outcomes[0], str) or isinstance(other, str):
                assert outcomes[0] == other
            else:
                assert_equal(outcomes[0], other)


# ---------------------------------------------------------------- conservation


@pytest.mark.parametrize(
    "router", ["round_robin", "uniform_random", "join_shortest_queue", "least_outstanding_work"]
)
@EACH_FAMILY
def test_nothing_is_lost(name: str, router: str) -> None:
    stages = [Worker(48, UNIT, "prefill"), Worker(32, AFFINE, "prefill")]
    stages += [Worker(40, STAIRS, "decode"), Worker(40, UNIT, "decode"), Worker(60, AFFINE, "decode")]
    ended = 0
    for k in range(6):
        kind = stages if k % 2 else [Worker(40, UNIT), Worker(60, STAIRS), Worker(40, AFFINE)]
        rules = rules_of((5 * k + 2) % 27)
        system = System.cluster(kind, stall_limit=300, transfer_latency=0.7, transfer_time=0.02, **rules)
        table = workload(k, n=40, rate=2.0)
        result = outcome(system, table, name, router=router, seed=k)
        if isinstance(result, str):
            continue
        ended += 1
        r, w, rows = result.requests, result.worker, result.log
        assert result.completed
        assert (r["num_output_tokens"] == table.output_len).all()
        assert np.isfinite(r["finish_time"]).all()
        assert w["total_finished"].sum() == len(table)
        np.testing.assert_array_equal(
            w["total_finished"],
            np.bincount(r["worker"], minlength=len(w)),
            err_msg="finished where they were",
        )
        for counter in (
            "outstanding_requests",
            "outstanding_tokens",
            "kv_tokens",
            "num_active",
            "num_waiting",
        ):
            assert (w[counter] == 0).all(), counter
        handed_over = np.isin(r["worker"], np.flatnonzero(w["role"] == 2))
        assert w["total_routed"].sum() == len(table) + handed_over.sum()
        assert w["total_admitted"].sum() == r["num_admissions"].sum()
        assert (r["num_admissions"] == 1 + handed_over + r["num_evictions"]).all()
        assert w["total_evicted"].sum() == r["num_evictions"].sum()
        assert w["total_recomputed_tokens"].sum() == r["num_recomputed_tokens"].sum()
        assert w["total_delivered_tokens"].sum() == table.output_len.sum()
        assert (w["total_output_tokens"] >= w["total_delivered_tokens"]).all()
        for k_, own in enumerate(w):
            mine = rows[rows["worker"] == k_]
            assert own["iteration"] == len(mine)
            assert own["total_output_tokens"] == mine["num_output_tokens"].sum()
            assert own["total_prefill_tokens"] == mine["prefill_tokens"].sum()
            assert own["total_finished"] == mine["num_finished"].sum()
            assert own["peak_kv_tokens"] == mine["kv_tokens"].max(initial=0) <= kind[k_].kv_capacity
            assert (mine["start_time"][1:] >= mine["end_time"][:-1]).all(), "batches overlap"
            assert kind[k_].role != "prefill" or not mine["num_decodes"].any()
        shown = int(
            system.first_token == "uncounted"
        )  # a token that counts as no output, and the gap after it
        assert result.gap_counts.sum() == (table.output_len - 1 + shown).sum()
    assert ended >= 3


@pytest.mark.parametrize("horizon", [0.75, 3.0, 7.25, 12.0])
def test_requests_unfinished_at_the_horizon(horizon: float) -> None:
    workers = [
        Worker(40, UNIT, "prefill"),
        Worker(40, AffineBatchTime(2.6), "decode"),
        Worker(30, AFFINE, "decode"),
    ]
    system = System.cluster(workers, horizon=horizon, transfer_latency=2.5)
    table = workload(1, n=30, rate=1.5)
    result, free = (
        simulate(s, table, "dist_serve", router="uniform_random", log=True)
        for s in (system, System.cluster(workers, transfer_latency=2.5))
    )
    r, w = result.requests, result.worker
    assert not result.completed
    assert result.log is not None
    assert free.log is not None
    np.testing.assert_array_equal(result.log, free.log[free.log["start_time"] < horizon])
    assert (w["clock"] >= horizon).all()
    assert (
        w["clock"] == [max([horizon, *result.log["end_time"][result.log["worker"] == k]]) for k in range(3)]
    ).all()
    assert (r["status"][table.arrival_time > horizon] == FUTURE).all()
    assert (r["status"][table.arrival_time < horizon] != FUTURE).all()
    held = np.isin(r["status"], (WAITING, ACTIVE))
    for k in range(3):
        assert w["num_active"][k] == ((r["status"] == ACTIVE) & (r["worker"] == k)).sum()
        assert w["num_waiting"][k] == ((r["status"] == WAITING) & (r["worker"] == k)).sum()
    moving = r["status"] == TRANSFERRING
    assert w["outstanding_requests"].sum() <= held.sum() + moving.sum()
    assert (r["status"] == FINISHED).sum() == w["total_finished"].sum()
