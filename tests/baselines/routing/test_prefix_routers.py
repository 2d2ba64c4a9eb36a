"""Routers that know prefix caches or sessions: their choices by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.router_views import router_view
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import ConfigError
from kvgym.kernels import found_of, hit_of, missing_of
from kvgym.policies.routing import CompiledRouter, Router, RouterInfo, make_router
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.simulator.view import ClusterView
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable


def choice(spec: str, workers: list[dict[str, Any]], hits: list[int] | tuple[()] = (), **request: Any) -> int:
    """Return the choice of a router among workers with 100 tokens of memory; hits are units of 10 tokens."""
    router = make_router(spec)
    assert isinstance(router, CompiledRouter)
    router.reset(len(workers), np.random.SeedSequence(0))
    figures = {
        "kv_capacity": 100,
        "batch_base": 1.0,
        "batch_decode": 0.5,
        "batch_context": 0.0,
        "batch_prefill": 0.1,
    }
    view = router_view([figures] * len(workers), workers, hits, **request)
    return int(uncompiled(router.kernel)(view, *router.arguments()))


def queue(waiting: int, used: int) -> dict[str, Any]:
    return {"num_waiting": waiting, "kv_allocated": used}


def load(requests: int) -> dict[str, Any]:
    return {"outstanding_requests": requests}


def test_a_hit_leaves_the_last_token_to_compute() -> None:
    for prompt, found in ((30, 20), (31, 30), (45, 40), (9, 0)):
        view = router_view([{}], [{}], [4], prompt=prompt)
        assert (uncompiled(hit_of)(view, 0), uncompiled(missing_of)(view, 0)) == (found, prompt - found)
    handed_over = router_view([{}], [{}], [3], num_kv_tokens=30, num_prefill_left=0)
    assert uncompiled(missing_of)(handed_over, 0) == 0


def test_what_the_host_has_behind_the_hit() -> None:
    view = router_view([{}] * 3, [{}] * 3, [1, 0, 2], prompt=31, hosts=[[1, 2], [1, 2], []])
    assert [uncompiled(found_of)(view, k) for k in range(3)] == [30, 0, 20]  # the second lacks the first unit
    assert [uncompiled(hit_of)(view, k) for k in range(3)] == [10, 0, 20]
    without = router_view([{}], [{}], [2], prompt=31)
    assert uncompiled(found_of)(without, 0) == 20


def test_the_host_counts_with_a_weight_of_its_own() -> None:
    even = [queue(0, 50), queue(0, 50)]
    spec = "prefix_aware:prefix=1,queue=0,free=0,relative=false"
    hosts = [[0, 1, 2], []]  # 10 and 20 of 31 tokens on the GPU; 30 and 20 with the host
    assert choice(spec, even, [1, 2], prompt=31, hosts=hosts) == 1
    assert choice(f"{spec},host=0.5", even, [1, 2], prompt=31, hosts=hosts) == 1
    assert choice(f"{spec},host=2", even, [1, 2], prompt=31, hosts=hosts) == 0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # Hits of 20, 10, 0 of 31 tokens; 4, 2, 0 wait; 50, 20, 90 of 100 in use.
        # Relative: prefix 1, 0, 0, as the least of those that have any is 10; queue 0, 1/2, 1; memory .5, .8, .1.
        ("prefix_aware", 0),  # 2 + .5, .5 + .8, 1 + .1
        ("prefix_aware:queue=3", 2),  # 2.5, 1.5 + .8, 3 + .1
        ("prefix_aware:prefix=0,queue=0", 1),
        ("prefix_aware:prefix=1,free=0", 0),  # 1, 1/2, 1: a tie
        ("prefix_aware:prefix=1.1,queue=2,relative=false", 1),  # .7 + .5, .35 + 1 + .8, 2 + .1
    ],
)
def test_prefix_aware(spec: str, expected: int) -> None:
    workers = [queue(4, 50), queue(2, 20), queue(0, 90)]
    assert choice(spec, workers, [2, 1, 0], prompt=31) == expected


def test_prefix_aware_compares_the_workers_that_have_any() -> None:
    """As llm-d's precise scorer: (hit - least) / (most - least) of those, 1 if these are equal, 0 of all others."""
    idle = [queue(0, 0)] * 3
    assert choice("prefix_aware", [queue(0, 50), *idle[:2]], [0, 1, 1], prompt=31) == 1  # 0, 1, 1
    assert (
        choice("prefix_aware:prefix=1", [queue(0, 90), queue(0, 30), queue(0, 0)], [2, 1, 0], prompt=31) == 0
    )
    assert (
        choice("prefix_aware:prefix=1", [queue(4, 90), queue(2, 30), queue(0, 0)], [3, 2, 1], prompt=31) == 2
    )
    assert choice("prefix_aware", [queue(1, 0), queue(0, 0)], prompt=31) == 1  # no cache


