"""Routers that choose where a request is prefilled: cases worked by hand, any answers, sums of transfers, errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.runs.clusters import AFFINE, UNIT, workload
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import InvalidDecisionError, WorkloadError
from kvgym.kernels import prefill_only
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.routing import Router, RouterInfo
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.system import System, Worker
from kvgym.simulator.view import ClusterView
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

SECOND = AffineBatchTime(constant=1.0)


class Sends(Router):
    """Answers from lists: one for arrivals, one for the ends of prefills."""

    info = RouterInfo(name="sends", summary="answers from a list")

    def __init__(self, *stages: Sequence[int]) -> None:
        self.stages = stages

    def route(self, view: ClusterView) -> int:
        """Return the answer of the list."""
        return self.stages[int(view.span[0] > 0)][view.request_id]


def cluster(prefill: int, decode: int, kv_capacity: int = 10_000, **rules: Any) -> System:
    """Return workers with batches of one second, of which a request may choose any."""
    roles = ["prefill"] * prefill + ["decode"] * decode
    workers = [Worker(kv_capacity, SECOND, role) for role in roles]
    return System.cluster(workers, **{"transfer_time": 0.01, "local_prefill": True, **rules})


def requests(*rows: tuple[float, int], prompt: int = 99) -> RequestTable:
    """Return requests from their arrivals and output lengths."""
    arrival, output = zip(*rows, strict=True)
    return RequestTable.from_columns(
        arrival_time=np.array(arrival, float),
        prompt_len=np.full(len(rows), prompt),
        output_len=np.array(output),
    )


# ---------------------------------------------------------------- worked by hand


@pytest.mark.parametrize("compiled", [True, False])
def test_cases_worked_by_hand(compiled: bool) -> None:
    # 0: prefill on 0, 100 tokens in 1 s to 1, at 2. 1: all of it on 1. 2: prefilled by decode worker 2 alone, then sent
    # to prefill worker 0. 3: prefilled by 0, in the same batch as 0, and kept there: it decodes on at once.
    system = cluster(1, 2, swap_time=5.0)
    router = Sends([0, 1, prefill_only(2), 0], [1, 0, 0, 0])
    result = simulate(
        system, requests((0, 3), (0, 3), (0, 3), (0, 3)), "fcfs", router=router, compiled=compiled
    )
    r = result.requests
    assert r["first_token_time"].tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(r["ready_time"], [2, np.nan, 2, 1])
    assert r["finish_time"].tolist() == [4, 3, 4, 3]
    assert r["worker"].tolist() == [1, 1, 0, 0]
    assert result.whole is not None
    assert result.whole.tolist() == [False, True, False, True]
    assert compute_metrics(result, ["local_prefills"]) == {"local_prefills": 2}
    assert not result.worker["total_swapped_tokens"].any()
    # Memory for one request: one that is kept goes before the one that waits, though it leaves the batch first.
    one = cluster(1, 1, kv_capacity=150)
    result = simulate(one, requests((0, 3), (0, 2)), "fcfs", router=Sends([0, 0], [0, 0]), compiled=compiled)
    assert result.requests["start_time"].tolist() == [0, 3]
    assert result.requests["finish_time"].tolist() == [3, 5]


class Anywhere(Router):
    """Any answer that is allowed, drawn at random."""

    info = RouterInfo(name="anywhere", summary="any worker")

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Begin to draw."""
        self.rng = np.random.default_rng(seed)

    def route(self, view: ClusterView) -> int:
        """Return a ready worker, of a new request sometimes for the prefill alone."""
        k = int(self.rng.choice(view.allowed))
        handed_over = view.request.num_kv_tokens[0] > 0
        return k if handed_over or self.rng.random() < 0.5 else prefill_only(k)


