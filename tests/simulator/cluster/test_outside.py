"""Requests that are lost, given up or refused: cases worked by hand, random fleets, copies, wrong answers."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.runs.fleets import system_of, table_of
from kvgym.baselines.autoscalers.given import Plan
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import InvalidDecisionError, LivelockError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import REJECT, Router, RouterInfo
from kvgym.policies.runner import SimulationResult, prepare_run, result_of, simulate
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.cluster.luck import Crowd
from kvgym.simulator.cluster.members import DOWN, DRAINS, OFF, STARTING, UP
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.fleet import Failures, Fleet, Pool, Users
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import ABORTED, FAILED, FINISHED, SHED
from kvgym.simulator.view import ClusterView
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

ONE = Pool(1, most=1)
TWO_PLACES = Pool(1, most=2, startup=2)


def run(
    system: System, *requests: tuple[float, int], router: str | Router = "join_shortest_queue"
) -> SimulationResult:
    """Run requests as plain Python."""
    return simulate(system, table_of(*requests), "fcfs", router=router, compiled=False)


# ---------------------------------------------------------------- users


class Given(Crowd):
    """Users with a patience each; one tries again."""

    def patience(self, n: int) -> NDArray[np.float64]:
        """Return the patience of the users."""
        return np.array([math.inf, 5, 5, 10])

    def tries_again(self, request: int, tries: int) -> bool:
        """Return whether a user tries again."""
        return request == 1 and tries == 0


def test_patience_starts_again_and_a_token_at_its_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgym.simulator.cluster.luck.Crowd", Given)
    result = run(system_of(ONE, users=Users(delay=2.0)), (0, 9), (1, 1), (2, 1), (3, 1))
    assert np.nan_to_num(result.requests["first_token_time"], nan=-1).tolist() == [1, 13, -1, 11]
    assert np.nan_to_num(result.requests["finish_time"], nan=-1).tolist() == [10, 14, -1, 12]
    assert result.requests["status"].tolist() == [FINISHED, FINISHED, ABORTED, FINISHED]
    assert result.fleet is not None
    assert result.fleet.attempts == ((1, 2),)
    assert sum(result.fleet.gpu_seconds()) == 14
    assert result.completed


def test_a_request_leaves_a_batch_that_runs_and_gets_no_token() -> None:
    result = run(system_of(ONE, users=Users(patience=0.5)), (0, 9), (0.25, 3), (0.75, 0))
    assert result.requests["status"].tolist() == [ABORTED] * 3
    assert result.worker["total_output_tokens"].tolist() == [0]
    assert result.worker["busy_time"].tolist() == [2]  # batches of the first and of the last request
    assert not result.worker["kv_tokens"].any()
    patient = run(system_of(ONE, users=Users(patience=1.0)), (0, 9), (0.25, 3))
    assert patient.requests["status"].tolist() == [FINISHED, ABORTED]


def test_users_give_up_while_no_worker_is_ready() -> None:
    users = Users(patience=20.0, again=1.0, delay=25.0)
    result = simulate(
        system_of(Pool(0, most=1, least=0, startup=60), users=users), table_of((5, 4), (20, 4)), "fcfs",
        router="join_shortest_queue", autoscaler=Plan(file=[(10.0, (1,))]), compiled=False,
    )  # fmt: skip
    assert result.requests["status"].tolist() == [
        ABORTED,
        FINISHED,
    ]  # the second try ends at 70, before it is routed
    assert result.requests["finish_time"][1] == 75
    assert result.fleet is not None
    assert result.fleet.attempts == ((0, 2), (1, 2))
    assert compute_metrics(result, ["aborted", "retries"]) == {"aborted": 1, "retries": 2}


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize(("keep", "end", "gap", "made"), [(True, 12, 3, 10), (False, 16, 7, 14)])
def test_a_request_that_is_lost_keeps_what_its_user_has(
    keep: bool, end: float, gap: float, made: int
) -> None:
    failures = Failures(at=((4.0, 0),), repair=100)
    result = run(system_of(TWO_PLACES, failures=failures, keep_tokens=keep), (0, 9))
    r = result.requests[0]
    assert (r["first_token_time"], r["finish_time"], r["max_token_gap"]) == (1, end, gap)
    assert r["num_recomputed_tokens"] == 1023 + 4
    assert result.worker["total_output_tokens"].sum() == made
    assert result.worker["total_delivered_tokens"].sum() == 10
    figures = compute_metrics(result, ["retries", "lost_tokens", "failed", "recomputed_tokens", "tbt_max"])
    assert list(figures.values()) == [1, 1027, 0, 1027, gap]


def test_a_request_that_is_lost_may_end() -> None:
    table = table_of((0, 9), (2, 1)).replace(ttft_slo=np.full(2, 1.5))
    fleet = system_of(TWO_PLACES, failures=Failures(at=((4.5, 0),), repair=100), on_loss="fail")
    result = simulate(fleet, table, "fcfs", router="join_shortest_queue", compiled=False)
    assert result.requests["status"].tolist() == [FAILED, FAILED]
    assert result.worker["busy_time"].tolist() == [4.5, 0]  # the batch that is thrown away until then
    assert result.requests["num_output_tokens"].tolist() == [4, 0]
    figures = compute_metrics(result, ["failed", "finished", "unfinished", "slo_attainment", "gpu_hours"])
    assert list(figures.values()) == [2, 0, 0, 0, 4.5 / 3600]
    assert result.completed


def test_workers_that_fail_before_they_serve_are_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgym.simulator.cluster.changing.MOST_FAILURES", 100)
    system = system_of(Pool(1, most=1, startup=0), failures=Failures(mtbf=1.0, repair=0.0))
    with pytest.raises(LivelockError, match="workers have failed 100 times since a user got a token"):
        run(system, (0, 60))


def test_equal_lives_meet_every_autoscaler() -> None:
    system = system_of(Pool(2, most=4, startup=5), failures=Failures(mtbf=20.0, repair=5.0))
    ends = []
    for autoscaler in (None, "fixed:workers=2"):
        result = simulate(
            system, table_of(*[(4.0 * i, 2) for i in range(10)]), "fcfs", router="join_shortest_queue",
            autoscaler=autoscaler, compiled=False,
        )  # fmt: skip
        assert result.fleet is not None
        ends.append([change for change in result.fleet.changes if change.state == DOWN])
    assert ends[0] == ends[1]
    assert ends[0]


# ---------------------------------------------------------------- refusals


class Refuses(Router):
    """A router in Python that refuses every request."""

    info = RouterInfo(name="refuses", summary="refuses")
    sheds = True

    def route(self, view: ClusterView) -> int:
        """Refuse."""
        return REJECT


@pytest.mark.parametrize("fleet", [True, False])
def test_a_router_may_refuse_requests_of_any_cluster(fleet: bool) -> None:
    system = system_of(ONE) if fleet else replace(system_of(ONE), fleet=None)
    result = run(system, (0, 4), (1, 1), router=Refuses())
    assert result.requests["status"].tolist() == [SHED, SHED]
    assert compute_metrics(result, ["shed", "unfinished"]) == {"shed": 2, "unfinished": 0}
    queue = run(system, (0, 4), (1, 1), (2, 1), router="shedding:queue=1")
    assert queue.requests["status"].tolist() == [FINISHED, FINISHED, SHED]


def test_a_router_that_does_not_declare_it_may_not_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refuses, "sheds", False)
    with pytest.raises(InvalidDecisionError, match="refuses request 0; it must declare sheds"):
        run(system_of(Pool(2, most=2)), (0, 4), router=Refuses())


# ---------------------------------------------------------------- random fleets, copies


class EverySecond(Autoscaler):
    """Targets from a list, one for each second."""

    info = AutoscalerInfo(name="random_targets", summary="targets from a list")
    interval = 1.0

    def __init__(self, targets: list[int]) -> None:
        self.targets = targets

    def scale(self, view: FleetView) -> list[int]:
        """Return the target of this second."""
        return [self.targets[int(view.time + g) % len(self.targets)] for g in range(len(view.pools))]


@st.composite
def fleets(draw: st.DrawFn) -> tuple[System, str, list[int], int]:
    """Return a fleet with trouble of all kinds, its router, targets and the seed of its requests."""
    roles = draw(st.sampled_from([("mixed",), ("mixed", "mixed"), ("prefill", "decode")]))
    number = st.sampled_from([0.0, 0.5, 2.0])
    pools = tuple(
        Pool(
            draw(st.integers(1, 2)), most=3, least=0, startup=draw(number), min_uptime=draw(number),
            drain=draw(st.sampled_from(["finish", "requeue"])), drain_limit=draw(st.sampled_from([None, 0.0, 1.0])),
        )
        for _ in roles
    )  # fmt: skip
    failures = Failures(
        mtbf=draw(st.sampled_from([math.inf, 20.0, 5.0])),
        repair=draw(number),
        at=((1.0, 0), (2.25, 1), (2.25, 0)),
    )
    users = Users(
        patience=draw(st.sampled_from([math.inf, 0.3, 3.0])), sigma=draw(st.sampled_from([0.0, 0.5])),
        again=draw(st.sampled_from([0.0, 0.5, 1.0])), delay=draw(number), most=2,
    )  # fmt: skip
    fleet = Fleet(
        pools, budget=draw(st.sampled_from([None, 5])), failures=failures, users=users,
        on_loss=draw(st.sampled_from(["retry", "retry", "fail"])), retry_delay=draw(number),
        keep_tokens=draw(st.booleans()),
    )  # fmt: skip
    model = AffineBatchTime(constant=0.05, per_prefill_token=0.002, per_decode_token=0.002)
    system = System.cluster(
        [Worker(300, model, role) for role in roles for _ in range(3)], transfer_latency=0.05, transfer_time=1e-3,
        prefix_cache=draw(st.sampled_from(["off", "computed", "scheduled"])), block_size=draw(st.sampled_from([1, 8])),
        progress_on_evict=draw(st.sampled_from(["lost", "recompute", "kept"])),
    )  # fmt: skip
    targets = [*draw(st.lists(st.integers(0, 3), min_size=3, max_size=6)), 2]
    router = draw(st.sampled_from(["join_shortest_queue", "shedding:queue=4", "rebalancing", "round_robin"]))
    return replace(system, fleet=fleet), router, targets, draw(st.integers(0, 99))


def requests_of(seed: int, n: int = 25) -> RequestTable:
    """Return requests that overlap on few workers and share the beginnings of their prompts."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(5, 60, n)
    return RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 6, n)), prompt_len=prompt, output_len=rng.integers(1, 30, n),
        hashes=BlockHashes.from_rows([[1 + i % 3] * -(-p // 8) for i, p in enumerate(prompt)], prompt, 8),
    )  # fmt: skip


def play(
    case: tuple[System, str, list[int], int], policy: str = "fcfs", compiled: bool = False
) -> SimulationResult:
    """Run a random fleet."""
    system, router, targets, seed = case
    return simulate(
        system, requests_of(seed), policy, router=router, seed=seed, autoscaler=EverySecond(targets),
        compiled=compiled, log=True,
    )  # fmt: skip


def check_books(result: SimulationResult) -> None:
    """Check that each request ends once, nothing is left anywhere, and batches run where workers are up."""
    r, w, fleet = result.requests, result.worker, result.fleet
    assert fleet is not None
    assert result.log is not None
    assert result.completed
    status = r["status"]
    assert set(status.tolist()) <= {FINISHED, ABORTED, FAILED, SHED}
    assert w["total_finished"].sum() == (status == FINISHED).sum()
    assert (np.isfinite(r["finish_time"]) == (status == FINISHED)).all()
    done = status == FINISHED
    assert (r["num_delivered_tokens"][done] == result.table.output_len[done]).all()
    assert w["total_delivered_tokens"].sum() == r["num_delivered_tokens"].sum()
    assert r["num_recomputed_tokens"].sum() >= w["total_recomputed_tokens"].sum()
    assert np.isnan(r["first_token_time"][status == ABORTED]).all()
    for name in ("outstanding_requests", "outstanding_tokens", "num_active", "num_waiting", "num_prefilling",
                 "kv_tokens", "kv_allocated", "kv_shared", "num_full"):  # fmt: skip
        assert not w[name].any(), name
    in_use, gpus = 0, {STARTING: 1, UP: 1, DRAINS: 1, OFF: 0, DOWN: 0}
    state = np.zeros(fleet.fleet.num_places, np.int64)
    for change in fleet.changes:
        in_use += gpus[change.state] - gpus[int(state[change.place])]
        state[change.place] = change.state
        assert in_use <= fleet.fleet.limit
    assert fleet.gpu_seconds().sum() >= w["busy_time"].sum() - 1e-9
    for row in result.log:
        states = [c.state for c in fleet.changes if c.place == row["worker"] and c.time <= row["start_time"]]
        assert any(state in (UP, DRAINS) for state in states[-2:])


@settings(max_examples=15, deadline=None)
@given(fleets())
def test_each_request_ends_once_and_nothing_is_left(case: tuple[System, str, list[int], int]) -> None:
    result = play(case, compiled=True)
    check_books(result)
    again = play(case, compiled=True)
    assert again.requests.tobytes() == result.requests.tobytes()
    assert again.fleet == result.fleet


MIXED = AffineBatchTime(constant=0.05, per_prefill_token=0.002, per_decode_token=0.002)
SAVED = (
    replace(
        System.cluster([Worker(300, MIXED)] * 3),
        fleet=Fleet(
            (Pool(2, most=3, least=0, startup=0.75, drain_limit=0.5),), retry_delay=0.5,
            failures=Failures(at=((1.0, 0), (2.25, 1), (2.3, 0))), users=Users(patience=0.75, again=0.5, delay=0.6),
        ),
    ),
    "round_robin", [2, 3, 1, 2], 4,
)  # fmt: skip


def test_compiled_and_plain_code_agree() -> None:
    compiled, plain = play(SAVED, "vllm_v1", compiled=True), play(SAVED, "vllm_v1")
    assert compiled.requests.tobytes() == plain.requests.tobytes()
    assert compiled.fleet == plain.fleet
    figures = compute_metrics(plain, ["aborted", "retries", "lost_tokens"])
    assert all(value > 0 for value in figures.values())


def through_pickle(simulation: ClusterSimulation) -> ClusterSimulation:
    """Return a copy as another process has it."""
    copied: ClusterSimulation = pickle.loads(pickle.dumps(simulation))
    return copied


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_with_retries_due_ends_as_the_run_does(
    copied: Callable[[ClusterSimulation], ClusterSimulation],
) -> None:
    (system, router, targets, seed), policy = SAVED, make_policy("vllm_v1")
    simulation, _ = prepare_run(
        system, requests_of(seed), policy, router, seed, autoscaler=EverySecond(targets), compiled=True
    )
    assert isinstance(simulation, ClusterSimulation)
    assert simulation.changing_fleet is not None
    outside, members = simulation.changing_fleet.outside, simulation.changing_fleet.members
    while outside.due == math.inf or DOWN not in members.state:
        assert not simulation.run(budget=1)
    ends = []
    for one in (copied(simulation), simulation):
        one.run()
        ends.append(result_of(one, policy))
    assert ends[0].requests.tobytes() == ends[1].requests.tobytes()
    assert ends[0].fleet == ends[1].fleet


def test_a_session_goes_on_after_a_request_that_has_ended_otherwise() -> None:
    table = table_of((0, 9), (1, 1), (2, 1)).replace(
        session_id=np.array([0, 1, 1]), turn=np.array([1, 1, 2]), think_time=np.array([0.0, 0.0, 3.0])
    )
    system = replace(system_of(ONE, users=Users(patience=5.0)), sessions="closed")
    result = simulate(system, table, "fcfs", router="join_shortest_queue", compiled=False)
    assert result.requests["status"].tolist() == [FINISHED, ABORTED, FINISHED]
    assert result.table.arrival_time.tolist() == [0, 1, 9]  # given up at 6
    assert result.requests["finish_time"][2] == 12


def test_a_run_with_a_horizon_stops_with_retries_due() -> None:
    system = system_of(ONE, failures=Failures(at=((2.5, 0),), repair=50), retry_delay=30.0)
    result = run(replace(system, horizon=20.0), (0, 9), (1, 1))
    assert not result.completed
    assert compute_metrics(result, ["finished", "unfinished", "retries"]) == {
        "finished": 0,
        "unfinished": 2,
        "retries": 2,
    }
