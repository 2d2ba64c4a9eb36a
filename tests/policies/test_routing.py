"""The router contract: what every registered router must satisfy, plain routers, and what is refused."""

from __future__ import annotations

import json
import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.amount import number
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError, InformationError, InvalidDecisionError, UnknownNameError, UserCodeError
from kvgym.kernels import RouterView
from kvgym.policies.policy import Decision, Policy, PolicyInfo, policy_defaults
from kvgym.policies.routing import (
    DEFAULT_ROUTER,
    ROUTERS,
    CompiledRouter,
    Router,
    RouterInfo,
    make_router,
    register_router,
    router_kernel,
)
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.system import System, Worker
from kvgym.simulator.view import ClusterView, SystemView, simulation_of
from kvgym.workloads.table import RequestTable

EACH = pytest.mark.parametrize("name", ROUTERS)
UNIT, AFFINE = UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011)
MIXED = System.cluster([Worker(40, AFFINE), Worker(64, UNIT), Worker(40, UNIT), Worker(90, AFFINE)])
APART = System.cluster(
    [
        Worker(40, AFFINE, "prefill"),
        Worker(64, UNIT, "prefill"),
        Worker(40, UNIT, "decode"),
        Worker(90, AFFINE, "decode"),
        Worker(40, AFFINE, "decode"),
    ],
    transfer_latency=0.4,
    transfer_time=0.03,
)
SYSTEMS = {"mixed": MIXED, "apart": APART}


def workload(seed: int = 0, n: int = 40) -> RequestTable:
    rng = np.random.default_rng(seed)
    output = rng.integers(1, 14, n)
    return RequestTable.from_columns(
        arrival_time=np.floor(4 * np.cumsum(rng.exponential(0.5, n))) / 4,
        prompt_len=rng.integers(1, 12, n),
        output_len=output,
        predicted_output_len=np.maximum(1, output + rng.integers(-2, 3, n)),
        priority=rng.integers(0, 3, n),
        ttft_slo=rng.uniform(1, 20, n),
        tbt_slo=rng.uniform(0.5, 4, n),
    )


def assert_equal(one: SimulationResult, other: SimulationResult) -> None:
    for table in ("requests", "worker", "log", "gap_counts", "gap_sums"):
        a, b = getattr(one, table), getattr(other, table)
        for field in a.dtype.names or (...,):
            np.testing.assert_array_equal(a[field], b[field], err_msg=f"{table}.{field}")
    assert one.completed == other.completed


class Plain(Router):
    """Another router, consulted through ``route`` as a user's would be; keeps what it was asked."""

    def __init__(self, inner: Router) -> None:
        self.inner, self.info, self.reassigns = inner, inner.info, inner.reassigns  # type: ignore[misc]
        self.asked: list[tuple[int, range, float]] = []

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        self.inner.reset(num_workers, seed)
        self.asked.clear()

    def route(self, view: ClusterView) -> int:
        self.asked.append((view.request_id, view.candidates, view.clock))
        names = ("problem", "tracker", "workers", "workload", "requests", "active", "decision")
        before = {name: getattr(simulation_of(view), name).tobytes() for name in names}
        chosen = self.inner.route(view)
        for name in names:
            assert getattr(simulation_of(view), name).tobytes() == before[name], f"the router changed {name}"
        return chosen

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        return self.inner.reassign(view)


