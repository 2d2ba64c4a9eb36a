"""Ageing and cost-aware eviction on schedules worked out by hand.

Notation in comments: s prompt, o output, p predicted output, M memory, g generated tokens. In the next round a request
takes s + g + 1, in the k-th round from now s + g + k. Sums list requests in order of activation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.schedules import check, run
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.policy import POLICIES, make_policy
from kvgym.policies.runner import SimulationResult, simulate, system_info
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

BOTH = pytest.mark.parametrize("policy", ["ageing", "cost_aware"])


def assert_same_schedule(one: SimulationResult, other: SimulationResult) -> None:
    for field in ("start_time", "first_token_time", "finish_time", "num_evictions", "num_recomputed_tokens"):
        np.testing.assert_array_equal(one.requests[field], other.requests[field], err_msg=field)
    np.testing.assert_array_equal(one.log, other.log)


def random_requests(seed: int, n: int = 30, mean: float = 1.0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    return (
        np.floor(np.cumsum(rng.exponential(mean, n))),
        rng.integers(1, 10, n),
        rng.integers(1, 12, n),
    )


# ---------------------------------------------------------------- shared by both


@BOTH
def test_arrivals_at_completion_between_rounds_and_after_idleness(policy: str) -> None:
    # M = 5 = s + o: one at a time. 1 arrives as 0 finishes; 2 within a round, and waits for 1; 3 finds the worker
    # idle; 4 fills the memory with its one token.
    result = run(policy, 5, [0, 2, 2.5, 9.5, 9.7], [3, 3, 3, 1, 4], [2, 2, 2, 1, 1])
    check(result, start=[0, 2, 4, 9.5, 10.5], finish=[2, 4, 6, 10.5, 11.5], kv=[4, 5, 4, 5, 4, 5, 2, 5])


@BOTH
def test_ties_by_id_and_one_token_requests(policy: str) -> None:
    check(run(policy, 4, [0] * 5, [1] * 5, [1] * 5), start=[0, 0, 1, 1, 2], finish=[1, 1, 2, 2, 3])


@BOTH
def test_iterations_of_other_durations(policy: str) -> None:
    # One at a time; prefill 0.5 + 3 * 0.25 = 1.25, decode 0.5 + 0.125 = 0.625.
    time = AffineBatchTime(0.5, per_prefill_token=0.25, per_decode_token=0.125)
    check(run(policy, 5, [0, 0.7], [3, 3], [2, 2], batch_time=time), start=[0, 1.875], finish=[1.875, 3.75])


def test_descriptions() -> None:
    for name, needs in (("ageing", {"predicted_length"}), ("cost_aware", set())):
        info = POLICIES[name].info
        assert info.needs == needs
        assert (info.chunks_prefill, info.pauses, info.evicts) == (False, False, True)
        assert info.paper == ""
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[1])
    with pytest.raises(ConfigError, match="predicted_output_len"):
        simulate(System(kv_capacity=9, batch_time=UnitBatchTime()), table, "ageing")


# ---------------------------------------------------------------- ageing

# M = 10 = s + o of each: one at a time. 1 (o 5) waits from 1 on; a request of one token arrives at 2, 3, 4, 5.
OVERTAKING = (10, [0, 1, 2, 3, 4, 5], [8, 5, 9, 9, 9, 9], [2, 5, 1, 1, 1, 1])


def test_ageing_bounds_overtaking() -> None:
    # Keys p + a: 1: 6; 2: 3; 3: 4; 4: 5 pass; 5: 6 is a tie and comes later. t=2: 2. t=3: 3. t=4: 4. t=5: 1. t=10: 5.
    check(run("ageing", *OVERTAKING), start=[0, 5, 2, 3, 4, 10], finish=[2, 10, 3, 4, 5, 11])
    # Rate 2: 1: 7; 2: 5 passes; 3: 7 is a tie. Rate 0.5: 1: 5.5; 5: 3.5 passes as well, as with MC-SF.
    check(run("ageing:rate=2", *OVERTAKING), start=[0, 3, 2, 8, 9, 10], finish=[2, 8, 3, 9, 10, 11])
    for policy in ("ageing:rate=0.5", "ageing:rate=0", "mc_sf"):
        check(run(policy, *OVERTAKING), start=[0, 6, 2, 3, 4, 5], finish=[2, 11, 3, 4, 5, 6])


def test_ageing_stops_at_the_first_that_does_not_fit() -> None:
    # M = 12. t=0: 0 (s 6, o 3). t=1: keys: 1 (s 5, o 2): 3; 2 (s 1, o 3): 4. 1: k=1 8+6 = 14, stop, though 2 would
    # fit. t=3: 6+2, then 7+3, 4.
    result = run("ageing", 12, [0, 1, 1], [6, 5, 1], [3, 2, 3])
    check(result, start=[0, 3, 3], finish=[3, 5, 6], kv=[7, 8, 9, 8, 10, 4])


def test_ageing_undoes_admissions_that_overflow() -> None:
    # M = 10. 0: s 4, o 3, p 2. 1: s 5, o 1, p 1 at 2: 0 (g 2) has outlived its prediction and counts 0 in (5), but 7+6
    # = 13 > 10: 1 does not start after all, and 0 continues (MC-SF would clear it). t=3: 1.
    check(run("ageing", 10, [0, 2], [4, 5], [3, 1], p=[2, 1]), start=[0, 3], finish=[3, 4], kv=[5, 6, 7, 6])


def test_ageing_evicts_the_newest_on_overflow() -> None:
    # M = 10, twice s 3, o 4, p 1: 4+4, 5+5, 6+6 = 12: 1 is evicted (MC-SF clears both, for ever). t=3: 0 counts 0 in
    # (5), but 7+4 = 11: 1 is undone. t=4: 1.
    args = (10, [0, 0], [3, 3], [4, 4], [1, 1])
    result = run("ageing", *args)
    check(result, start=[0, 0], finish=[4, 8], evictions=[0, 1], kv=[8, 10, 6, 7, 4, 5, 6, 7])
    with pytest.raises(LivelockError):
        run("mc_sf", *args, stall_limit=60)


def test_ageing_at_the_ends_of_the_scale() -> None:
    """Without ageing it is MC-SF; if only age counts, MC-Benchmark. Predictions are exact: no overflow."""
    for seed in range(20):
        a, s, o = random_requests(seed)
        rule = {"first_token": ("counted", "uncounted", "decode")[seed % 3]}
        assert_same_schedule(run("ageing:rate=0", 40, a, s, o, **rule), run("mc_sf", 40, a, s, o, **rule))
        a = a + np.arange(len(a)) / 64  # no two at once: ties are broken by prediction
        aged, benchmark = (run(p, 40, a, s, o, **rule) for p in ("ageing:rate=1e6", "mc_benchmark"))
        assert_same_schedule(aged, benchmark)


def test_ageing_bounds_how_late_a_passing_request_may_arrive() -> None:
    """A request that arrives p_i / rate or more after i does not start before i, even with wrong predictions."""
    overtaken = {"mc_sf": 0, "ageing": 0}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        a, s, o = random_requests(seed, n=40, mean=2.0)
        p = np.maximum(1, o + (seed % 2) * rng.integers(-2, 3, len(o)))
        for rate in (0.25, 1.0, 3.0):
            start = run(f"ageing:rate={rate}", 25, a, s, o, p=p).requests["start_time"]
            late = a[None, :] - a[:, None] >= p[:, None] / rate
            assert (start[None, :] >= start[:, None])[late].all()
            overtaken["ageing"] += int((start[None, :] < start[:, None])[a[None, :] > a[:, None]].sum())
        if seed % 2 == 0:
            start = run("mc_sf", 25, a, s, o, p=p).requests["start_time"]
            late = a[None, :] - a[:, None] >= p[:, None]
            overtaken["mc_sf"] += int((start[None, :] < start[:, None])[late].sum())
    assert overtaken["ageing"] > 0  # some do pass, but in time
    assert overtaken["mc_sf"] > 0


# ---------------------------------------------------------------- cost-aware eviction


def test_cost_aware_evicts_the_request_that_loses_least() -> None:
    # M = 20. 3+9 ... 7+13 = 20 at t=4; t=5: 8+14 = 22: 0, the older, holds 7 tokens, 1 holds 13: 0 is
    # evicted. t=6: 0 again.
    args = (20, [0, 0], [2, 8], [9, 6])
    result = run("cost_aware", *args)
    kv = [12, 14, 16, 18, 20, 14, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    check(result, start=[0, 0], finish=[15, 6], evictions=[1, 0], kv=kv)
    assert result.requests["num_recomputed_tokens"].tolist() == [7, 0]
    # LIFO discards the 13 of 1, and 10 more: t=6: 9+9, 10+10, 11+11.
    assert run("fcfs", *args).requests["num_recomputed_tokens"].tolist() == [0, 23]


def test_cost_aware_spares_victims_that_are_not_needed() -> None:
    # M = 18. t=0: 2+3+6+7 = 18. t=1: 3+4+7+8 = 22, 4 too many. 0 frees 3, with 1 it is 7; 1 alone frees 4: 0 stays.
    # t=2: 0 and 2 are done: 9+3. t=3: 3 is done.
    result = run("cost_aware", 18, [0] * 4, [1, 2, 5, 6], [2, 3, 2, 3])
    check(result, [0] * 4, [2, 5, 2, 3], evictions=[0, 1, 0, 0], kv=[18, 18, 12, 4, 5])
    assert result.requests["num_recomputed_tokens"].tolist() == [0, 3, 0, 0]


def test_cost_aware_ties_go_to_the_newest() -> None:
    # M = 8. 3+3, 4+4, 5+5 = 10, both hold 4: 1 is evicted. M = 9, three: 3+3+3; 12: 2 is evicted, 8; 10: 1 is
    # evicted. t=3: 3+3, 4+4, 10: 2 is evicted. t=6: 2.
    check(run("cost_aware", 8, [0, 0], [2, 2], [3, 3]), [0, 0], [3, 6], evictions=[0, 1])
    check(run("cost_aware", 9, [0] * 3, [2] * 3, [3] * 3), [0] * 3, [3, 6, 9], evictions=[0, 1, 2])


def test_cost_aware_admits_none_when_it_evicts_and_evicted_requests_keep_their_place() -> None:
    # M = 6. t=0: 2+3. t=1: 3+4 = 7: 0 (holds 2) is evicted; 2 would fit (4+2), but not at this epoch. t=2: 1 is done;
    # 0 is first: 2+2.
    result = run("cost_aware", 6, [0, 0, 1], [1, 2, 1], [4, 2, 1])
    check(result, [0, 0, 2], [6, 2, 3], evictions=[1, 0, 0], kv=[5, 4, 4, 3, 4, 5])


def test_cost_aware_watermark_bounds_admission_only() -> None:
    # M = 10, limit 8. 4+4 = 8, exactly. t=1: 5+5. t=2: 12: 1 is evicted. t=3: 0 is done; 1.
    check(run("cost_aware:protection=0.2", 10, [0, 0], [3, 3], [3, 3]), [0, 0], [3, 6], evictions=[0, 1])
    check(run("cost_aware:protection=0.3", 10, [0, 0], [3, 3], [3, 3]), [0, 3], [3, 6])


@pytest.mark.parametrize(("protection", "M"), [("0.8", 50), ("0.1", 70), ("0.9", 110), ("0.7", 110)])
def test_cost_aware_threshold_is_an_exact_decimal(protection: str, M: int) -> None:  # noqa: N803
    limit = (10 - int(protection[2:])) * M // 10
    spec = f"cost_aware:protection={protection}"
    check(run(spec, M, [0, 0], [1, limit - 3], [1, 1]), [0, 0], [1, 1])
    check(run(spec, M, [0, 0], [1, limit - 2], [1, 1]), [0, 1], [1, 2])


@pytest.mark.parametrize("policy", ["ageing", "cost_aware"])
def test_an_empty_worker_admits_its_first_request_despite_the_margin(policy: str) -> None:
    check(run(f"{policy}:protection=0.8", 10, [0, 0], [6, 8], [2, 2]), [0, 2], [2, 4])


def test_cost_aware_without_overflow_is_fcfs() -> None:
    for seed in range(20):
        args = random_requests(seed)
        assert_same_schedule(run("cost_aware", 630, *args), run("fcfs", 630, *args))


def test_cost_aware_evictions_are_sufficient_and_none_is_superfluous() -> None:
    several = 0
    for seed in range(12):
        a, s, o = random_requests(seed, n=40, mean=0.3)
        table = RequestTable.from_columns(arrival_time=a, prompt_len=s, output_len=o)
        system = System(kv_capacity=40, batch_time=UnitBatchTime())
        policy = make_policy("cost_aware")
        policy.reset(system_info(system, table, 0, policy.info.needs))
        simulation = Simulation(system, table)
        running = simulation.start()
        while running:
            active = simulation.view.active
            held = dict(zip(active.request_id.tolist(), (active.num_kv_tokens + 1).tolist(), strict=True))
            decision = policy.schedule(simulation.view)
            excess = sum(held.values()) - 40
            freed = sum(held[i] for i in decision.evict)
            assert freed >= excess
            assert all(freed - held[i] < excess for i in decision.evict)
            several += len(decision.evict) > 1
            running = simulation.step(decision)
    assert several > 0
