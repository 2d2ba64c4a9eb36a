"""The routers' choices on schedules worked out by hand, including ties and seeds.

An iteration takes a second and first tokens are "counted", so a request that starts at k is done at k + o. FCFS
starts all requests that fit, and all fit here. A cluster decides after it has routed, so requests that arrive at the
same moment see each other in the queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvgym.baselines.first_come import FCFS
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.policies.policy import PolicyInfo
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.kernels.random import next_uniform, seed_words
from kvgym.simulator.system import System, Worker
from kvgym.utils.seeding import stream_seed
from kvgym.workloads.table import RequestTable

UNIT = UnitBatchTime()


def requests(
    a: Sequence[float], s: Sequence[int], o: Sequence[int], guess: Sequence[int] | None = None
) -> RequestTable:
    return RequestTable.from_columns(arrival_time=a, prompt_len=s, output_len=o, predicted_output_len=guess)


def cluster(*capacities: int, **rules: Any) -> System:
    return System.cluster([Worker(M, UNIT) for M in capacities], **rules)


def apart(prefill: int, decode: int, M: int = 200, **rules: Any) -> System:  # noqa: N803
    workers = [Worker(M, UNIT, "prefill")] * prefill + [Worker(M, UNIT, "decode")] * decode
    return System.cluster(workers, **rules)


def run(system: System, table: RequestTable, router: str, **options: Any) -> SimulationResult:
    result = simulate(system, table, options.pop("policy", "fcfs"), router=router, **options)
    assert result.completed
    return result


class InformedFCFS(FCFS):
    """FCFS in a system that predicts lengths."""

    info = PolicyInfo(
        name="informed_fcfs", summary="FCFS", needs=frozenset({"predicted_length"}), evicts=True
    )


# ---------------------------------------------------------------- round robin


def test_round_robin_ignores_the_state_of_the_workers() -> None:
    table = requests([0, 0, 0, 0, 5, 9, 9], [9, 1, 1, 1, 1, 1, 1], [30, 1, 1, 1, 1, 1, 1])
    result = run(cluster(100, 40, 70), table, "round_robin")
    assert result.requests["worker"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert result.worker["total_routed"].tolist() == [3, 2, 2]


def test_round_robin_has_separate_turns_for_hand_overs() -> None:
    # Prefill workers 0 and 1 in turn; decode workers 2, 3, 4 in the order in which prefills end. Both prefill
    # workers end one at 1 (requests 0, 1), one at 2 (2, 3), and so on: hand-overs in the order of the ids.
    table = requests([0] * 7, [3] * 7, [4] * 7)
    system = apart(2, 3)
    result = run(system, table, "round_robin", policy="dist_serve")
    assert result.requests["worker"].tolist() == [2, 3, 4, 2, 3, 4, 2]
    assert result.worker["total_routed"].tolist() == [4, 3, 3, 2, 2]


def test_round_robin_with_one_prefill_worker_still_alternates_hand_overs() -> None:
    result = run(apart(1, 2), requests([0, 0, 0, 0], [3] * 4, [4] * 4), "round_robin", policy="dist_serve")
    assert result.requests["worker"].tolist() == [1, 2, 1, 2]


# ---------------------------------------------------------------- uniform random


def draws(seed: int, count: int, workers: int) -> list[int]:
    words, draw = seed_words(stream_seed(seed, "routing")), uncompiled(next_uniform)
    return [int(draw(words, 0) * workers) for _ in range(count)]


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_uniform_random_takes_one_draw_of_the_routing_stream_per_request(seed: int) -> None:
    table = requests(np.arange(60) / 2, [3] * 60, [4] * 60)
    result = run(cluster(50, 50, 50, 50), table, "uniform_random", seed=seed)
    assert result.requests["worker"].tolist() == draws(seed, 60, 4)


def test_uniform_random_does_not_depend_on_the_policy_or_the_rules() -> None:
    table = requests(np.arange(40) / 2, [3] * 40, [4] * 40, [4] * 40)
    expected = draws(3, 40, 3)
    for policy in ("fcfs", "alpha_beta", "mc_sf"):
        for first_token in ("counted", "decode"):
            system = cluster(30, 80, 30, first_token=first_token)
            result = run(system, table, "uniform_random", policy=policy, seed=3)
            assert result.requests["worker"].tolist() == expected


def test_seeds_differ_and_the_shares_are_even() -> None:
    n, r = 4000, 5
    table = requests(np.arange(n), [1] * n, [1] * n)
    chosen = [
        run(cluster(*[20] * r), table, "uniform_random", seed=seed).requests["worker"] for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(chosen[0], chosen[1])
    assert (chosen[0] == chosen[2]).mean() == pytest.approx(1 / r, abs=0.03)
    for workers in chosen:
        counts = np.bincount(workers, minlength=r)
        assert ((counts - n / r) ** 2 / (n / r)).sum() < 18.5  # chi-square with 4 degrees: p = 0.001
        pairs = np.bincount(workers[:-1] * r + workers[1:], minlength=r * r)
        assert ((pairs - n / r**2) ** 2 / (n / r**2)).sum() < 52.7  # 24 degrees: p = 0.0006


def test_uniform_random_over_hand_overs_stays_among_decode_workers() -> None:
    table = requests(np.arange(50) / 2, [3] * 50, [4] * 50)
    result = run(apart(2, 3), table, "uniform_random", policy="dist_serve")
    assert set(result.requests["worker"].tolist()) == {2, 3, 4}
    assert (result.worker["total_routed"] > 0).all()


# ---------------------------------------------------------------- join the shortest queue


def test_join_shortest_queue_counts_waiting_and_active_and_breaks_ties_by_index() -> None:
    # At 0: to 0, 1, 2 in turn, then all have one: 3 to 0. At 2: request 1 (o = 2) is done, worker 1 is empty: 4. At
    # 2.5: 0 has two, 1 and 2 one each: 5 to 1. At 3: 1 has two, 2 still one (o = 9): 6 to 2. At 4: 3 (o = 4) is done
    # at 4 and counts as done: 0 has one, 1 two, 2 two: 7 to 0.
    table = requests([0, 0, 0, 0, 2, 2.5, 3, 4], [1] * 8, [9, 2, 9, 4, 5, 5, 5, 1])
    result = run(cluster(100, 100, 100), table, "join_shortest_queue")
    assert result.requests["worker"].tolist() == [0, 1, 2, 0, 1, 1, 2, 0]


def test_join_shortest_queue_counts_requests_not_tokens() -> None:
    # Worker 1 gets request 1 with 90 tokens; with equal numbers of requests the lower index still wins.
    table = requests([0, 0, 0, 0], [1, 80, 1, 1], [10, 10, 10, 10])
    result = run(cluster(100, 100), table, "join_shortest_queue")
    assert result.requests["worker"].tolist() == [0, 1, 0, 1]


def test_evicted_requests_stay_in_the_count() -> None:
    # M = 12 each. Worker 0: requests 0 and 2 (s 4): 5 + 5, 6 + 6, then 14 > 12: 2 is evicted at 2 and waits.
    # At 2.5 worker 0 has two, worker 1 has one: 3 goes to 1; at 2.6 both have two: 4 goes to 0.
    table = requests([0, 0, 0, 2.5, 2.6], [4, 1, 4, 1, 1], [6, 9, 6, 1, 1])
    result = run(cluster(12, 12), table, "join_shortest_queue")
    assert result.requests["num_evictions"][2] >= 1
    assert result.requests["worker"].tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("router", ["join_shortest_queue", "least_outstanding_work"])
@pytest.mark.parametrize("latency", [0.0, 50.0])
def test_requests_in_transfer_count_for_their_destination(router: str, latency: float) -> None:
    # One prefill a second; nothing of six requests is done before all have been handed over.
    table = requests([0] * 6, [5] * 6, [40] * 6)
    result = run(apart(1, 3, transfer_latency=latency), table, router, policy="dist_serve")
    assert result.requests["worker"].tolist() == [1, 2, 3, 1, 2, 3]


# ---------------------------------------------------------------- least outstanding work


def test_least_outstanding_work_compares_tokens_per_token_of_memory() -> None:
    # M = 100, 50. Prompts only: FCFS knows no predictions.
    # 0 (20): 0/100 = 0/50, to 0. 1 (5): 20/100 > 0, to 1. 2 (5): 20/100 > 5/50, to 1. 3 (7): 20/100 = 10/50, to 0.
    # 4 (1): 27/100 > 10/50, to 1. 5 (1): 27/100 > 11/50, to 1.
    table = requests([0] * 6, [20, 5, 5, 7, 1, 1], [30] * 6)
    result = run(cluster(100, 50), table, "least_outstanding_work")
    assert result.requests["worker"].tolist() == [0, 1, 1, 0, 1, 1]


def test_least_outstanding_work_counts_predictions_if_they_are_revealed() -> None:
    # With prompts alone: 10 to 0, 5 to 1, 1 to 1 (5 < 10). With predictions: 10 + 1 to 0, 5 + 20 to 1, 1 + 1 to 0.
    table = requests([0, 0, 0], [10, 5, 1], [3, 3, 3], [1, 20, 1])
    for policy, expected in (("fcfs", [0, 1, 1]), (InformedFCFS(), [0, 1, 0])):
        result = run(cluster(100, 100), table, "least_outstanding_work", policy=policy)
        assert result.requests["worker"].tolist() == expected


def test_least_outstanding_work_forgets_a_request_only_when_it_finishes() -> None:
    # 0 (s 9, o 3) is done at 3. At 2 it counts whole, although its prompt is done: 1 (s 8) is lighter, 2 goes to 1.
    # At 3 worker 0 is empty: 3 goes there, and 4 (s 1): 2 < 10.
    table = requests([0, 0, 2, 3, 3], [9, 8, 2, 2, 1], [3, 30, 30, 30, 30])
    result = run(cluster(100, 100), table, "least_outstanding_work")
    assert result.requests["worker"].tolist() == [0, 1, 1, 0, 0]


def test_a_single_candidate() -> None:
    table = requests([0, 1, 2], [3] * 3, [4] * 3)
    for router in ("round_robin", "uniform_random", "join_shortest_queue", "least_outstanding_work"):
        assert run(cluster(50), table, router).requests["worker"].tolist() == [0, 0, 0]
        result = run(apart(1, 1), table, router, policy="dist_serve")
        assert result.requests["worker"].tolist() == [1, 1, 1]
