"""Fleets in the loop of a cluster: cases worked by hand, static fleets, routers, wrong answers, ends and copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from helpers.runs.fleets import CASES, system_of, table_of
from kvgym.baselines.autoscalers.given import Plan
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, InvalidDecisionError, LivelockError, UserCodeError
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import ROUTERS, Router, RouterInfo
from kvgym.policies.runner import SimulationResult, prepare_run, result_of, simulate
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo
from kvgym.simulator.cluster.fleet_view import Ahead, FleetView
from kvgym.simulator.cluster.members import DRAINS, STARTING, UP
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.system import System, Worker
from kvgym.simulator.view import ClusterView
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_cases_worked_by_hand(name: str, compiled: bool) -> None:
    case = CASES[name]
    result = case.play(compiled=compiled)
    assert result.requests["first_token_time"].tolist() == list(case.first)
    assert result.requests["finish_time"].tolist() == list(case.end)
    assert result.requests["worker"].tolist() == list(case.workers)
    assert result.fleet is not None
    assert [tuple(change) for change in result.fleet.changes] == list(case.changes)
    assert sum(result.fleet.gpu_seconds()) == case.gpu_seconds
    assert result.fleet.attempts == case.again


# ---------------------------------------------------------------- the same as a static cluster


def busy_table(n: int = 60) -> RequestTable:
    """Return requests that overlap on few workers."""
    rng = np.random.default_rng(5)
    return RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 12, n)),
        prompt_len=rng.integers(5, 60, n),
        output_len=rng.integers(1, 40, n),
    )


def small(*roles: str) -> System:
    """Return a cluster of workers with these roles."""
    workers = [Worker(300, AffineBatchTime(constant=0.05, per_decode_token=0.002), role) for role in roles]
    return System.cluster(workers, transfer_latency=0.01, transfer_time=1e-4)


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_a_fleet_that_does_not_change_has_the_bits_of_a_static_cluster(router: str) -> None:
    table = busy_table()
    for roles in (("mixed",) * 3, ("prefill", "prefill", "decode", "decode")):
        system = small(*roles)
        pools = tuple(Pool(n, most=n, least=n) for n in map(roles.count, dict.fromkeys(roles)))
        static = simulate(system, table, "fcfs", router=router, seed=3)
        own = replace(system, fleet=Fleet(pools))
        for autoscaler in (None, "hpa:target=2"):
            fleet = simulate(own, table, "fcfs", router=router, seed=3, autoscaler=autoscaler)
            assert fleet.requests.tobytes() == static.requests.tobytes()
            assert fleet.worker.tobytes() == static.worker.tobytes()


# ---------------------------------------------------------------- routers and autoscalers


class EverySecond(Autoscaler):
    """Targets from a list, one for each second."""

    info = AutoscalerInfo(name="every_second", summary="targets from a list")
    interval = 1.0

    def __init__(self, targets: Sequence[int]) -> None:
        self.targets = list(targets)

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the target of this second."""
        return [self.targets[int(view.time) % len(self.targets)]] * len(view.pools)


class Watching(Autoscaler):
    """Notes what a view shows of tokens, every half second."""

    info = AutoscalerInfo(
        name="watching", summary="notes tokens", needs=frozenset({"tokens", "arrivals_ahead"})
    )
    interval = 0.5

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int], int]] = []
        self.ahead: list[Ahead | None] = []

    def scale(self, view: FleetView) -> Sequence[int]:
        """Note, and keep the size."""
        self.seen.append((view.time, view.pools[0].prefill_tokens.tolist(), view.finished_tokens))
        self.ahead.append(view.ahead)
        return [view.pools[0].target]


def test_an_autoscaler_that_needs_them_sees_tokens_and_arrivals_to_come() -> None:
    watching = Watching()
    table = table_of((0, 2), (0, 1), (1, 1))
    simulate(system_of(Pool(1, most=1)), table, "fcfs", router="join_shortest_queue", autoscaler=watching)
    queued = {time: tokens for time, tokens, _ in watching.seen}
    # One at a time, prefills of 1,023 tokens in 1 s, then 2, 1 and 1 s of decodes: 0 – 3, 3 – 5, 5 – 7.
    assert [queued[time] for time in (0.5, 1.0, 2.5, 3.5, 4.5, 5.5, 6.5)] == [
        [2046], [2046], [2046], [2046], [1023], [1023], [0]
    ]  # fmt: skip
    assert sum(tokens for *_, tokens in watching.seen) == 7
    ahead = watching.ahead[0]
    assert ahead is not None
    assert ahead.rates.mean.rates == (3 / 60,)
    assert (ahead.prompt_len, ahead.output_len) == (1023, 7 / 3)