def test_the_example_router_moves_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the example of docs/routing.md."""
    path = Path(__file__).parents[2] / "scripts" / "examples" / "stealing.py"
    monkeypatch.setattr(ROUTERS, "_items", {name: ROUTERS[name] for name in ROUTERS})
    runpy.run_path(str(path))
    result = simulate(MIXED, workload(), "fcfs", router="stealing", log=True)
    assert result.completed
    assert result.moves is not None
    assert len(result.moves) > 0


# ---------------------------------------------------------------- every registered router


@EACH
def test_info_is_complete(name: str) -> None:
    cls = ROUTERS[name]
    assert cls.info.name == name
    assert name.isidentifier()
    assert name == name.lower()
    assert cls.info.summary
    assert "\n" not in cls.info.summary
    assert cls.__doc__


@EACH
def test_hyperparameters(name: str) -> None:
    defaults = policy_defaults(ROUTERS[name])
    router = make_router(name)
    assert router.hyperparameters() == {}
    assert make_router(router) is router
    assert repr(router) == f"{name}()"
    assert json.loads(json.dumps(defaults)) == defaults
    with pytest.raises(ConfigError, match="no_such_thing") as error:
        make_router(f"{name}:no_such_thing=1")
    assert name in str(error.value)


@EACH
@pytest.mark.parametrize("system", SYSTEMS)
def test_compiled_uncompiled_and_plain_are_equal(name: str, system: str) -> None:
    for seed in range(number(3, 1)):
        table = workload(seed, number(40, 24))
        runs = [
            simulate(SYSTEMS[system], table, "vllm", router=router, seed=seed, log=True, compiled=c)
            for router in (name, Plain(make_router(name)))
            for c in (True, False)
        ]
        assert runs[0].completed
        for other in runs[1:]:
            assert_equal(runs[0], other)


@EACH
def test_same_seed_same_bits_also_reused_and_pickled(name: str) -> None:
    router = make_router(name)
    table = workload(3)
    reference = simulate(APART, table, "fcfs", router=router, seed=7, log=True)
    simulate(MIXED, workload(4), "fcfs", router=router, seed=8)  # reset must forget this
    restored = pickle.loads(pickle.dumps(router))
    for other in (router, restored, name):
        assert_equal(reference, simulate(APART, table, "fcfs", router=other, seed=7, log=True))


@EACH
def test_every_request_is_routed_once_per_stage_when_it_comes(name: str) -> None:
    table = workload(1)
    plain = Plain(make_router(name))
    result = simulate(MIXED, table, "fcfs", router=plain)
    assert [i for i, _, _ in plain.asked] == list(range(len(table)))  # ids are in order of arrival
    assert [t for _, _, t in plain.asked] == table.arrival_time.tolist()
    assert {c for _, c, _ in plain.asked} == {range(4)}
    assert (result.worker["total_routed"] - result.worker["total_received"]).sum() == len(table)

    result = simulate(APART, table, "dist_serve", router=plain, log=True)
    first = [(i, t) for i, c, t in plain.asked if c == range(2)]
    again = [(i, t) for i, c, t in plain.asked if c == range(2, 5)]
    assert first == list(zip(range(len(table)), table.arrival_time.tolist(), strict=True))
    # "counted": the prefill shows the first token; requests of one token end there.
    longer = np.flatnonzero(table.output_len > 1)
    assert sorted(again) == [(i, result.requests["first_token_time"][i]) for i in longer]
    assert len(plain.asked) == len(first) + len(again)
    handed_over = (result.worker["total_routed"] - result.worker["total_received"])[2:]
    assert handed_over.sum() == len(longer)


@EACH
def test_every_worker_gets_something(name: str) -> None:
    for system in SYSTEMS.values():
        routed = simulate(system, workload(2, 80), "fcfs", router=name).worker["total_routed"]
        # One that knows how fast workers are may leave the slowest alone.
        assert ((routed > 0).sum() >= min(2, len(routed))) if name == "weighted" else (routed > 0).all()


def test_the_default_router() -> None:
    table = workload()
    assert_equal(
        simulate(MIXED, table, "fcfs", log=True),
        simulate(MIXED, table, "fcfs", router=DEFAULT_ROUTER, log=True),
    )


# ---------------------------------------------------------------- routers of one's own


class ByLength(Router):
    """Long prompts go to the last worker it may choose, the others to the emptiest."""

    info = RouterInfo(name="by_length", summary="long prompts apart")

    def __init__(self, *, limit: int = 8) -> None:
        self.limit = limit

    def route(self, view: ClusterView) -> int:
        if view.request.prompt_len[0] > self.limit:
            return view.candidates[-1]
        return min(view.candidates, key=lambda k: (view.column("outstanding_requests")[k], k))


@router_kernel
def every_other_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Skip ``params[0]`` workers at each turn, counting in ``state``."""
    state[0] += int(params[0])
    return int(view.first + state[0] % (view.last - view.first))


