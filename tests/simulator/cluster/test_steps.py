"""Clusters driven from outside: routing, budgets, and refused decisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers.runs.clusters import AFFINE, STAIRS, UNIT, PlainRouter, apart, assert_equal, workload
from kvgym.errors import InvalidDecisionError, KVGymError, LivelockError
from kvgym.policies.policy import CompiledPolicy, Decision, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.policies.routing import make_router
from kvgym.policies.runner import result_of, simulate, system_info
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.system import System, Worker
from kvgym.simulator.view import SystemView, simulation_of
from kvgym.utils.seeding import stream_seed
from kvgym.workloads.table import RequestTable

# ---------------------------------------------------------------- routing from outside


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("stages", [False, True])
def test_routing_from_outside_equals_a_router(stages: bool, compiled: bool) -> None:
    workers = [Worker(40, UNIT), Worker(60, STAIRS), Worker(40, AFFINE)]
    parts = [Worker(40, UNIT, "prefill"), Worker(60, STAIRS, "prefill")]
    parts += [Worker(40, AFFINE, "decode"), Worker(30, UNIT, "decode")]
    system = System.cluster(parts if stages else workers, transfer_latency=0.25)
    table = workload(2, n=30, rate=2.0)
    for name, budget in (("round_robin", None), ("join_shortest_queue", 1), ("uniform_random", 3)):
        expected = simulate(system, table, "vllm", router=name, seed=4, log=True)
        copies = []
        for k in range(len(system.all_workers)):
            policy = make_policy("vllm")
            assert isinstance(policy, CompiledPolicy)
            policy.reset(system_info(system, table, 4, policy.info.needs, k))
            copies.append(policy)
        router = make_router(name)
        router.reset(len(system.all_workers), stream_seed(4, "routing"))
        sim = ClusterSimulation(system, table, None, log=True, compiled=compiled)
        sim.set_policies(copies)
        assert sim.pending is None
        with pytest.raises(InvalidDecisionError, match="no request waits"):
            sim.assign(0)
        ended = sim.run(budget=budget)
        asked = 0
        while not ended:
            before = int(sim.workers["decisions"].sum())
            if sim.pending is None:
                assert budget is not None
                ended = sim.run(budget=budget)
            else:
                asked += 1
                candidates = sim.cluster_view.candidates
                assert not sim.run(), "asks again"
                for wrong in (candidates.stop, candidates.start - 1, 1.0, "0", None):
                    with pytest.raises(
                        InvalidDecisionError, match=f"request {sim.pending} cannot go to worker"
                    ):
                        sim.assign(wrong)  # type: ignore[arg-type]
                worker = router.route(sim.cluster_view) if len(candidates) > 1 else candidates[0]
                ended = sim.assign(worker, budget=budget)
            assert budget is None or int(sim.workers["decisions"].sum()) <= before + budget
        assert sim.pending is None
        assert asked == expected.worker["total_routed"].sum()
        assert_equal(expected, result_of(sim, copies[0]))


@pytest.mark.parametrize("plain", [False, True])
def test_the_budget_is_kept(plain: bool) -> None:
    system = System(40, UNIT).replicate(3)
    table = workload(3, n=30, rate=2.0)
    expected = simulate(system, table, "fcfs", log=True)
    policy = make_policy("fcfs")
    assert isinstance(policy, CompiledPolicy)
    policy.reset(system_info(system, table, 0, policy.info.needs))
    router = make_router("round_robin")
    router.reset(3, np.random.SeedSequence(0))
    sim = ClusterSimulation(system, table, PlainRouter(router) if plain else router, log=True)
    sim.set_policies([policy] * 3)
    calls = 0
    while not sim.run(budget=2):
        calls += 1
        assert int(sim.workers["decisions"].sum()) == 2 * calls
    assert 2 * calls <= int(sim.workers["decisions"].sum()) <= 2 * calls + 2
    assert_equal(expected, result_of(sim, policy))


def test_a_long_log() -> None:
    """The log grows while batches of several workers run; nothing is lost or written twice."""
    n = 3000
    table = RequestTable(np.arange(n) / 2, np.ones(n, int), np.full(n, 7))
    for router in ("round_robin", PlainRouter(make_router("round_robin"))):
        result = simulate(System(40, AFFINE).replicate(3), table, "fcfs", router=router, log=True)
        assert result.log is not None
        assert len(result.log) == result.worker["iteration"].sum() > 4096
        assert result.log["num_output_tokens"].sum() == 7 * n
        assert (np.diff(result.log["end_time"]) >= 0).all()


# ---------------------------------------------------------------- errors name the worker


class PerWorker(Policy):
    """Serves all requests, but returns a given decision on one worker."""

    info = PolicyInfo(name="per_worker", summary="goes wrong on one worker")

    def __init__(self, *, worker: int, decision: Any) -> None:
        self.worker, self.decision = worker, decision

    def schedule(self, view: SystemView) -> Decision:
        if simulation_of(view).current == self.worker:
            chosen: Decision = self.decision(view) if callable(self.decision) else self.decision
            return chosen
        return Decision(admit=view.waiting.request_id.tolist())


FOUR = RequestTable([0, 0, 3, 3], [5] * 4, [3] * 4)


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (
            Decision(admit=[9]),
            r"worker 1, iteration 0, t = 0 s: the decision admits request 9, which is unknown",
        ),
        (Decision(admit=[2]), r"worker 1, .*request 2, which is not here yet"),
        (Decision(admit=[0]), r"worker 1, .*request 0, which is active on worker 0"),
        (Decision(evict=[0]), r"worker 1, .*evicts request 0, which is active on worker 0, not active"),
        (Decision(admit=[1, 1]), r"worker 1, .*request 1, which is waiting but listed twice"),
        (Decision(wait_until=-1.0), r"worker 1, .*waits until -1 s, which is not later than now"),
        (Decision(admit=[1], tokens={1: 6}), r"worker 1, .*gives request 1 6 tokens; valid: 0 … 5"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_invalid_decisions(decision: Decision, message: str, compiled: bool) -> None:
    policy = PerWorker(worker=1, decision=decision)
    with pytest.raises(InvalidDecisionError, match=rf"policy 'per_worker', {message}"):
        simulate(System(9, UNIT).replicate(2), FOUR, policy, compiled=compiled)


def test_a_request_that_waits_elsewhere_cannot_be_admitted() -> None:
    class Steals(Policy):
        info = PolicyInfo(name="steals", summary="takes what waits on worker 0")

        def schedule(self, view: SystemView) -> Decision:
            if simulation_of(view).current == 0:
                return Decision(wait_until=math.inf)
            return Decision(admit=[0])

    system = System(9, UNIT, horizon=20).replicate(2)
    with pytest.raises(InvalidDecisionError, match=r"worker 1, .*request 0, which is waiting on worker 0"):
        simulate(system, FOUR, Steals())


def test_a_refused_decision_changes_nothing() -> None:
    router = make_router("round_robin")
    runs = []
    for errs in (False, True):
        router.reset(2, np.random.SeedSequence(0))
        sim = ClusterSimulation(System(8, UNIT).replicate(2), FOUR, router, log=True)
        running = sim.start()
        while running:
            if errs:
                for wrong in (
                    Decision(admit=[7]),
                    Decision(admit=sim.view.waiting.request_id[:1].tolist() * 2),
                ):
                    if wrong.admit:
                        with pytest.raises(InvalidDecisionError, match=f"worker {sim.current}"):
                            sim.step(wrong)
            free = not sim.view.num_active
            running = sim.step(Decision(admit=sim.view.waiting.request_id[:free].tolist()))
        runs.append(result_of(sim, make_policy("fcfs")))
        with pytest.raises(KVGymError, match="the run has ended"):
            sim.step(Decision())
    assert_equal(*runs)
    assert runs[0].completed


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_livelock_and_deadlock_name_the_worker(worker: int) -> None:
    table = workload(0, n=12, rate=3.0)
    system = System(60, UNIT, stall_limit=25).replicate(3)
    for decision, message in (
        (Decision(), rf"worker {worker}, .*admitted no request for 25 decisions"),
        (Decision(wait_until=math.inf), rf"worker {worker}, .*waits for the next arrival, but there is none"),
        (
            lambda view: Decision(wait_until=view.clock + 0.5),
            rf"worker {worker}, .*admitted no request for 25 decisions",
        ),
    ):
        with pytest.raises(LivelockError, match=message):
            simulate(system, table, PerWorker(worker=worker, decision=decision))


def test_livelock_on_a_decode_worker() -> None:
    system = apart(1, 2, stall_limit=25)
    with pytest.raises(LivelockError, match=r"worker 2, .*admitted no request"):
        simulate(system, workload(0, n=12), PerWorker(worker=2, decision=Decision()))


def test_stepping_needs_a_router() -> None:
    with pytest.raises(KVGymError, match="stepping a cluster needs a router"):
        ClusterSimulation(System(40, UNIT).replicate(2), FOUR, None).start()


def test_a_policy_sees_its_own_worker() -> None:
    seen: list[tuple[Any, ...]] = []

    class Looks(Policy):
        info = PolicyInfo(name="looks", summary="looks")

        def reset(self, system: SystemInfo) -> None:
            seen.append((system.kv_capacity, type(system.batch_time).__name__))

        def schedule(self, view: SystemView) -> Decision:
            waiting = view.waiting.request_id.tolist()
            seen.append(
                (simulation_of(view).current, view.kv_capacity, view.clock, waiting, view.finished.tolist())
            )
            return Decision(admit=waiting)

    table = RequestTable([0, 0, 1, 1.5], [5] * 4, [2, 1, 1, 1])
    simulate(System.cluster([Worker(30, UNIT), Worker(50, STAIRS)]), table, Looks())
    # Worker 1: 6 KV tokens, between 5 (0.25 s) and 20 (0.5 s); in any case it is done before 1.
    assert seen == [
        (30, "UnitBatchTime"), (50, "PiecewiseBatchTime"),
        (0, 30, 0.0, [0], []), (1, 50, 0.0, [1], []), (0, 30, 1.0, [2], []), (1, 50, 1.5, [3], [1]),
    ]  # fmt: skip
