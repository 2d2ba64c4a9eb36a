"""Requests that a router moves between workers: effects, reports and refusals of moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number, some
from helpers.runs.clusters import AFFINE, UNIT, apart, assert_equal, equal_tables, rules_of, workload
from helpers.selection import EACH_FAMILY, others_long
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, InvalidDecisionError, LivelockError
from kvgym.metrics.compute import compute_metrics, worker_metrics
from kvgym.policies.contract.cases import Shuffling
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import ROUTERS, Router, RouterInfo, make_router
from kvgym.policies.runner import SimulationResult, known_to, prepare_run, simulate, system_info
from kvgym.report.export.chrome_trace import ChromeTrace
from kvgym.report.export.trace_file import TraceFile
from kvgym.simulator.observer import Observer
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import FINISHED
from kvgym.simulator.view import ClusterView
from kvgym.theory.hindsight.bounds import bound
from kvgym.workloads.table import RequestTable


class Moving(Router):
    """Routes requests by one list, and moves them by another: (boundary, time, request, worker)."""

    info = RouterInfo(name="moving", summary="moves")
    reassigns = True

    def __init__(self, first: Any = (), moves: Any = ()) -> None:
        self.first, self.moves = list(first), list(moves)
        self.asked: list[tuple[int | None, float]] = []

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        self.left = list(self.moves)

    def route(self, view: ClusterView) -> int:
        return int(self.first[view.request_id]) if self.first else view.candidates[0]

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        self.asked.append((view.boundary, view.clock))
        if self.left and self.left[0][:2] == (view.boundary, view.clock):
            _, _, request, worker = self.left.pop(0)
            return request, worker
        return None


def two(M: int = 40, **rules: Any) -> System:  # noqa: N803
    return System.cluster([Worker(M, UNIT), Worker(M, UNIT)], **rules)


# ---------------------------------------------------------------- by hand


def test_a_waiting_request_goes_to_the_other_queue_at_once() -> None:
    """0 fills worker 0 until 3, 1 waits there; at 1 it is moved to worker 1, with 3 of 8 tokens in use, and begins."""
    table = RequestTable([0, 0, 0], [5, 3, 2], [3, 2, 2])
    stays = simulate(two(8), table, "fcfs", router=Moving([0, 0, 1]))
    result = simulate(two(8), table, "fcfs", router=Moving([0, 0, 1], [(0, 1.0, 1, 1)]), log=True)
    assert stays.requests["finish_time"].tolist() == [3.0, 5.0, 2.0]
    assert result.requests["finish_time"].tolist() == [3.0, 3.0, 2.0]
    assert result.moves is not None
    assert result.requests["worker"].tolist() == [0, 1, 1]
    assert [tuple(m) for m in result.moves] == [(1.0, 1.0, 1, 0, 1, 0, 0)]
    assert compute_metrics(result, ["moves"]) == {"moves": 1.0}
    assert [row["moved_here"] for row in worker_metrics(result)] == [0, 1]


def test_an_active_request_takes_its_kv_along() -> None:
    """At 2.0 request 0 has 5 + 2 tokens; they take 0.5 + 0.1 * 7 s; then it makes its last two tokens on worker 1."""
    table = RequestTable([0], [5], [4])
    router = Moving([0], [(0, 2.0, 0, 1)])
    system = two(transfer_latency=0.5, transfer_time=0.1)
    result = simulate(system, table, "fcfs", router=router, log=True)
    r, moves = result.requests[0], result.moves
    assert r["finish_time"] == pytest.approx(2 + 0.5 + 0.7 + 2)
    assert (r["num_evictions"], r["num_recomputed_tokens"], r["num_admissions"], r["worker"]) == (0, 0, 2, 1)
    assert r["max_token_gap"] == pytest.approx(0.5 + 0.7 + 1)
    assert moves is not None
    assert moves[0]["num_kv_tokens"] == 7
    assert moves[0]["was_active"] == 1
    assert moves[0]["ready_time"] == pytest.approx(3.2)
    assert result.worker["total_output_tokens"].tolist() == [2, 2]
    assert result.worker["total_prefill_tokens"].tolist() == [5, 0]
    assert result.worker["total_swapped_tokens"].sum() == 0
    assert result.worker["kv_tokens"].tolist() == [0, 0]
    assert router.asked[0] == (0, 1.0)


# ---------------------------------------------------------------- every policy


def contract(result: SimulationResult) -> None:
    """Check invariants of a completed run."""
    assert result.completed
    assert (result.requests["status"] == FINISHED).all()
    np.testing.assert_array_equal(result.requests["num_output_tokens"], result.table.output_len)
    for name in (
        "kv_tokens",
        "kv_allocated",
        "num_active",
        "num_waiting",
        "outstanding_requests",
        "outstanding_tokens",
    ):
        assert (result.worker[name] == 0).all(), name
    assert result.worker["total_finished"].sum() == len(result.table)
    assert result.worker["total_received"].sum() == len(result.moves)  # type: ignore[arg-type]
    assert (result.worker["peak_kv_tokens"] <= result.system.usable_capacities).all()


@EACH_FAMILY
def test_policies_keep_up_with_a_router_that_moves_anything(name: str) -> None:
    """Moves between prefill workers and between decode workers; the contract checks those between equal workers."""
    ended = moved = 0
    for k in some((1, 13, 23), 2):
        rules = {"transfer_latency": 0.25, "transfer_time": 0.5 * (k % 2), **rules_of(k)}
        system = apart(2, 2, 60, **rules)
        table = workload(k, 20, rate=1.5)
        runs = []
        for compiled in (True, False):
            router = Shuffling(0.8)
            try:
                runs.append(simulate(system, table, name, router=router, log=True, compiled=compiled, seed=k))
            except (LivelockError, ConfigError) as error:
                runs.append(str(error))
        if isinstance(runs[0], str):
            assert runs[0] == runs[1]
            continue
        contract(runs[0])
        assert_equal(runs[0], runs[1])
        equal_tables(runs[0].moves, runs[1].moves, "moves")
        ended, moved = ended + 1, moved + len(runs[0].moves)
    assert ended >= number(2, 1) or (name in NEEDS_ROOM)
    assert moved > 10 or ended < 2


NEEDS_ROOM = {"wait", "nested_wait"}
"""Policies that may hold requests for ever if decodes come from another worker."""

FORGETFUL = [
    "mc_sf", "mc_sf:overrun=extend", "mc_benchmark", "mc_longest", "ageing", "sarathi:order=spf",
    "vllm_v1:policy=priority", "slai", "slai:paying_first=True", "work_conserving_sjf", "flow_control_classes",
    "clairvoyant:rule=look_ahead",
]  # fmt: skip
"""Policies with a memory that depends only on the present state: queues, heaps, profiles."""


@pytest.mark.parametrize(
    ("name", "requeue"),
    others_long(
        [(name, requeue) for name in FORGETFUL for requeue in ("arrival", "back")],
        {
            ("mc_sf", "back"), ("ageing", "arrival"), ("vllm_v1:policy=priority", "back"), ("slai", "arrival"),
            ("flow_control_classes", "back"), ("clairvoyant:rule=look_ahead", "arrival"),
        },
    ),
)  # fmt: skip
def test_memory_after_moves_matches_the_tables(name: str, requeue: str) -> None:
    """A fresh copy that gets all waiting requests and rebuilds its profile makes the same decisions."""
    compared = 0
    for seed in range(number(4, 2)):
        system = System.cluster([Worker(48, UNIT)] * 3, requeue=requeue, stall_limit=200)
        simulation, copies = prepare_run(
            system, workload(seed, 30, rate=3), make_policy(name), Shuffling(0.8), seed, True, False
        )
        try:
            running = simulation.start()
            while running:
                k = simulation.current
                fresh = make_policy(name)
                known = known_to(fresh, simulation.table)
                fresh.reset(system_info(simulation.system, simulation.table, seed, known, k))
                expected = decided_afresh(simulation, k, fresh)
                chosen = copies[k].schedule(simulation.view)
                if expected is not None:
                    assert chosen == expected
                    compared += 1
                running = simulation.step(chosen)
        except LivelockError:
            continue
    assert compared > 20


def decided_afresh(simulation: Any, k: int, fresh: Any) -> Any:
    """Return the decision of a fresh policy that gets all waiting requests; None if their order is unknown."""
    queued = simulation.queued[k]
    waiting = simulation.view.waiting.request_id
    if (simulation.requests["num_evictions"][waiting] > 0).any():
        return None  # a fresh copy cannot know the place of such a request in its queue
    if 2 * len(waiting) >= len(queued):
        return None
    tables = [getattr(simulation, name) for name in ("queued", "workers", "decision", "active")]
    before = [table.copy() for table in tables]
    queued[: len(waiting)], queued[-1] = waiting, len(simulation.requests) - 1
    simulation.workers["num_queued"][k], simulation.workers["num_left"][k] = len(waiting), 1
    decision = fresh.schedule(simulation.view)
    for table, content in zip(tables, before, strict=True):
        table[:] = content
    return decision


@settings(max_examples=number(40, 15), deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["fcfs", "sarathi:order=spf", "ranked", "flow_control"]),
    st.integers(0, 26),
)
def test_runs_satisfy_the_contract(seed: int, name: str, rules: int) -> None:
    rng = np.random.default_rng(seed)
    workers = [Worker(int(rng.integers(24, 60)), UNIT if rng.random() < 0.5 else AFFINE) for _ in range(3)]
    system = System.cluster(workers, transfer_latency=float(rng.random()), **rules_of(rules))
    result = simulate(system, workload(seed, 20, rate=2), name, router=Shuffling(0.7), log=True, seed=seed)
    contract(result)


def test_no_run_with_moves_is_below_a_bound() -> None:
    """Bounds of clusters hold for requests that begin on one worker and end on another, even if moves are free."""
    workers = [Worker(60, AFFINE), Worker(60, AffineBatchTime(0.05, 0.05, 0.01, 0.0)), Worker(40, UNIT)]
    for seed in range(6):
        table, system = workload(seed, 12, rate=4), System.cluster(workers)
        for metric in ("e2e_latency_mean", "ttft_mean", "makespan"):
            lower = bound(table, system, metric).lower
            for router in (Shuffling(0.5), "rebalancing"):
                result = simulate(system, table, "fcfs", router=router, seed=seed)
                assert compute_metrics(result, [metric])[metric] >= lower * (1 - 1e-9), (seed, metric)


# ---------------------------------------------------------------- routers


def test_registered_routers_move_in_the_compiled_core_as_in_python() -> None:
    class ThroughView(Router):
        def __init__(self, inner: Router) -> None:
            self.inner, self.info, self.reassigns = inner, inner.info, inner.reassigns  # type: ignore[misc]

        def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
            self.inner.reset(num_workers, seed)

        def route(self, view: ClusterView) -> int:
            return self.inner.route(view)

        def reassign(self, view: ClusterView) -> tuple[int, int] | None:
            return self.inner.reassign(view)

    moving = [name for name in ROUTERS if make_router(name).reassigns]
    assert moving == ["rebalancing"]
    for name in moving:
        for seed in range(4):
            system = System.cluster(
                [Worker(40, AFFINE), Worker(48, UNIT), Worker(40, UNIT)], transfer_latency=0.1
            )
            table = workload(seed, 40, rate=3)
            one = simulate(system, table, "fcfs", router=name, log=True)
            other = simulate(system, table, "fcfs", router=ThroughView(make_router(name)), log=True)
            assert_equal(one, other)
            equal_tables(one.moves, other.moves, "moves")
            assert one.moves is not None
            assert len(one.moves) > 0


def test_a_router_that_moves_nothing_changes_nothing() -> None:
    table, policy = workload(1, 30, rate=2), "mc_benchmark:overrun=extend"
    system = System.cluster([Worker(48, UNIT)] * 3)
    plain = simulate(system, table, policy, router="join_shortest_queue", log=True)
    still = simulate(
        system,
        table,
        "mc_benchmark:overrun=extend",
        router="rebalancing:difference=0,migrate=False",
        log=True,
    )
    asked = simulate(system, table, policy, router=Moving(plain.requests["worker"]), log=True)
    assert_equal(plain, still)
    equal_tables(asked.requests, plain.requests, "requests")
    assert still.moves is None


def test_rebalancing_levels_queues_and_relieves_memory() -> None:
    """Three long requests fill worker 0; those behind them move to worker 1, which has short requests."""
    table = RequestTable([0, 0, 0, 0, 0.5, 0.5, 0.5, 0.5], [10] * 8, [9, 2, 9, 2, 9, 2, 9, 2])
    system = two(24)
    before = simulate(system, table, "fcfs", router="join_shortest_queue", log=True)
    after = simulate(system, table, "fcfs", router="rebalancing", log=True)
    assert after.moves is not None
    assert set(after.moves["was_active"].tolist()) >= {0}
    assert after.requests["finish_time"].mean() < before.requests["finish_time"].mean()
    with pytest.raises(ConfigError, match="difference = 1"):
        make_router("rebalancing:difference=1")


# ---------------------------------------------------------------- refused moves


@pytest.mark.parametrize(
    ("move", "message"),
    [
        ((0, 1.0, 0, 2), "moves request 0 to worker 2; valid: 0 … 1"),
        ((0, 1.0, 99, 1), "moves request 99 to worker 1; requests are 0 … 3"),
        ((0, 1.0, 3, 1), "moves request 3 to worker 1, but it is not here yet"),
        ((0, 1.0, 1, 0), "moves request 1 to worker 0, where it is already"),
        ((0, 1.0, 2, 0), "moves request 2 to worker 0, but worker 1 has a batch running with it"),
        ((0, 1.0, "a", 0), "reassigns ('a', 0); expected a request and a worker, or None"),
    ],
)
def test_invalid_moves(move: Any, message: str) -> None:
    table = RequestTable([0, 0, 0, 50], [5, 5, 4, 4], [3, 2, 5, 2])
    slow = System.cluster([Worker(10, UNIT), Worker(40, AffineBatchTime(7.0, 0, 0, 0))])
    with pytest.raises(InvalidDecisionError) as error:
        simulate(slow, table, "fcfs", router=Moving([0, 0, 1, 0], [move]))
    assert message in str(error.value)


def test_decode_workers_take_no_requests_to_prefill() -> None:
    table = RequestTable([0, 0], [50, 50], [3, 3])
    with pytest.raises(InvalidDecisionError, match="does other work than worker 0"):
        simulate(apart(1, 1), table, "fcfs", router=Moving([0, 0], [(0, 1.0, 1, 1)]))


def test_endless_moves() -> None:
    class Restless(Moving):
        def reassign(self, view: ClusterView) -> tuple[int, int] | None:
            waiting = [view.waiting(k).request_id for k in (0, 1)]
            return next(((int(ids[0]), 1 - k) for k, ids in enumerate(waiting) if len(ids)), None)

    table = RequestTable([0, 0, 0], [5, 5, 5], [3, 3, 3])
    with pytest.raises(
        LivelockError, match="has moved more requests than there are at one boundary of worker 0"
    ):
        simulate(two(8), table, "fcfs", router=Restless([0, 0, 0]))


def test_the_routing_environment_has_no_moves() -> None:
    from kvgym.envs.routing.players import router_player

    env: Any = type("Env", (), {"system": two()})()
    with pytest.raises(ConfigError, match="rebalancing' moves requests"):
        router_player(env, "rebalancing")


# ---------------------------------------------------------------- observers


class Noting(Observer):
    """Records the reported worker of every request."""

    def __init__(self) -> None:
        self.at: dict[int, int | None] = {}
        self.moves: list[tuple[float, int, int, int]] = []
        self.tokens: dict[int, int] = {}

    def joined(self, time: float, worker: int, request_id: int) -> None:
        assert self.at.get(request_id) is None
        self.at[request_id] = worker

    def moved(self, time: float, source: int, target: int, request_id: int, was_active: bool) -> None:
        assert self.at[request_id] == source
        self.at[request_id] = None
        self.moves.append((time, request_id, source, target))

    def ran(self, batch: Any) -> None:
        for i, made in zip(batch.request_id.tolist(), batch.decode_tokens.tolist(), strict=True):
            assert self.at[i] == int(batch.row["worker"])
            self.tokens[i] = self.tokens.get(i, 0) + made
        for transfer in batch.transfers:
            self.at[transfer.request_id] = None


@pytest.mark.parametrize("roles", ["mixed", "apart"])
def test_observers_are_notified_of_moves(roles: str, tmp_path: Path) -> None:
    system = (
        apart(2, 2, transfer_latency=0.25) if roles == "apart" else System.cluster([Worker(48, UNIT)] * 3)
    )
    table, noting = workload(2, 24, rate=2), Noting()
    plain = simulate(system, table, "sarathi", router=Shuffling(), log=True, seed=3)
    watched = simulate(system, table, "sarathi", router=Shuffling(), log=True, seed=3, observer=noting)
    assert_equal(plain, watched)
    assert watched.moves is not None
    assert noting.moves == [(m["time"], m["request_id"], m["source"], m["target"]) for m in watched.moves]
    with TraceFile(tmp_path / "trace.json") as file:
        simulate(
            system, table, "sarathi", router=Shuffling(), seed=3, observer=ChromeTrace(file, system, table)
        )
    events = json.loads((tmp_path / "trace.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    ends = [e for e in events if e["ph"] == "X" and e["args"].get("finished")]
    assert len(ends) == len(table)
    for counter in ("waiting", "active"):
        last = {e["pid"]: e["args"] for e in events if e["ph"] == "C" and e["name"] == counter}
        assert all(set(args.values()) == {0} for args in last.values()), counter