class EveryOther(CompiledRouter):
    info = RouterInfo(name="every_other", summary="skips workers")
    kernel = every_other_kernel

    def __init__(self, *, step: int = 2) -> None:
        self.step = step

    def params(self) -> Any:
        return np.array([self.step])  # whole numbers are converted


def test_a_plain_router_sees_and_decides() -> None:
    table = workload(5)
    result = simulate(MIXED, table, "fcfs", router=ByLength(limit=6))
    assert (result.requests["worker"][table.prompt_len > 6] == 3).all()
    assert set(result.requests["worker"][table.prompt_len <= 6].tolist()) >= {0, 1, 2}
    assert ByLength(limit=6).hyperparameters() == {"limit": 6}
    assert repr(ByLength(limit=6)) == "by_length(limit=6)"
    with pytest.raises(ConfigError, match=r"router 'by_length'.*limt.*limit=8"):
        ByLength(limt=6)  # type: ignore[call-arg]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_router_of_ones_own(compiled: bool) -> None:
    table = workload(5)
    result = simulate(MIXED, table, "fcfs", router=EveryOther(step=3), log=True, compiled=compiled)
    expected = (3 * np.arange(1, len(table) + 1)) % 4
    np.testing.assert_array_equal(result.requests["worker"], expected)
    assert uncompiled(every_other_kernel) is not every_other_kernel


def test_a_subclass_may_replace_the_kernel_by_python() -> None:
    class Last(EveryOther):
        info = RouterInfo(name="last", summary="the last worker")

        def route(self, view: ClusterView) -> int:
            return view.candidates[-1]

    assert (simulate(MIXED, workload(), "fcfs", router=Last()).requests["worker"] == 3).all()


class FirstFits(Policy):
    """Plain FCFS: one at a time, and nothing declared."""

    info = PolicyInfo(name="first_fits", summary="one at a time")

    def schedule(self, view: SystemView) -> Decision:
        return Decision() if view.num_active else Decision(admit=view.waiting.request_id[:1].tolist())


@EACH
def test_plain_policies_and_plain_routers_go_together(name: str) -> None:
    for system in SYSTEMS.values():
        runs = [
            simulate(
                system, workload(6, number(40, 15)), FirstFits(), router=router, log=True, compiled=compiled
            )
            for router in (name, Plain(make_router(name)))
            for compiled in (True, False)
        ]
        assert runs[0].completed
        for other in runs[1:]:
            assert_equal(runs[0], other)


def test_what_the_view_shows() -> None:
    seen: list[dict[str, list[int]]] = []
    names = ("num_waiting", "num_active", "kv_tokens", "kv_capacity", "outstanding_requests")

    class Looking(Router):
        info = RouterInfo(name="looking", summary="looks")

        def route(self, view: ClusterView) -> int:
            seen.append({name: view.column(name).tolist() for name in (*names, "outstanding_tokens")})
            with pytest.raises(ValueError, match="read-only"):
                view.column("kv_tokens")[0] = 5
            with pytest.raises(ValueError, match="read-only"):
                view.request.prompt_len[0] = 5
            with pytest.raises(AttributeError, match="no worker column 'busy_time'; valid: kv_capacity"):
                view.column("busy_time")
            with pytest.raises(InformationError, match="predicted_length"):
                _ = view.request.predicted_output_len
            assert view.request.arrival_time[0] == view.clock
            return 0

    # Unit time. At 0: 0 joins, then 1 sees it wait. At 1.5 both have been running since 0 and hold what they held
    # at 1: 3 + 1 and 4 + 1 tokens, s + o_done held.
    table = RequestTable.from_columns(
        arrival_time=[0, 0, 1.5], prompt_len=[3, 4, 1], output_len=[4, 4, 1], predicted_output_len=[9, 9, 9]
    )
    system = System(20, UNIT).replicate(2)
    simulate(system, table, "fcfs", router=Looking())
    rows = [[row[name][0] for name in (*names, "outstanding_tokens")] for row in seen]
    assert rows == [[0, 0, 0, 20, 0, 0], [1, 0, 0, 20, 1, 3], [0, 2, 9, 20, 2, 7]]
    assert all(row[name][1] == 0 for row in seen for name in row if name != "kv_capacity")


