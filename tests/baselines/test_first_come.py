"""Greedy FCFS, α-protection and β-clearing on schedules worked out by hand.

Notation in comments: s prompt, o output, M memory. In the next iteration a request with g tokens generated
takes s + g + 1. A plain sum such as 3+4 lists the requests in order of activation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.schedules import check, run
from kvgym.batch_time import UnitBatchTime
from kvgym.compiling.kernel import uncompiled
from kvgym.errors import LivelockError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import system_info
from kvgym.simulator.kernels.random import next_uniform, seed_words
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.utils.seeding import stream_seed
from kvgym.workloads.table import RequestTable

ALL = pytest.mark.parametrize(
    "policy", ["fcfs:protection={}", "alpha_greedy:alpha={}", "alpha_beta:alpha={}"]
)


# ---------------------------------------------------------------- shared by all three


@ALL
def test_a_head_that_does_not_fit_blocks_the_rest(policy: str) -> None:
    # Limit 10 of M = 20. t=0: 0 (s 4, o 3): 5. t=1: 1 (s 5): 6+6 = 12, stop; 2 (s 1) would fit: 6+2.
    # t=2: 7+6 = 13. t=3: 0 is done, 6+2 = 8.
    result = run(policy.format("0.5"), 20, [0, 1, 1], [4, 5, 1], [3, 1, 1])
    check(result, start=[0, 3, 3], finish=[3, 4, 4])


@ALL
def test_arrivals_at_completion_between_rounds_and_after_idleness(policy: str) -> None:
    # Limit 4 of M = 8: s 3 fills it, so one at a time until its decodes are done (growth may pass the limit).
    # 1 arrives as 0 finishes; 2 within a round; 3 finds the worker idle.
    result = run(policy.format("0.5"), 8, [0, 2, 2.5, 9.5], [3, 3, 3, 1], [2, 2, 2, 1])
    check(result, start=[0, 2, 4, 9.5], finish=[2, 4, 6, 10.5])


@ALL
@pytest.mark.parametrize(
    ("alpha", "M"),
    [("0.8", 50), ("0.1", 10), ("0.1", 70), ("0.3", 10), ("0.9", 110), ("0.7", 110)],
)
def test_thresholds_are_exact_decimals(policy: str, alpha: str, M: int) -> None:  # noqa: N803
    # (1 - 0.8) * 50 is 9.999999999999998 in binary; the limit is 10. One of s 1 needs 2, the other the rest of it.
    limit = (10 - int(alpha[2:])) * M // 10
    spec = policy.format(alpha)
    check(run(spec, M, [0, 0], [1, limit - 3], [1, 1]), start=[0, 0], finish=[1, 1])
    check(run(spec, M, [0, 0], [1, limit - 2], [1, 1]), start=[0, 1], finish=[1, 2])


@ALL
def test_an_empty_worker_admits_its_first_request_despite_the_margin(policy: str) -> None:
    # Limit 2 of M = 10: each needs more, so one after another.
    args: Any = (10, [0, 0, 0], [6, 1, 9], [2, 1, 1])
    check(run(policy.format("0.8"), *args), start=[0, 2, 3], finish=[2, 3, 4])
    if "protection" not in policy:  # as printed: the second would fit, but the first waits for ever
        with pytest.raises(LivelockError, match="Request 0, which it would admit next"):
            run(policy.format("0.8,strict=True"), *args, stall_limit=9)
        check(run(policy.format("0.5,strict=True"), 10, [0, 0], [4, 2], [1, 1]), start=[0, 1], finish=[1, 2])


@ALL
def test_ties_by_id_and_one_token_requests(policy: str) -> None:
    # Limit 4 of M = 8, s + 1 = 2: two at a time.
    result = run(policy.format("0.5"), 8, [0] * 5, [1] * 5, [1] * 5)
    check(result, start=[0, 0, 1, 1, 2], finish=[1, 1, 2, 2, 3])


# ---------------------------------------------------------------- greedy FCFS


def test_fcfs_fills_the_memory() -> None:
    check(run("fcfs", 10, [0], [7], [3]), start=[0], finish=[3])


def test_fcfs_evicts_the_last_activated() -> None:
    # M = 8, all at 0. t=0: 3+3, third 9 > 8. t=1: 1 is done; 4+3 = 7: 2 starts. t=2: 5+4 = 9 > 8: 2 is evicted, 0 runs.
    # t=3: 6+3 = 9. t=4: 0 is done, 2 starts again.
    result = run("fcfs", 8, [0, 0, 0], [2, 2, 2], [4, 1, 2])
    check(result, start=[0, 0, 1], finish=[4, 1, 6], first=[1, 1, 2], evictions=[0, 0, 1])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [6, 7, 5, 6, 3, 4])
    np.testing.assert_array_equal(result.log["num_evicted"], [0, 0, 1, 0, 0, 0])


def test_fcfs_evicts_the_last_picked_of_an_iteration_first() -> None:
    # M = 9, three of s 2, o 3. t=0: 3+3+3 = 9. t=1: 12 > 9: 2 is evicted, 8. t=2: 10 > 9: 1 is evicted, 5; none is
    # admitted. t=3: 0 is done; 3+3. t=4: 8. t=5: 10 > 9: 2 is evicted. t=6: 1 is done; 2 starts.
    result = run("fcfs", 9, [0, 0, 0], [2, 2, 2], [3, 3, 3])
    check(result, start=[0, 0, 0], finish=[3, 6, 9], first=[1, 1, 1], evictions=[0, 1, 2])


def test_fcfs_evicts_until_the_round_fits_newest_first() -> None:
    # M = 18, six of s 2. t=0: 18. t=1: 24 > 18: 5 is evicted (20), 4 is evicted (16).
    table = RequestTable.from_columns(arrival_time=[0] * 6, prompt_len=[2] * 6, output_len=[3] * 6)
    system = System(kv_capacity=18, batch_time=UnitBatchTime())
    policy = make_policy("fcfs")
    policy.reset(system_info(system, table, 0, policy.info.needs))
    simulation = Simulation(system, table)
    assert simulation.start()
    decision = policy.schedule(simulation.view)
    assert list(decision.admit) == [0, 1, 2, 3, 4, 5]
    assert simulation.step(decision)
    decision = policy.schedule(simulation.view)
    assert (list(decision.evict), list(decision.admit)) == ([5, 4], [])


def test_fcfs_admits_none_when_it_evicts_and_evicted_requests_keep_their_place() -> None:
    # M = 6. t=0: 2+3 = 5. t=1: 3+4 = 7 > 6: 1 is evicted; 2 (3+2 = 5) would fit, but not at this epoch.
    # t=2: 1 is first again: 4+3 = 7, stop. t=3: 5+3. t=4: 0 is done; 3+2. t=5: 2 is done; 4.
    result = run("fcfs", 6, [0, 0, 1], [1, 2, 1], [4, 2, 1])
    check(result, start=[0, 0, 4], finish=[4, 6, 5], evictions=[0, 1, 0])


def test_fcfs_watermark_bounds_admission_only() -> None:
    # M = 10, limit 8. t=0: 4+4 = 8, exactly. t=1: 10. t=2: 12 > 10: 1 is evicted. t=3: 0 is done; 1 again.
    result = run("fcfs:protection=0.2", 10, [0, 0], [3, 3], [3, 3])
    check(result, start=[0, 0], finish=[3, 6], evictions=[0, 1])


# ---------------------------------------------------------------- α-protection greedy


def test_alpha_greedy_admits_up_to_the_threshold() -> None:
    # M = 10, limit 7. t=0: 3+4 = 7; 2: 9, stop. t=1: 1 is done; 4+2.
    check(
        run("alpha_greedy:alpha=0.3", 10, [0, 0, 0], [2, 3, 1], [2, 1, 1]), start=[0, 0, 1], finish=[2, 1, 2]
    )


OVERFLOW = (10, [0, 2, 4], [1, 2, 1], [5, 3, 1])
# M = 10, limit 7. t=0: 2. t=1: 3. t=2: 4+3 = 7: 1 starts. t=3: 5+4 = 9. t=4: 6+5 = 11 > 10, just before 0 and 1 would
# have had their last tokens.


def test_alpha_greedy_clears_all_and_the_round_is_lost() -> None:
    # t=4: 0 and 1 are cleared, 2, arrived now, does not start. t=5: 2+3+2 = 7. t=6: 2 is done, 3+4. t=7: 4+5.
    # t=8: 1 is done, 5. t=9: 6. t=10.
    result = run("alpha_greedy:alpha=0.3", *OVERFLOW)
    check(result, start=[0, 2, 5], finish=[10, 8, 6], first=[1, 3, 6], evictions=[1, 1, 0])
    log = result.log
    assert log is not None
    assert log["kv_tokens"].tolist() == [2, 3, 7, 9, 0, 7, 7, 9, 5, 6]
    assert (log["num_evicted"][4], log["num_active"][4], log["num_waiting"][4]) == (2, 0, 3)
    assert (result.worker["total_output_tokens"][0], result.worker["total_evicted"][0]) == (9 + 4 + 2, 2)


def test_alpha_greedy_livelock() -> None:
    # M = 10, limit 7: s 3, o 4 and s 1, o 6 together: 6, 8, 10, 12 > 10, for ever. With α = 0.5 one by one.
    args = (10, [0, 0], [3, 1], [4, 6])
    with pytest.raises(LivelockError, match=r"alpha_greedy.*no progress.*larger protection margin"):
        run("alpha_greedy:alpha=0.3", *args, stall_limit=50)
    check(run("alpha_greedy:alpha=0.5", *args), start=[0, 4], finish=[4, 10])


# ---------------------------------------------------------------- α-protection β-clearing


def coins(seed: int, beta: float) -> Any:
    """Yield the policy's coin tosses under ``seed``: True = evicted."""
    words, draw = seed_words(stream_seed(seed, "policy")), uncompiled(next_uniform)
    while True:
        yield float(draw(words, 0)) < beta