def test_prefix_aware_by_the_share_of_the_prompt() -> None:
    # A hit of 10 of 100 tokens: relative to the other worker 1, of the prompt 0.1. The queue says 1 there and 0 here.
    workers = [queue(1, 0), queue(0, 0)]
    assert choice("prefix_aware", workers, [1, 0], prompt=100) == 0
    assert choice("prefix_aware:prefix=3,queue=2,free=2,relative=false", workers, [1, 0], prompt=100) == 1


def test_cache_aware_takes_the_longest_match_above_the_threshold() -> None:
    assert choice("cache_aware", [load(64), load(0)], [2, 1], prompt=50) == 0  # 20 of 50, loads differ by 64
    assert choice("cache_aware", [load(65), load(0)], [2, 1], prompt=50) == 1  # by more than 64
    assert choice("cache_aware", [load(300), load(235)], [2, 1], prompt=50) == 0  # but not by half
    assert (
        choice("cache_aware:threshold=0.4", [load(0), load(0)], [1, 2], prompt=50) == 0
    )  # 20 of 50 is not more


def test_cache_aware_sends_other_requests_to_the_fewest() -> None:
    assert (
        choice("cache_aware", [load(3), load(1), load(2)], [1, 0, 0], prompt=50) == 1
    )  # 10 of 50 is too short
    assert choice("cache_aware", [load(3), load(1), load(2)], [2, 0, 0], prompt=50) == 0
    assert choice("cache_aware", [load(2), load(1), load(1)], prompt=50) == 1  # no cache, a tie


def test_lmetric_multiplies_and_prefers_less_on_idle_workers() -> None:
    # Of 31 tokens 11, 21, 31 are missing.
    assert choice("lmetric", [load(3), load(2), load(1)], [2, 1, 0], prompt=31) == 2  # 33, 42, 31
    assert choice("lmetric", [load(4), load(2), load(2)], [2, 1, 0], prompt=31) == 1  # 44, 42, 62
    assert (
        choice("lmetric", [load(1), load(0), load(0)], [2, 0, 1], prompt=31) == 2
    )  # 11, 0 with 31, 0 with 21
    assert choice("lmetric", [load(2), load(2)], prompt=31) == 0  # no cache, a tie


def test_preble_reuses_what_is_more_than_the_rest() -> None:
    # A pace of 1 + 0.5 (n + 1) s for 45 tokens of n + 1 requests; a missing token takes 0.1 s.
    assert (
        choice("preble", [load(0), load(5), load(6)], [0, 2, 2], prompt=31) == 1
    )  # 20 > 11: of both the idler
    assert choice("preble", [load(0), load(5), load(6)], [0, 1, 1], prompt=31) == 0  # 10 < 21: the cheapest
    assert choice("preble", [load(1), load(1)], [0, 1], prompt=31) == 1  # equal loads, fewer tokens
    assert choice("preble", [load(0), load(5)], [0, 2], prompt=40) == 0  # 20 = 20: as Preble, the cheapest