def anywhere(policy: str, roles: str, compiled: bool, seed: int = 0, **rules: Any) -> SimulationResult:
    """Run a policy on five workers."""
    kinds = {"apart": ["prefill", "prefill", "decode", "decode", "decode"], "mixed": ["mixed"] * 5}[roles]
    batches = itertools.cycle([UNIT, AFFINE])
    workers = [Worker(48 + 4 * k, next(batches), kind) for k, kind in enumerate(kinds)]
    system = System.cluster(
        workers, local_prefill=True, transfer_latency=0.2, transfer_time=0.03, transfer_link="shared", **rules
    )
    table = workload(seed, n=24, rate=4.0)
    return simulate(system, table, policy, router=Anywhere(), seed=seed, compiled=compiled)


POLICIES = ("fcfs", "vllm_v1", "mc_sf", "flow_control", "dist_serve", "sarathi", "ranked")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("roles", ["apart", "mixed"])
def test_any_answer_is_served(policy: str, roles: str) -> None:
    k = POLICIES.index(policy)
    progress = ("lost", "recompute", "kept")[k % 3]
    result = anywhere(
        policy, roles, False, seed=k, progress_on_evict=progress, requeue=("arrival", "front")[k % 2]
    )
    assert result.completed
    assert result.whole is not None
    assert 3 < result.whole.sum() < 21
    w = result.worker
    for name in (
        "outstanding_requests",
        "outstanding_tokens",
        "kv_tokens",
        "kv_allocated",
        "num_active",
        "num_waiting",
    ):
        assert not w[name].any(), name
    assert w["total_delivered_tokens"].sum() == result.table.output_len.sum()
    assert w["total_received"].sum() == 0  # none of these is a move of the router


def test_compiled_and_plain_code_agree() -> None:
    one, other = (anywhere("fcfs", "apart", compiled) for compiled in (True, False))
    assert one.requests.tobytes() == other.requests.tobytes()
    assert one.worker.tobytes() == other.worker.tobytes()


def test_without_a_choice_the_setting_changes_nothing() -> None:
    workers = [Worker(60, UNIT, role) for role in ("prefill", "prefill", "decode", "decode")]
    static = System.cluster(workers, transfer_latency=0.2, transfer_time=0.03)
    free = replace(static, local_prefill=True)
    table = workload(3, n=40, rate=3.0)
    for router in ("round_robin", "join_shortest_queue"):
        one, other = (
            simulate(system, table, "fcfs", router=router, compiled=False).requests
            for system in (static, free)
        )
        assert one.tobytes() == other.tobytes()


# ---------------------------------------------------------------- what is transferred


def conversations(n: int = 24, turns: int = 3, block: int = 16, seed: int = 0) -> RequestTable:
    """Return prompts of three blocks more in each turn, with the beginning of the turn before."""
    rng = np.random.default_rng(seed)
    first = np.arange(n) % (n // turns)
    blocks = 3 * (1 + np.arange(n) // (n // turns))
    rows = [[(int(user), j) for j in range(count)] for user, count in zip(first, blocks, strict=True)]
    return RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 20, n)), prompt_len=block * blocks + 4, output_len=rng.integers(2, 9, n),
        hashes=BlockHashes.from_rows(rows, block * blocks, block),
    )  # fmt: skip


