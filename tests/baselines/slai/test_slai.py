"""SLAI on schedules worked out by hand.

Source: Bari et al., "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice", Section 6, equation (8).
Notation in comments: s prompt, o output, M memory, kv = tokens held; "P 0 (4)" is a chunk of 4 tokens of
request 0, "D 0 1" a decode of requests 0 and 1; C0 is the last schedulable time (8) of request 0, the end of its last
batch + TBT - offset * mean batch time. Unless stated otherwise iterations take a second, so that this mean is 1.
The paper's rule is "uncounted": the last chunk shows a first token and o decodes follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs import schedules
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.policies.policy import POLICIES, policy_defaults
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

INF = float("inf")


def run(
    policy: str,
    a: Any,
    s: Any,
    o: Any,
    tbt: Any = None,
    *,
    M: int = 1000,  # noqa: N803
    **settings: Any,
) -> SimulationResult:
    return schedules.run(policy, M, a, s, o, tbt_slo=tbt, **{"first_token": "uncounted", **settings})


def batches(result: SimulationResult) -> list[tuple[int, int]]:
    """(prefill tokens, decodes) of every iteration."""
    assert result.log is not None
    return list(zip(result.log["prefill_tokens"].tolist(), result.log["num_decodes"].tolist(), strict=True))


# ---------------------------------------------------------------- when a decode is critical

LONG_PROMPT = ([0, 0], [4, 16], [2, 1], [4, INF])  # 0 has a deadline, 1 fills four batches of 4 tokens


def test_a_decode_waits_until_its_last_schedulable_time() -> None:
    # P 0 (4), first token at 1: C0 = 1 + 4 - 1 = 4. P 1 (4) three times. t=4 >= C0: D 0, P 1 (3). C0 = 5 + 4 - 1 = 8.
    # t=5: P 1 (1), and since the budget is not used up D 0, which is not critical: done at 6. D 1.
    result = run("slai:offset=1,token_budget=4", *LONG_PROMPT)
    check(result, first=[1, 6], finish=[6, 7], start=[0, 1])
    assert batches(result) == [(4, 0), (4, 0), (4, 0), (4, 0), (3, 1), (1, 1), (0, 1)]
    assert result.requests["max_token_gap"][0] == 4  # exactly its TBT SLO


def test_a_large_offset_makes_every_decode_critical() -> None:
    # C0 = 1 + 4 - 4 = 1 <= 1: D 0, P 1 (3) and again: 0 is done at 3. P 1 (4, 4, 2).
    result = run("slai:offset=4,token_budget=4", *LONG_PROMPT)
    check(result, first=[1, 6], finish=[3, 7])
    assert batches(result) == [(4, 0), (3, 1), (3, 1), (4, 0), (4, 0), (2, 0), (0, 1)]
    # Offset 3: C0 = 2: P 1 (4); D 0, P 1 (3), C0 = 3 + 4 - 3 = 4; P 1 (4); D 0, P 1 (3); P 1 (2).
    result = run("slai:offset=3,token_budget=4", *LONG_PROMPT)
    assert batches(result) == [(4, 0), (4, 0), (3, 1), (4, 0), (3, 1), (2, 0), (0, 1)]
    check(result, first=[1, 6], finish=[5, 7])


def test_a_decode_without_an_slo_uses_the_remaining_budget() -> None:
    # None is ever critical: P 1 goes first, D 0 in the last batch of it.
    result = run("slai:token_budget=4", *LONG_PROMPT[:3])
    check(result, first=[1, 5], finish=[7, 6])
    assert batches(result) == [(4, 0), (4, 0), (4, 0), (4, 0), (4, 0), (0, 2), (0, 1)]


def test_before_its_first_token_a_decode_is_critical() -> None:
    # "decode": D 0 at once (it has shown nothing), P 1 (3). First token at 2: C0 = 2 + 4 - 1 = 5. P 1 (4) three times,
    # then D 0, P 1 (1), and D 1.
    result = run("slai:offset=1,token_budget=4", *LONG_PROMPT, first_token="decode")
    check(result, first=[2, 7], finish=[6, 7])
    assert batches(result) == [(4, 0), (3, 1), (4, 0), (4, 0), (4, 0), (1, 1), (0, 1)]


def test_counted_first_tokens_start_the_clock() -> None:
    # Counted, o 2: one decode after the prefill, when C0 = 4 <= t: done at 5.
    result = run("slai:offset=1,token_budget=4", *LONG_PROMPT, first_token="counted")
    check(result, first=[1, 6], finish=[5, 6])


def test_the_batch_time_in_equation_8_is_the_mean_over_all_batches() -> None:
    # 1 s a batch and 0.5 s a prefill token; 1 arrives at 1. P 0 (2): 2 s, mean 2, C0 = 2 + 6 - 2 = 6 > 2. P 1 (4): 3
    # s. t=5: mean 2.5, C0 = 5.5 > 5 (the last batch alone would give 5). P 1 (4): 3 s. t=8: D 0, P 1 (3): 2.5 s. C0 =
    # 10.5 + 6 - 10.5 / 4 = 13.9. P 1 (4): 3 s. t=13.5: mean 2.7, C0 = 13.8: not critical, but P 1 (1) leaves room: D
    # 0, 1.5 s. t=15: D 1: 1 s.
    time = AffineBatchTime(1.0, per_prefill_token=0.5)
    result = run("slai:offset=1,token_budget=4", [0, 1], [2, 16], [2, 1], [6, INF], batch_time=time)
    check(result, first=[2, 15], finish=[15, 16])
    assert batches(result) == [(2, 0), (4, 0), (4, 0), (3, 1), (4, 0), (1, 1), (0, 1)]
    # Idle time does not count: the same, 100 s later, after a batch of 2 s at 0 and one of 1 s. Means: 5/3, then 8/4
    # = 2 with C0 = 102 + 6 - 2 = 106 > 105, then 11/5.
    result = run(
        "slai:offset=1,token_budget=4", [0, 100, 101], [2, 2, 16], [1, 2, 1], [INF, 6, INF], batch_time=time
    )
    check(result, first=[2, 102, 115], finish=[3, 115, 116])


def test_critical_decodes_are_ordered_by_last_schedulable_time() -> None:
    # beta = 1, everything critical. At 1 all have had a first token: TBT 9, 3, 5: 1 first. t=2: C up to the offset
    # 10, 2+3, 6: 1. t=3: 10, 3+3, 6: a tie of 1 and 2, 1 was activated first. t=4: 10, 7, 6: 2, done.
    # t=5: 1, its 4th: done. t=6: 0.
    result = run("slai:offset=100,max_decodes=1", [0] * 3, [1] * 3, [1, 4, 1], [9, 3, 5])
    check(result, first=[1, 1, 1], finish=[7, 6, 5])


def test_other_decodes_are_ordered_by_last_schedulable_time_too() -> None:
    # beta = 1, offset 0.25: none is critical. C up to the offset: 91, 31, 34 at 1. D 1 until 4, when it is 34 as
    # the one of 2: a tie, D 1 again: done at 5. D 2, D 0.
    result = run("slai:offset=0.25,max_decodes=1", [0] * 3, [1] * 3, [1, 4, 1], [90, 30, 33])
    check(result, first=[1, 1, 1], finish=[7, 5, 6])


def test_critical_decodes_stop_at_the_budget() -> None:
    # Budget 2, offset 1. P 0 1 (C 3), P 2 (2) (C 3), P 3 (2) (never critical). t=3: 0, 1 and 2 are critical: D 0 1,
    # both over, and nothing of 4, which waits since 2. t=4: D 2, P 4 (1). t=5: P 4 (1), D 3. D 4.
    result = run(
        "slai:offset=1,token_budget=2,order=fcfs",
        [0, 0, 0, 0, 2],
        [1, 1, 2, 2, 2],
        [1] * 5,
        [3, 3, 2, INF, INF],
    )
    check(result, first=[1, 1, 2, 3, 6], finish=[4, 4, 5, 6, 7], start=[0, 0, 1, 2, 4])
    assert batches(result) == [(2, 0), (2, 0), (2, 0), (0, 2), (1, 1), (1, 1), (0, 1)]


# ---------------------------------------------------------------- prefills


def test_shortest_prefill_first() -> None:
    # Budget 5. P 1 (2), P 2 (3 of 4). Ongoing first: P 2 (1), P 0 (4). P 0 (5): no token is left for a decode. D.
    result = run("slai:token_budget=5", [0] * 3, [9, 2, 4], [1] * 3)
    check(result, first=[3, 1, 2], finish=[4, 4, 4], start=[1, 0, 0])
    # 3 (s 1) arrives at 1: before 0, but after 2, which has begun: P 2 (1), P 3 (1), P 0 (3); P 0 (5);
    # P 0 (1), D 1 2 3; D 0. A prefill that has begun is not interrupted: neither by 4 (s 1), which arrives at 2.
    result = run("slai:token_budget=5", [0, 0, 0, 1, 2], [9, 2, 4, 1, 1], [1] * 5)
    check(result, first=[4, 1, 2, 2, 4], finish=[5, 4, 4, 4, 5], start=[1, 0, 0, 1, 3])
    assert batches(result) == [(5, 0), (5, 0), (5, 0), (2, 3), (0, 2)]


def test_first_come_first_served() -> None:
    # Budget 5. P 0 (5); P 0 (4), P 1 (1); P 1 (1), P 2 (4); D.
    result = run("slai:token_budget=5,order=fcfs", [0] * 3, [9, 2, 4], [1] * 3)
    check(result, first=[2, 3, 3], finish=[4, 4, 4], start=[0, 1, 2])
    assert batches(result) == [(5, 0), (5, 0), (5, 0), (0, 3)]


def test_ties_of_equal_prompts_go_by_arrival_and_id() -> None:
    # Budget 3: one prompt an iteration. 2 and 3 arrive together; 1 came before them but after 0.
    result = run("slai:token_budget=3", [0, 0.25, 0.5, 0.5], [3] * 4, [1] * 4)
    check(result, first=[1, 2, 3, 4], finish=[5, 5, 5, 6])  # then D 0 1 2, D 3


def test_paying_users_first() -> None:
    # Budget 3. P 2 (1), P 1 (2 of 3) before 0; without it: P 2 (1), P 0 (2).
    args = ([0] * 3, [2, 3, 1], [1] * 3)
    result = run("slai:token_budget=3,paying_first=True", *args, priority=[0, 1, 1])
    check(result, first=[2, 2, 1], finish=[3, 3, 3], start=[1, 0, 0])
    result = run("slai:token_budget=3", *args, priority=[0, 1, 1])
    check(result, first=[1, 2, 1], finish=[3, 3, 3])  # P 1 (3) takes the whole second budget
    # First come, first served among equals; the larger the priority the earlier, for any prompt.
    result = run(
        "slai:token_budget=3,paying_first=True,order=fcfs",
        [0] * 4,
        [3, 3, 3, 3],
        [1] * 4,
        priority=[0, 1, 7, 1],
    )
    check(result, first=[4, 2, 1, 3], finish=[6, 5, 5, 5], start=[3, 1, 0, 2])


def test_paying_users_do_not_interrupt() -> None:
    # P 0 (3 of 6); 1 pays and arrives at 1: P 0 (3) first.
    result = run("slai:token_budget=3,paying_first=True", [0, 1], [6, 3], [1, 1], priority=[0, 1])
    check(result, first=[2, 3], finish=[4, 4])


def test_cap_on_active_requests() -> None:
    # alpha = 2: 2 starts when the first two are done, at 2; 3 with it.
    result = run("slai:max_active=2", [0] * 4, [1] * 4, [1, 1, 2, 1])
    check(result, first=[1, 1, 3, 3], finish=[2, 2, 5, 4], start=[0, 0, 2, 2])
    # Requests that prefill count as well: with alpha = 1 and budget 4, 1 (s 1) does not fill up the batch of 0.
    result = run("slai:max_active=1,token_budget=4,order=fcfs", [0, 0], [6, 1], [1, 1])
    check(result, first=[2, 4], finish=[3, 5], start=[0, 3])


def test_decode_limit() -> None:
    # beta = 2 of three decodes, ties of C = inf go by activation: D 0 1, done. P 3, which arrived at 2, next to D 2.
    result = run("slai:max_decodes=2", [0, 0, 0, 2], [1] * 4, [1] * 4)
    check(result, first=[1, 1, 1, 3], finish=[2, 2, 3, 4])
    assert batches(result) == [(3, 0), (0, 2), (1, 1), (0, 1)]


# ---------------------------------------------------------------- dynamic offset


def test_dynamic_offset_follows_the_memory() -> None:
    # Offset 1 below 20% of M = 40, that is below 8, else 4. t=1: kv 4: C0 = 4: P 1 (4). t=2: kv 8 is not below:
    # C0 = 1: D 0, P 1 (3). t=3: kv 12: D 0, P 1 (3), done at 4. P 1 (4, 2).
    spec = "slai:token_budget=4,offset=4,low_offset=1,memory_threshold={}"
    result = run(spec.format("0.2"), *LONG_PROMPT, M=40)
    check(result, first=[1, 6], finish=[4, 7])
    assert batches(result) == [(4, 0), (4, 0), (3, 1), (3, 1), (4, 0), (2, 0), (0, 1)]
    # Below 12: t=2: kv 8: P 1 (4). t=3: kv 12: D 0, P 1 (3). t=4: the same.
    result = run(spec.format("0.3"), *LONG_PROMPT, M=40)
    check(result, first=[1, 6], finish=[5, 7])
    # Below 40 throughout: as with offset 1.
    result = run(spec.format("1.0"), *LONG_PROMPT, M=40)
    check(result, first=[1, 6], finish=[6, 7])


@pytest.mark.parametrize(
    ("threshold", "M"), [("0.07", 100), ("0.14", 50), ("0.14", 100), ("0.28", 100), ("0.29", 100)]
)
def test_the_memory_threshold_is_an_exact_decimal(threshold: str, M: int) -> None:  # noqa: N803
    # 0.07 * 100 is 7.000000000000001 in binary, 0.29 * 100 is 28.999999999999996. With kv just at the threshold
    # memory is not below it: offset 4, C0 = 1, D 0 at t=1; one token less: C0 = 4, and P 1 fills the batch.
    level = round(float(threshold) * M)
    spec = f"slai:token_budget={level},offset=4,low_offset=1,memory_threshold={threshold}"
    for s, second in ((level, (level - 1, 1)), (level - 1, (level, 0))):
        assert batches(run(spec, [0, 1], [s, level], [2, 1], [4, INF], M=M))[1] == second


# ---------------------------------------------------------------- memory


def test_overflow_evicts_the_newest() -> None:
    # M = 10, all critical. P 0 (4), P 1 (4). D 0 1: 10. t=2: 12 > 10: 1 is evicted, D 0: 6, then 7 and 8, done at 5;
    # meanwhile 1 (4 + 1) does not fit next to 6, 7. t=5: P 1 (4), D 1 twice.
    result = run("slai", [0, 0], [4, 4], [4, 2], [1, 1], M=10)
    check(result, first=[1, 1], finish=[5, 8], start=[0, 0], evictions=[0, 1])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [8, 10, 6, 7, 8, 4, 5, 6])


def test_the_watermark_stays_free_beside_others() -> None:
    # The same with a fifth of M = 10 kept free: 1 (4 + 1) does not fit next to 0 until that is done at 5. No eviction.
    result = run("slai:watermark=0.2", [0, 0], [4, 4], [4, 2], [1, 1], M=10)
    check(result, first=[1, 6], finish=[5, 8], start=[0, 5], evictions=[0, 0])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [4, 5, 6, 7, 8, 4, 5, 6])
    # 3 + 1 and 3 + 1 may fill the 8, one token more may not; alone, a request may fill all of M.
    check(run("slai:watermark=0.2", [0, 0], [3, 3], [1, 1], [1, 1], M=10), first=[1, 1], finish=[2, 2])
    check(run("slai:watermark=0.2", [0, 0], [3, 4], [1, 1], [1, 1], M=10), first=[1, 3], finish=[2, 4])
    check(run("slai:watermark=0.2", [0], [7], [3], M=10), first=[1], finish=[4])


def test_a_prompt_starts_only_if_it_can_be_completed() -> None:
    # M = 10, budget 4. P 0 (4). 1 needs 7 + 1, with kv 4 and D 0 not even 4 of it: D 0 twice, done at 3. P 1.
    result = run("slai:token_budget=4", [0, 0], [4, 7], [2, 1], M=10)
    check(result, first=[1, 5], finish=[3, 6], start=[0, 3])
    # What ongoing prefills still need counts. P 0 (5 of 6). t=1: P 0 (1) leaves 10 - 5 - 2 = 3; 1 (s 4) needs 5.
    # t=2: 10 - 6 = 4. D 0, done at 3. P 1, D 1.
    result = run("slai:token_budget=5,order=fcfs", [0, 0], [6, 4], [1, 1], M=10)
    check(result, first=[2, 4], finish=[3, 5], start=[0, 3])
    # It stops at the first that does not fit: 2 (s 1) comes after 1.
    result = run("slai:token_budget=8,order=fcfs", [0, 0, 0], [6, 4, 1], [1, 1, 1], M=10)
    check(result, first=[1, 3, 3], finish=[2, 4, 4], start=[0, 2, 2])


def test_a_request_may_fill_the_memory() -> None:
    # s + o = M: P (4, 3), then 8, 9, 10.
    result = run("slai:token_budget=4", [0], [7], [3], M=10)
    check(result, first=[2], finish=[5])
    # Counted: the second chunk (3) also writes a token: 8.
    result = run("slai:token_budget=4", [0], [7], [3], M=10, first_token="counted")
    check(result, first=[2], finish=[4])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [4, 8, 9, 10])


def test_one_token_outputs_end_with_the_prefill() -> None:
    # Counted, o 1, budget 4: P 0 (3), P 1 (1 of 3); P 1 (2), P 2 (2 of 3); P 2 (1).
    result = run("slai:token_budget=4", [0] * 3, [3] * 3, [1] * 3, first_token="counted")
    check(result, first=[1, 2, 3], finish=[1, 2, 3], start=[0, 0, 1])


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize("order", ["spf", "fcfs"])
@pytest.mark.parametrize("first_token", ["counted", "uncounted"])
def test_achievable_deadlines_are_met(order: str, first_token: str) -> None:
    """With enough memory and budget for all decodes, offset 1 with unit times meets every TBT deadline."""
    waited = 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = 30
        tbt = rng.integers(1, 9, n).astype(float)
        a, s = np.floor(np.cumsum(rng.exponential(1.0, n))), rng.integers(1, 40, n)
        result = run(
            f"slai:offset=1,token_budget=8,max_active=8,order={order}",
            a.tolist(),
            s.tolist(),
            rng.integers(1, 12, n).tolist(),
            tbt.tolist(),
            first_token=first_token,
        )
        gaps = result.requests["max_token_gap"]
        assert (gaps <= tbt).all()
        waited = max(waited, float(gaps.max()))
    assert waited > 4, "no decode was ever postponed"


@pytest.mark.parametrize("first_token", ["counted", "uncounted", "decode"])
def test_limits_hold_and_no_request_starves(first_token: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = 25
        budget, alpha, beta = (int(rng.integers(low, 9)) for low in (2, 2, 1))
        result = run(
            f"slai:token_budget={budget},max_active={alpha},max_decodes={beta},offset=2,low_offset=1",
            np.floor(np.cumsum(rng.exponential(1.0, n))).tolist(),
            rng.integers(1, 12, n).tolist(),
            rng.integers(1, 12, n).tolist(),
            rng.choice([1.0, 3.0, 6.0, INF], n).tolist(),
            M=26,
            first_token=first_token,
        )
        log = result.log
        assert result.completed
        assert log is not None
        assert (log["prefill_tokens"] + log["num_decodes"] <= budget).all()
        assert (log["num_active"] <= alpha).all()
        assert (log["num_decodes"] <= beta).all()
        assert (log["kv_tokens"] <= 26).all()
        assert (log["num_prefills"] + log["num_decodes"] > 0).all(), "an empty batch"


# ---------------------------------------------------------------- hyperparameters and information


def test_defaults() -> None:
    assert policy_defaults(POLICIES["slai"]) == {
        "order": "spf",
        "offset": 10.0,
        "low_offset": None,
        "memory_threshold": 0.96,
        "paying_first": False,
        "token_budget": 512,
        "max_active": 128,
        "max_decodes": 128,
        "watermark": 0.0,
    }


def test_it_needs_slos_and_nothing_else() -> None:
    info = POLICIES["slai"].info
    assert info.needs == frozenset({"slo"})
    assert info.evicts
    assert info.pauses
    assert info.chunks_prefill
    assert info.paper
    assert "6" in info.algorithm


def test_the_ttft_slo_does_not_matter() -> None:
    args = ([0, 0], [4, 16], [2, 1], [4, INF])
    system = System(kv_capacity=100, batch_time=UnitBatchTime(), first_token="uncounted")
    table = RequestTable.from_columns(
        arrival_time=args[0], prompt_len=args[1], output_len=args[2], tbt_slo=args[3], ttft_slo=[9, 0.1]
    )
    spec = "slai:offset=1,token_budget=4"
    check(simulate(system, table, spec), first=[1, 6], finish=[6, 7])


def test_without_memory_pressure_only_slos_and_priorities_separate_requests() -> None:
    # Priorities are ignored unless paying_first is on.
    args = ([0] * 3, [2, 3, 1], [1] * 3)
    one = run("slai:token_budget=3", *args, priority=[0, 1, 1]).requests
    other = run("slai:token_budget=3", *args).requests
    np.testing.assert_array_equal(one["finish_time"], other["finish_time"])