# ---------------------------------------------------------------- what is refused


class Answer(Router):
    info = RouterInfo(name="answer", summary="a fixed answer")

    def __init__(self, *, first: Any = 0, again: Any = None) -> None:
        self.first, self.again = first, again

    def route(self, view: ClusterView) -> Any:
        return self.first if view.candidates[0] == 0 else self.again


@pytest.mark.parametrize("answer", [None, 1.0, "1", [1], np.nan, 2**70])
def test_an_answer_that_is_no_index(answer: Any) -> None:
    with pytest.raises(
        InvalidDecisionError, match=r"router 'answer' returned .* for request 0; expected the index"
    ):
        simulate(MIXED, workload(), "fcfs", router=Answer(first=answer))


@pytest.mark.parametrize("answer", [-1, 4, 2**40, np.int64(-(2**40))])
def test_a_worker_that_is_not_there(answer: Any) -> None:
    message = rf"router 'answer' sends request 0 to worker {answer}; valid: 0 … 3"
    with pytest.raises(InvalidDecisionError, match=message):
        simulate(MIXED, workload(), "fcfs", router=Answer(first=answer))


def test_the_wrong_stage() -> None:
    with pytest.raises(InvalidDecisionError, match=r"sends request 0 to worker 2; valid: 0 … 1"):
        simulate(APART, workload(), "dist_serve", router=Answer(first=2))
    table = workload()
    handed_over = int(np.flatnonzero(table.output_len > 1)[0])
    message = rf"router 'answer' sends request {handed_over} to worker 1; valid: 2 … 4"
    with pytest.raises(InvalidDecisionError, match=message):
        simulate(APART, table, "dist_serve", router=Answer(first=0, again=1))
    assert simulate(APART, table, "dist_serve", router=Answer(first=np.int8(1), again=4)).completed


@router_kernel
def beyond_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Return the worker after the last, from request 3 on."""
    return int(view.last if view.request >= 3 else view.first)


class Beyond(CompiledRouter):
    info = RouterInfo(name="beyond", summary="one too far")
    kernel = beyond_kernel


@pytest.mark.parametrize("compiled", [True, False])
def test_a_compiled_router_that_errs(compiled: bool) -> None:
    message = r"router 'beyond' sends request 3 to worker 4; valid: 0 … 3"
    with pytest.raises(InvalidDecisionError, match=message):
        simulate(MIXED, workload(), "fcfs", router=Beyond(), compiled=compiled)
    ready = Beyond()
    ready.reset(4, np.random.SeedSequence(0))
    stepped = ClusterSimulation(MIXED, workload(), ready, compiled=compiled)

    def go() -> None:
        running = stepped.start()
        while running:
            running = stepped.step(FirstFits().schedule(stepped.view))

    with pytest.raises(InvalidDecisionError, match=message):
        go()


def test_an_error_in_a_router_names_its_line() -> None:
    class Broken(Router):
        info = RouterInfo(name="broken", summary="fails")

        def route(self, view: ClusterView) -> int:
            raise ZeroDivisionError("mine")

    place = r"Broken\.route|route"  # Python 3.10 knows no qualified names
    with pytest.raises(
        UserCodeError, match=rf"router 'broken': .*({place}) \(.*:\d+\) raised ZeroDivisionError: mine"
    ):
        simulate(MIXED, workload(), "fcfs", router=Broken())


def test_names() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown router 'round_robbin'. Did you mean 'round_robin'"):
        simulate(MIXED, workload(), "fcfs", router="round_robbin")
    with pytest.raises(ConfigError, match="router 'round_robin' is already registered"):
        register_router(type("Mine", (EveryOther,), {"info": RouterInfo(name="round_robin", summary="mine")}))
    with pytest.raises(ConfigError, match=r"a router is for clusters"):
        simulate(System(40, UNIT), workload(), "fcfs", router="round_robin")
    with pytest.raises(TypeError, match="abstract"):
        Router()  # type: ignore[abstract]
