"""What routers and autoscalers know: cases worked by hand, figures against records of runs, limits, wrong settings."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.runs.fleets import SECOND, table_of
from kvgym.batch_time import AffineBatchTime
from kvgym.envs.routing.config import RoutingConfig
from kvgym.errors import ConfigError, InformationError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.fleet.knowledge import scrape_of
from kvgym.policies.policy import make_policy
from kvgym.policies.routing import Router, RouterInfo, make_router
from kvgym.policies.runner import SimulationResult, prepare_run, result_of, simulate
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.knowledge import VIEWS, Knowledge
from kvgym.simulator.system import System, Worker
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.view import ClusterView
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

TWO = System.cluster([Worker(1900, SECOND)] * 2)
"""Workers with one slot."""


def play(
    system: System, table: RequestTable, router: str | Router, known: Knowledge | None, compiled: bool = True
) -> SimulationResult:
    result = simulate(replace(system, knowledge=known), table, "fcfs", router=router, compiled=compiled)
    assert result.completed
    return result


class Fewest(Router):
    """The fewest unfinished requests that the router knows of, of equal ones the lowest index; notes what it sees."""

    info = RouterInfo(name="fewest", summary="the fewest requests, ties to the lowest index")

    def __init__(self) -> None:
        self.seen: list[tuple[float, int, NDArray[np.int64]]] = []

    def __deepcopy__(self, memo: object) -> Fewest:
        """Return another router that notes in the same list."""
        other = Fewest()
        other.seen = self.seen
        return other

    def route(self, view: ClusterView) -> int:
        """Return the worker."""
        counts = view.column("outstanding_requests")
        self.seen.append((view.clock, view.request_id, counts))
        return min(view.candidates, key=lambda k: (counts[k], k))


FOUR = ((1, 9), (2, 9), (3, 9), (4, 9), (12, 1))
HAND: dict[str, tuple[Knowledge, tuple[tuple[float, int], ...], list[int], list[float]]] = {
    "a scrape every 10 s: all go to one worker until the next": (
        Knowledge("scraped", interval=10.0), FOUR, [0, 0, 0, 0, 1], [2, 12, 22, 32, 13],
    ),
    "the same and what was sent since then": (
        Knowledge("both", interval=10.0), FOUR, [0, 1, 0, 1, 0], [2, 3, 12, 13, 22],
    ),
    "two routers that only know their own requests": (
        Knowledge("inflight", routers=2), ((0, 9),) * 4, [0, 0, 1, 1], [1, 11, 1, 11],
    ),
    "a scrape that is 3 s late: that of 10 s is not known at 12 s": (
        Knowledge("scraped", interval=10.0, delay=3.0), FOUR, [0, 0, 0, 0, 0], [2, 12, 22, 32, 42],
    ),
    "scrapes at 2 and 12 s, after the arrivals of these times": (
        Knowledge("scraped", interval=10.0, offset=2.0), FOUR, [0, 0, 1, 1, 1], [2, 12, 4, 14, 24],
    ),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", HAND)
def test_cases_worked_by_hand(name: str, compiled: bool) -> None:
    known, requests, workers, first = HAND[name]
    result = play(TWO, table_of(*requests), Fewest(), known, compiled)
    assert result.requests["worker"].tolist() == workers
    assert result.requests["first_token_time"].tolist() == first


@pytest.mark.parametrize("compiled", [True, False])
def test_routers_of_kvgym_take_equal_workers_in_turn(compiled: bool) -> None:
    table = table_of(*FOUR, (13, 1), (14, 1))
    # The scrape of 10 s shows two requests on each worker; that of 0 s nothing.
    known = Knowledge("scraped", interval=10.0)
    result = play(TWO, table, "join_shortest_queue", known, compiled)
    assert result.requests["worker"].tolist() == [0, 1, 0, 1, 0, 1, 0]
    # Router 0 begins with worker 0, router 1 with worker 1.
    result = play(TWO, table, "join_shortest_queue", replace(known, routers=2), compiled)
    assert result.requests["worker"].tolist() == [0, 1, 1, 0, 0, 1, 1]
    # Own counts alone: the lowest index. Requests 0, 2, 4, 6 and 1, 3, 5 belong together.
    inflight = Knowledge("inflight", routers=2)
    result = play(TWO, table, "join_shortest_queue", inflight, compiled)
    assert result.requests["worker"].tolist() == [0, 0, 1, 1, 0, 0, 1]


# ---------------------------------------------------------------- against the records of runs


def small(*roles: str) -> System:
    workers = [Worker(300, AffineBatchTime(constant=0.05, per_decode_token=0.002), role) for role in roles]
    return System.cluster(workers, transfer_latency=0.01, transfer_time=1e-4)


THREE = small("mixed", "mixed", "mixed")


def busy_table(n: int = 60, sessions: bool = False) -> RequestTable:
    rng = np.random.default_rng(5)
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 12, n)),
        prompt_len=rng.integers(5, 60, n),
        output_len=rng.integers(1, 40, n),
    )
    return table.replace(session_id=rng.integers(0, 9, n), turn=np.arange(1, n + 1)) if sessions else table


@pytest.mark.parametrize(
    "known",
    [
        Knowledge("exact", routers=2),
        Knowledge("scraped", interval=0.7, delay=0.3, offset=0.2),
        Knowledge("scraped", 3, interval=0.11, delay=0.5),
        Knowledge("both", interval=1.3),
        Knowledge("both", 3, interval=0.25, delay=0.9),
        Knowledge("inflight"),
        Knowledge("inflight", 4, interval=1.0),
    ],
    ids=lambda known: f"{known.view}-{known.routers}-{known.delay}",
)
def test_routers_see_what_the_records_say(known: Knowledge) -> None:
    router = Fewest()
    result = play(THREE, busy_table(), router, known)
    rows, n = result.requests, len(result.requests)
    ids, arrival, end, worker = np.arange(n), rows["arrival_time"], rows["finish_time"], rows["worker"]
    assert [i for _, i, _ in router.seen] == list(range(n))
    for time, i, counts in router.seen:
        own, before = ids % known.routers == i % known.routers, ids < i
        there = before & (end > time)
        if known.view in ("scraped", "both"):
            assert known.interval is not None
            number = np.floor((time - known.delay - known.offset) / known.interval + 1e-9)
            scraped = known.offset + number * known.interval if number >= 0 else -np.inf
            there = (arrival <= scraped) & (end > scraped)
            if known.view == "both":
                there |= before & own & (arrival > scraped) & (end > time)
        elif known.view == "inflight":
            there &= own
        assert counts.tolist() == [int((there & (worker == k)).sum()) for k in range(3)]


COUNTING = (
    "join_shortest_queue",
    "least_outstanding_work",
    "session_affinity",
    "round_robin",
    "uniform_random",
)
CACHING = (
    "lmetric:queued=true",
    "preble",
    "prefix_aware",
    "cache_aware:threshold=0.5",
    "weighted:uncached_delay=1",
)


def with_caches(sessions: bool = False) -> tuple[System, RequestTable]:
    """Return a cluster with prefix caches, and requests that share beginnings."""
    table = busy_table(sessions=sessions)
    units = -(-table.prompt_len // 4)
    owner = np.random.default_rng(1).integers(0, 6, len(table))
    chain = np.concatenate([owner[i] * 100 + np.arange(units[i]) for i in range(len(table))])
    hashes = BlockHashes(chain, np.cumsum(units) - units, table.prompt_len, 4)
    prefixed = table.replace(hashes=hashes)
    return replace(THREE, block_size=4, prefix_cache="computed"), prefixed


@pytest.mark.parametrize("router", COUNTING)
def test_own_counts_of_one_router_are_exact_for_routers_that_only_count(router: str) -> None:
    for system in (THREE, small("prefill", "prefill", "decode", "decode")):
        table = busy_table(sessions=True)
        exact = play(system, table, router, None)
        assert (
            play(system, table, router, Knowledge("inflight")).requests.tobytes() == exact.requests.tobytes()
        )


@pytest.mark.parametrize("router", [*COUNTING, *CACHING])
def test_an_interval_of_0_is_exact(router: str) -> None:
    system, table = with_caches(sessions=True)
    exact = play(system, table, router, None)
    for view in ("scraped", "both"):
        found = play(system, table, router, Knowledge(view, interval=0.0))
        assert found.requests.tobytes() == exact.requests.tobytes()


KNOWN = (
    Knowledge("scraped", 2, interval=0.5, delay=0.2), Knowledge("inflight", 3),
    Knowledge("both", 2, interval=0.3, delay=0.7),
)  # fmt: skip


def prepared(known: Knowledge, router: str = "join_shortest_queue") -> ClusterSimulation:
    system, table = with_caches()
    policy = make_policy("fcfs")
    simulation, _ = prepare_run(replace(system, knowledge=known), table, policy, router, seed=3)
    assert isinstance(simulation, ClusterSimulation)
    return simulation


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.view)
def test_counts_end_at_0_and_states_can_be_restored(known: Knowledge) -> None:
    simulation = prepared(known)
    assert not simulation.run(budget=70)
    saved = [array.copy() for array in simulation.changing()]
    twins = [copy.deepcopy(simulation), pickle.loads(pickle.dumps(simulation))]
    for run in (simulation, *twins):
        assert run.run()
    first = result_of(simulation, make_policy("fcfs")).requests.tobytes()
    for twin in twins:
        assert result_of(twin, make_policy("fcfs")).requests.tobytes() == first
    for array, before in zip(simulation.changing(), saved, strict=True):
        array[...] = before
    simulation._ended = False
    assert simulation.run()
    assert result_of(simulation, make_policy("fcfs")).requests.tobytes() == first
    assert (simulation.sent["worker"] == UNKNOWN).all()
    slots, routers = known.slots, known.routers
    rows = simulation.seen.reshape(-1, 3)
    if known.view == "inflight":
        assert len(rows) == routers
        assert not rows["outstanding_requests"].any()
        assert not rows["kv_tokens"].any()
    elif known.view == "both":
        sent = rows[routers + slots :]
        for name in ("outstanding_requests", "outstanding_tokens", "num_waiting", "kv_allocated"):
            assert not sent[name].any()
        assert not simulation.seen_backlog.reshape(-1, 3)[routers + slots :].any()


@pytest.mark.parametrize(
    ("router", "known"),
    [(router, KNOWN[i % len(KNOWN)]) for i, router in enumerate((*COUNTING, *CACHING))],
)
def test_compiled_and_plain_code_agree(router: str, known: Knowledge) -> None:
    system, table = with_caches(sessions=True)
    part = table.select(np.arange(10))
    results = [play(system, part, router, known, compiled) for compiled in (True, True, False)]
    assert len({result.requests.tobytes() for result in results}) == 1


def test_each_router_has_its_own_state_and_keeps_its_sessions() -> None:
    table = table_of(*[(t, 0) for t in range(6)])
    result = play(TWO, table, "round_robin", Knowledge(routers=3))
    assert result.requests["worker"].tolist() == [0, 0, 0, 1, 1, 1]
    sessions = table.replace(session_id=np.array([5, 5, 7, 7, 5, 7]), turn=np.arange(1, 7))
    result = play(TWO, sessions, "round_robin", Knowledge(routers=2))
    assert result.requests["worker"].tolist() == [0, 1, 0, 1, 0, 0]


class Hits(Router):
    """The workers in turn; notes the hits."""

    info = RouterInfo(name="hits", summary="in turn")

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def route(self, view: ClusterView) -> int:
        """Return the worker."""
        self.seen.append(view.hits.tolist())
        return view.request_id % 2


def test_caches_are_known_as_of_the_scrape() -> None:
    hashes = BlockHashes(np.arange(3), np.zeros(4, int), np.full(4, 9), 4)
    table = RequestTable.from_columns(arrival_time=[0, 3, 6, 12], prompt_len=[9] * 4, output_len=[2] * 4)
    table = table.replace(hashes=hashes)
    system = System.cluster([Worker(100, SECOND)] * 2, block_size=4, prefix_cache="computed")
    seen = {}
    for view, late in (("exact", 0.0), ("scraped", 0.0), ("both", 2.0), ("inflight", 0.0)):
        router = Hits()
        known = Knowledge(view, interval=5.0)
        play(replace(system, cache_staleness=late), table, router, known)
        seen[view] = router.seen
    # Worker 0 has the prompt from 1 s on, worker 1 from 4 s on; the scrapes are at 0, 5 and 10 s.
    assert seen["exact"] == seen["inflight"] == [[0, 0], [8, 0], [8, 8], [8, 8]]
    assert seen["scraped"] == [[0, 0], [0, 0], [8, 8], [8, 8]]
    assert seen["both"] == [[0, 0], [8, 0], [8, 8], [8, 8]]  # events of caches, 2 s late


# ---------------------------------------------------------------- fleets


class Noting(Autoscaler):
    """A worker more from 4 s on; notes what it sees."""

    info = AutoscalerInfo(name="noting", summary="two workers from 4 s on")
    interval = 1.0

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget."""
        super().reset(fleet, seed)
        self.seen: list[tuple[float, int, int, list[int], int]] = []
        SEEN.append(self.seen)

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the target."""
        (pool,) = view.pools
        self.seen.append((view.time, view.arrivals, view.completions, pool.ongoing.tolist(), pool.ready))
        return [2 if view.time >= 4 else 1]


SEEN: list[list[tuple[float, int, int, list[int], int]]] = []


def test_autoscalers_see_the_last_scrape_that_has_arrived() -> None:
    pools = (Pool(1, most=2, startup=2.0),)
    known = Knowledge(interval=2.0, delay=1.0)
    system = replace(TWO, fleet=Fleet(pools), knowledge=known)
    table = table_of((0.5, 1), (1.5, 1), (4, 1), (6.5, 1))
    SEEN.clear()
    result = simulate(system, table, "fcfs", router="join_shortest_queue", autoscaler=Noting())
    # Ends: 2.5, 4.5, 6.5 on worker 0, which is routed before the other one is ready, and 8.5 on worker 1.
    assert result.requests["finish_time"].tolist() == [2.5, 4.5, 6.5, 8.5]
    assert SEEN[0][:9] == [
        (0.0, 0, 0, [0], 1),
        (1.0, 0, 0, [0], 1),  # the scrape of 0 s
        (2.0, 0, 0, [0], 1),
        (3.0, 2, 0, [2], 1),  # that of 2 s: two arrivals
        (4.0, 0, 0, [2], 1),
        (5.0, 1, 1, [2], 1),  # that of 4 s, after the arrival of that time
        (6.0, 0, 0, [2, 0], 2),  # a worker that has just started has no sample
        (7.0, 0, 1, [1, 0], 2),
        (8.0, 0, 0, [1, 0], 2),
    ]


@pytest.mark.parametrize("router", ["join_shortest_queue", "preble"])
@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.view)
def test_workers_come_and_go(known: Knowledge, router: str) -> None:
    class Steps(Noting):
        def scale(self, view: FleetView) -> Sequence[int]:
            return [(3, 1, 2, 0, 3, 1)[int(view.time) % 6]]

    results = []
    for drain, compiled in (("finish", True), ("requeue", True), ("requeue", known.view != "both")):
        pools = (Pool(2, most=3, least=0, startup=0.6, drain=drain),)
        system, table = with_caches()
        system = replace(system, fleet=Fleet(pools), knowledge=known)
        part = table.select(np.arange(24))
        result = simulate(system, part, "fcfs", router=router, autoscaler=Steps(), compiled=compiled)
        assert result.completed
        results.append(result.requests.tobytes())
    assert results[1] == results[2]


# ---------------------------------------------------------------- wrong settings


def test_wrong_settings() -> None:
    for arguments, expected in (
        ({"view": "stale"}, "router_view = 'stale'; valid: exact, scraped, inflight, both"),
        ({"view": "both"}, "needs an interval of scrapes"),
        ({"routers": 0}, "routers = 0; expected 1 … 1,000"),
        ({"interval": 1e-9}, "interval = 1e-09; expected seconds, 0.001"),
        ({"interval": 0.01, "delay": 2.0}, "expected at most 100 intervals"),
    ):
        with pytest.raises(ConfigError, match=expected):
            Knowledge(**arguments)  # type: ignore[arg-type]
    many, known = (
        System.cluster([Worker(1900, SECOND)] * 40), Knowledge("both", 1000, interval=1.0, delay=100.0),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="take fewer routers"):
        play(many, table_of((0, 1)), "round_robin", known)


@pytest.mark.parametrize("known", [*KNOWN, Knowledge(routers=2)], ids=lambda known: known.view)
def test_routers_that_need_the_present_are_refused(known: Knowledge) -> None:
    with pytest.raises(ConfigError, match="'rebalancing' moves requests by what workers have at that moment"):
        play(TWO, table_of((0, 1)), "rebalancing", known)
    play(TWO, table_of((0, 1)), "rebalancing:difference=0,migrate=false", known)


def test_requests_of_workers_are_not_known_from_scrapes() -> None:
    class Reading(Fewest):
        def route(self, view: ClusterView) -> int:
            return len(view.waiting(0))

    play(TWO, table_of((0, 1)), Reading(), Knowledge(routers=2))
    with pytest.raises(InformationError, match="only a router with router_view = exact"):
        play(TWO, table_of((0, 1)), Reading(), Knowledge("inflight"))


# ---------------------------------------------------------------- scenarios


def test_scenarios_describe_scrapes() -> None:
    assert scrape_of("5s+200ms") == {"interval": 5.0, "delay": 0.2}
    assert scrape_of(2.5) == {"interval": 2.5}
    assert scrape_of({"interval": "50ms", "offset": 1}) == {"interval": 0.05, "offset": 1.0}
    with pytest.raises(ConfigError, match=r"scrape = \{'delay': 1\}; expected an interval"):
        scrape_of({"delay": 1})
    scenario = build_scenario("a100-llama2-70b", workers=2, router_view="both", scrape="5s+1s", routers=4)
    assert scenario.make_system().knowledge == Knowledge("both", 4, interval=5.0, delay=1.0)
    expected = "4 routers that know scrapes every 5 s, 1 s late and their own counts"
    assert expected in scenario.summary
    changed = build_scenario(scenario, router_view="inflight")
    assert changed.make_system().knowledge == Knowledge("inflight", 4, interval=5.0, delay=1.0)
    with pytest.raises(ConfigError, match="routers = 4 needs a cluster; add workers"):
        build_scenario("a100-llama2-70b", routers=4)


def test_the_routing_environment_shows_the_present(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    text = (
        "batch_time: {kind: unit}\nkv_capacity: 5000\nworkload: lmsys\nworkers: 2\nknowledge: {routers: 2}\n"
    )
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="Route-v0 shows the present"):
        RoutingConfig.of(scenario=str(path)).make_scenario()


def test_every_view_has_words() -> None:
    texts = {Knowledge(view, interval=1.0).text for view in VIEWS}
    assert len(texts) == len(VIEWS)
    assert make_router("round_robin").exact is False