def test_beta_clearing_outcomes() -> None:
    """One coin per active request in order of activation; if the rest still does not fit, the round stalls."""
    seen = set()
    for seed in range(40):
        toss = coins(seed, 0.5)
        stalled = 0
        while (outcome := (next(toss), next(toss))) == (False, False):
            stalled += 1
        now = 4 + stalled  # the epoch in which the coins clear a request
        if outcome == (True, True):
            # Round lost; as under α-protection from there: 2+3+2 = 7.
            start, finish, evictions = now + 1, [now + 6, now + 4, now + 2], [1, 1, 0]
        elif outcome == (False, True):
            # 0 has its last token; 1 and 2 (3+2) start in the next round.
            start, finish, evictions = now + 1, [now + 1, now + 4, now + 2], [0, 1, 0]
        else:
            # 1 has its last token; 0 and 2 (2+2) start in the next round.
            start, finish, evictions = now + 1, [now + 6, now + 1, now + 2], [1, 0, 0]
        result = run("alpha_beta:alpha=0.3,beta=0.5", *OVERFLOW, seed=seed)
        check(result, start=[0, 2, start], finish=finish, first=[1, 3, start + 1], evictions=evictions)
        assert result.log is not None
        assert result.log["kv_tokens"][4 : 4 + stalled].tolist() == [9] * stalled  # kept, none advances
        assert result.log["num_output_tokens"][4 : 4 + stalled].tolist() == [0] * stalled
        assert result.log["num_decodes"][4 : 4 + stalled].tolist() == [0] * stalled
        seen.add((outcome, stalled > 0))
    assert len(seen) == 6  # three outcomes, at once and after a stall