TARGETS = (3, 1, 4, 0, 2, 4, 1)


def changing(
    router: str | Router, compiled: bool = True, drain: str = "finish", horizon: float = np.inf
) -> SimulationResult:
    """Run a fleet with targets that change every second."""
    pools = (Pool(2, most=4, least=0, startup=1.5, drain=drain),)
    system = replace(small(*["mixed"] * 4), fleet=Fleet(pools), horizon=horizon)
    autoscaler = EverySecond(TARGETS)
    return simulate(
        system, busy_table(), "vllm_v1", router=router, seed=3, compiled=compiled, autoscaler=autoscaler
    )


def check_run(result: SimulationResult) -> None:
    """Check that every request ends once, on a worker that was ready or draining until then."""
    assert result.completed
    assert result.fleet is not None
    assert result.worker["total_finished"].sum() == len(result.table)
    assert not result.worker["outstanding_requests"].any()
    assert not result.worker["outstanding_tokens"].any()
    changes = result.fleet.changes
    for request in result.requests:
        k, end = request["worker"], request["finish_time"]
        state = [change.state for change in changes if change.place == k and change.time < end]
        assert state[-1] in (UP, DRAINS)
    billed = result.fleet.seconds_in(STARTING, UP, DRAINS)
    assert (billed >= result.worker["busy_time"] - 1e-9).all()


@pytest.mark.parametrize("drain", ["finish", "requeue"])
@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_all_routers_work_while_workers_come_and_go(router: str, drain: str) -> None:
    check_run(changing(router, drain=drain))


def test_workers_of_two_roles_come_and_go() -> None:
    system = small("prefill", "prefill", "decode", "decode", "decode")
    pools = (Pool(1, most=2, least=0, startup=1.5, drain="requeue"), Pool(0, most=3, least=0, startup=0.5))
    result = simulate(
        replace(system, fleet=Fleet(pools, budget=4)), busy_table(), "fcfs", router="join_shortest_queue",
        autoscaler=EverySecond(TARGETS),
    )  # fmt: skip
    check_run(result)


@pytest.mark.parametrize("router", ["round_robin", "rebalancing"])
def test_compiled_and_plain_code_agree(router: str) -> None:
    compiled, plain = changing(router, drain="requeue"), changing(router, compiled=False, drain="requeue")
    assert compiled.requests.tobytes() == plain.requests.tobytes()
    assert compiled.fleet == plain.fleet


class First(Router):
    """A router in Python that takes the first candidate, or a worker that it is given."""

    info = RouterInfo(name="first", summary="the first candidate")

    def __init__(self, worker: int | None = None) -> None:
        self.worker = worker

    def route(self, view: ClusterView) -> int:
        """Return the first candidate."""
        return view.candidates[0] if self.worker is None else self.worker


@pytest.mark.parametrize("drain", ["finish", "requeue"])
def test_routers_in_python_see_the_workers_that_are_ready(drain: str) -> None:
    check_run(changing(First(), drain=drain))


def test_a_worker_that_is_not_ready_is_no_answer() -> None:
    with pytest.raises(InvalidDecisionError, match="to worker 3; valid: 0, 1"):
        changing(First(3))


def test_a_worker_that_starts_again_has_an_empty_cache() -> None:
    table = RequestTable.from_columns(
        arrival_time=np.array([0.0, 5.0, 40.0]), prompt_len=np.full(3, 48), output_len=np.full(3, 4),
        hashes=BlockHashes.from_rows([[1, 2, 3]] * 3, np.full(3, 48), 16),
    )  # fmt: skip
    system = replace(small("mixed"), prefix_cache="computed", block_size=16)
    fleet = Fleet((Pool(1, most=1, least=0, startup=1.0),))
    plan = Plan(file=[(20.0, (0,)), (30.0, (1,))])
    stays = simulate(system, table, "fcfs")
    stopped = simulate(replace(system, fleet=fleet), table, "fcfs", autoscaler=plan)
    assert stays.worker["total_hit_tokens"].tolist() == [64]
    assert stopped.worker["total_hit_tokens"].tolist() == [32]