def test_session_affinity() -> None:
    workers = [load(2), load(1), load(9)]
    assert choice("session_affinity", workers) == 1
    assert choice("session_affinity", workers, session=0, previous=2) == 2


def sessions() -> RequestTable:
    """Return two sessions of three turns in turn, each prompt the beginning of the next; units of 2 tokens."""
    prompts = [4, 4, 8, 8, 12, 12]
    rows = [[("AB"[k % 2], j) for j in range(prompt // 2)] for k, prompt in enumerate(prompts)]
    return RequestTable.from_columns(
        arrival_time=np.arange(6) * 20.0,
        prompt_len=prompts,
        output_len=[1] * 6,
        session_id=[7, 3] * 3,
        turn=[1, 1, 2, 2, 3, 3],
        hashes=BlockHashes.from_rows(rows, np.array(prompts), 2),
    )


class Noting(Router):
    """Routes in turn from worker 0 and notes what it observes."""

    info = RouterInfo(name="noting", summary="notes")

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def route(self, view: ClusterView) -> int:
        self.seen.append((view.session, view.previous_worker, view.hits.tolist(), view.missing.tolist()))
        return [0, 1, 1, 1, 0, 0][view.request_id]


def cluster(**settings: Any) -> System:
    return System(40, UnitBatchTime(), block_size=2, prefix_cache="computed", **settings).replicate(2)


def test_what_a_router_observes() -> None:
    """Session A goes to worker 0, then 1, then 0; a full prompt is found but for its last unit."""
    router = Noting()
    simulate(cluster(), sessions(), "fcfs", router=router)
    assert router.seen == [
        (1, -1, [0, 0], [4, 4]),
        (0, -1, [0, 0], [4, 4]),
        (1, 0, [4, 0], [4, 8]),
        (0, 1, [0, 4], [8, 4]),
        (1, 1, [4, 8], [8, 4]),
        (0, 1, [0, 8], [12, 4]),
    ]


def test_late_knowledge() -> None:
    """What entered a cache at the end of the batch at 1 is known from 1 + 30 on: at 60, but not at 20."""
    router = Noting()
    table = sessions().replace(arrival_time=[0.0, 5.0, 20.0, 25.0, 60.0, 65.0])
    simulate(cluster(cache_staleness=30.0), table, "fcfs", router=router)
    assert [hits for _, _, hits, _ in router.seen] == [[0, 0], [0, 0], [0, 0], [0, 0], [4, 8], [0, 8]]


def test_staleness_counts_from_the_end_of_the_batch() -> None:
    """The batch of session A runs from 0 to 1: a request at 1.25 does not know what it left, one at 1.5 does."""
    for second, hits in ((1.25, [0, 0]), (1.5, [4, 0])):
        router = Noting()
        table = sessions().replace(arrival_time=[0.0, 0.25, second, 9.0, 9.0, 9.0])
        simulate(cluster(cache_staleness=0.5), table, "fcfs", router=router)
        assert router.seen[2][2] == hits


@pytest.mark.parametrize(
    "spec", ["prefix_aware", "cache_aware", "lmetric:queued=true", "preble", "session_affinity"]
)
def test_sessions_stay_where_their_prefix_is(spec: str) -> None:
    runs = [
        simulate(cluster(), sessions(), "fcfs", router=make_router(spec), compiled=compiled)
        .requests["worker"]
        .tolist()
        for compiled in (True, False)
    ]
    assert runs[0] == runs[1]
    assert runs[0][2:] == [runs[0][0], runs[0][1]] * 2


def test_staleness_needs_a_prefix_cache() -> None:
    with pytest.raises(ConfigError, match=r"cache_staleness = 1\.0 without a prefix cache"):
        System(40, UnitBatchTime(), cache_staleness=1.0)