class Missing(Anywhere):
    """Notes what each worker lacks of a request that is handed over to it."""

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Begin to draw, with no notes."""
        super().reset(num_workers, seed)
        self.missing: dict[int, int] = {}

    def route(self, view: ClusterView) -> int:
        """Return any worker."""
        k = super().route(view)
        if view.request.num_kv_tokens[0] > 0:
            stays = k == int(view._simulation.requests["worker"][view.request_id])
            self.missing[view.request_id] = 0 if stays else int(view.missing[k])
        return k


def test_all_kv_but_the_hits_is_transferred() -> None:
    workers = [Worker(900, UNIT, role) for role in ("prefill", "prefill", "decode", "decode")]
    system = System.cluster(
        workers, local_prefill=True, transfer_time=0.001, prefix_cache="computed", block_size=16
    )
    router, table = Missing(), conversations()
    r = simulate(system, table, "fcfs", router=router, compiled=False).requests
    sent = sorted(router.missing)
    transferred = (r["ready_time"][sent] - r["first_token_time"][sent]) / system.transfer_time
    np.testing.assert_allclose(transferred, [router.missing[i] for i in sent], atol=1e-6)
    whole = table.prompt_len[sent] + 1
    assert (transferred < whole - 1).any()
    assert (transferred > whole - 0.5).any()


# ---------------------------------------------------------------- the router of the published rules


def test_local_prefills_of_short_new_parts_beat_a_busy_prefill_worker() -> None:
    """The sign of ``isl_bounding``: with most of a prompt cached on decode workers, waiting for a prefill is longer."""
    workers = [
        Worker(60_000, AffineBatchTime(0.02, 2e-4, 1e-4, 0.0), role)
        for role in ("prefill", "decode", "decode")
    ]
    rules = {"transfer_latency": 0.05, "transfer_time": 1e-5, "prefix_cache": "computed", "block_size": 64}
    system, n = System.cluster(workers, local_prefill=True, **rules), 60
    rng = np.random.default_rng(4)
    rows = [[("system prompt", j) for j in range(15)] + [(i, 0)] for i in range(n)]
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 4, n)), prompt_len=np.full(n, 1100), output_len=rng.integers(2, 20, n),
        hashes=BlockHashes.from_rows(rows, np.full(n, 1024), 64),
    )  # fmt: skip
    results = {
        router: simulate(system, table, "fcfs", router=router, compiled=False)
        for router in ("join_shortest_queue", "conditional_prefill", "conditional_prefill:tokens=0")
    }
    remote, local, never = results.values()
    assert never.requests.tobytes() == remote.requests.tobytes()
    assert local.whole is not None
    assert local.whole.mean() > 0.5
    ttft = [compute_metrics(result, ["ttft_mean"])["ttft_mean"] for result in (local, remote)]
    assert ttft[0] < 0.8 * ttft[1]


# ---------------------------------------------------------------- fleets and errors


def test_workers_that_come_and_go_keep_and_prefill_alone() -> None:
    roles = ("prefill", "prefill", "decode", "decode")
    workers = [Worker(300, AffineBatchTime(0.05, 0.0, 0.002, 0.0), role) for role in roles]
    pools = (Pool(1, most=2, least=0, startup=1.5, drain="requeue"), Pool(1, most=2, least=0, startup=0.5))
    system = System.cluster(workers, local_prefill=True, transfer_time=1e-4, fleet=Fleet(pools))
    result = simulate(
        system,
        workload(6, n=30, rate=5.0),
        "fcfs",
        router=Anywhere(),
        autoscaler="hpa:target=2",
        compiled=False,
    )
    assert result.completed
    assert not result.worker["outstanding_requests"].any()


@pytest.mark.parametrize(
    ("rules", "answers", "message"),
    [
        ({"local_prefill": False}, ([2], [2]), r"request 0 to worker 2; valid: 0 … 1"),
        (
            {"local_prefill": False},
            ([prefill_only(0)], [2]),
            r"request 0 to worker 0.*prefill_only needs local_prefill",
        ),
        ({}, ([0], [prefill_only(1)]), r"request 0 to worker 1.*prefill_only.*has been prefilled"),
        ({}, ([2], [1]), r"request 0 to worker 2; valid: 0 … 1"),
    ],
)
def test_wrong_answers(rules: dict[str, Any], answers: tuple[list[int], list[int]], message: str) -> None:
    system = cluster(2, 1, **rules) if rules else cluster(1, 1)
    with pytest.raises(InvalidDecisionError, match=message):
        simulate(system, requests((0, 3)), "fcfs", router=Sends(*answers), compiled=False)


def test_whole_requests_must_fit_on_prefill_workers() -> None:
    workers = [Worker(100, SECOND, "prefill"), Worker(200, SECOND, "decode")]
    table = requests((0, 50))
    assert simulate(System.cluster(workers), table, "fcfs", compiled=False).completed
    with pytest.raises(WorkloadError, match="exceeds kv_capacity = 100"):
        simulate(System.cluster(workers, local_prefill=True), table, "fcfs", compiled=False)