# ---------------------------------------------------------------- wrong answers, ends, copies


class Answers(Autoscaler):
    """An autoscaler that returns what it is given."""

    info = AutoscalerInfo(name="answers", summary="one answer")

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the answer."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


DRAIN = CASES["drain: the worker with fewer requests, which finishes them"]


@pytest.mark.parametrize("answer", [[1, 2], [1.5], None, "3", 3])
def test_wrong_targets_are_named(answer: object) -> None:
    system = system_of(*DRAIN.pools)
    with pytest.raises(InvalidDecisionError, match=r"autoscaler .answers. returned .* each of the 1 pools"):
        simulate(system, table_of(*DRAIN.requests), "fcfs", autoscaler=Answers(answer), compiled=False)


def test_an_exception_of_an_autoscaler_is_its_own() -> None:
    system = system_of(*DRAIN.pools)
    with pytest.raises(UserCodeError, match="scale"):
        simulate(
            system, table_of(*DRAIN.requests), "fcfs", autoscaler=Answers(ValueError("no")), compiled=False
        )


def test_an_autoscaler_that_leaves_requests_without_workers_is_a_livelock() -> None:
    system = system_of(Pool(0, most=2, least=0))
    with pytest.raises(LivelockError, match="autoscaler 'answers' has been asked"):
        simulate(system, table_of((0, 1)), "fcfs", autoscaler=Answers([0]))


def test_an_autoscaler_needs_a_fleet() -> None:
    with pytest.raises(ConfigError, match="an autoscaler is for fleets"):
        simulate(small("mixed", "mixed"), busy_table(5), "fcfs", autoscaler="hpa")


def test_a_fleet_has_a_worker_for_each_place() -> None:
    with pytest.raises(ConfigError, match="a fleet of 3 places and 2 workers"):
        replace(small("mixed", "mixed"), fleet=Fleet((Pool(1, most=3),)))


def test_a_fixed_size_keeps_the_budget() -> None:
    system = system_of(Pool(1, most=3), budget=2)
    with pytest.raises(ConfigError, match="3 GPUs at the start of a fleet with a budget of 2"):
        simulate(system, table_of((0, 1)), "fcfs", autoscaler="fixed:workers=3")


def test_a_horizon_ends_a_fleet() -> None:
    result = changing("join_shortest_queue", horizon=5.0)
    assert result.fleet is not None
    assert not result.completed
    assert 5.0 <= result.fleet.end < 6.0


def through_pickle(simulation: ClusterSimulation) -> ClusterSimulation:
    """Return a copy as another process has it."""
    copied: ClusterSimulation = pickle.loads(pickle.dumps(simulation))
    return copied


@pytest.mark.parametrize("state", [STARTING, DRAINS])
@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_a_copy_in_the_middle_of_a_start_or_a_drain_ends_as_the_run_does(
    copied: Callable[[ClusterSimulation], ClusterSimulation], state: int
) -> None:
    pools = (Pool(2, most=4, least=0, startup=1.5, drain="requeue"),)
    system, policy = replace(small(*["mixed"] * 4), fleet=Fleet(pools)), make_policy("fcfs")
    simulation, _ = prepare_run(
        system, busy_table(), policy, "round_robin", 3, autoscaler=EverySecond(TARGETS)
    )
    assert isinstance(simulation, ClusterSimulation)
    assert simulation.changing_fleet is not None
    members = simulation.changing_fleet.members
    while members.targets[-1][0] < 3 or state not in members.state:
        assert not simulation.run(budget=1)
    twin = copied(simulation)
    ends = []
    for one in (simulation, twin):
        one.run()
        ends.append(result_of(one, policy))
    assert ends[0].requests.tobytes() == ends[1].requests.tobytes()
    assert ends[0].fleet == ends[1].fleet