def test_beta_survivors_that_do_not_fit_stall() -> None:
    """Of three active requests, evicting one is not enough: the others keep their KV and toss again."""
    # M = 24, limit 18, six of s 2: 18. t=1: 24. t=2: 30 > 24: one cleared leaves 25 > 24: stalled with 20 held.
    found = False
    for seed in range(60):
        toss = coins(seed, 0.2)
        if sum(next(toss) for _ in range(6)) != 1:
            continue
        again = sum(next(toss) for _ in range(5))
        log = run("alpha_beta:alpha=0.25,beta=0.2", 24, [0] * 6, [2] * 6, [3] * 6, seed=seed).log
        assert log is not None
        assert (log["num_evicted"][2], log["num_active"][2], log["num_admitted"][2]) == (1, 5, 0)
        assert (log["num_output_tokens"][2], log["kv_tokens"][2]) == (0, 20)
        assert log["num_evicted"][3] == again
        assert log["num_output_tokens"][3] == (5 - again if again else 0)
        found = True
    assert found


def test_beta_1_is_alpha_greedy_and_beta_near_0_never_ends() -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        args = (40, np.floor(rng.uniform(0, 60, 12)), rng.integers(1, 8, 12), rng.integers(1, 12, 12))
        greedy = run("alpha_greedy:alpha=0.3", *args)
        clearing = run("alpha_beta:alpha=0.3,beta=1.0", *args)
        assert greedy.requests.tobytes() == clearing.requests.tobytes()
    with pytest.raises(LivelockError, match="alpha_beta"):
        run("alpha_beta:alpha=0.3,beta=1e-12", *OVERFLOW, stall_limit=50)
