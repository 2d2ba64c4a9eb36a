"""MC-SF and MC-Benchmark on schedules worked out by hand from Jaillet et al., inequality (5).

Notation in comments: s prompt, o output, p predicted output, M memory; k = rounds from now. A request
with g tokens generated takes s + g + k in the k-th round from now, and counts in (5) while g + k <= p.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs.schedules import check, run
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import simulate, system_info
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

BOTH = pytest.mark.parametrize("policy", ["mc_sf", "mc_benchmark"])


def test_mc_sf_admits_the_shortest_and_charges_s_plus_1_in_the_first_round() -> None:
    # M = 8, all at 0. t=0: request 1 (o 1): 3. Request 2 (o 2): k=1 3+3 = 6, k=2 4. Request 0 (o 4):
    # k=1 3+3+3 = 9 > 8, stop. t=1: 1 is gone; 0 next to 2 (g 1): k=1 3+4 = 7, k=4 6, in.
    result = run("mc_sf", 8, [0, 0, 0], [2, 2, 2], [4, 1, 2])
    check(result, start=[1, 0, 0], finish=[5, 1, 2], first=[2, 1, 1])
    assert result.log is not None
    np.testing.assert_array_equal(result.log["kv_tokens"], [6, 7, 4, 5, 6])


def test_mc_benchmark_goes_by_arrival_and_looks_ahead() -> None:
    # The same requests. t=0: 0: k=4 6. 1: k=1 3+3 = 6. 2: k=1 9 > 8, stop. t=1: 2 next to 0 (g 1): the
    # next round would fit (4+3 = 7), but k=2 is 5+4 = 9. t=2: k=2 6+4 = 10. t=3: k=1 6+3 = 9. t=4: alone.
    check(run("mc_benchmark", 8, [0, 0, 0], [2, 2, 2], [4, 1, 2]), start=[0, 0, 4], finish=[4, 1, 6])


def test_the_look_ahead_admits_a_request_that_peaks_after_the_other_has_finished() -> None:
    # M = 8. t=0: request 0 (s 2, o 4). t=3: 1 (s 2, o 5): k=1 6+3 = 9 > 8 for MC-SF and MC-Benchmark alike. With o =
    # 3 for request 0 it is done at 3 and 1 starts: peaks at 7. Request 1 arriving at 2 next to request 0 (o 3, g 2):
    # k=1 5+3 = 8 fits exactly, k=5 7 alone: in.
    for policy in ("mc_sf", "mc_benchmark"):
        check(run(policy, 8, [0, 2], [2, 2], [3, 5]), start=[0, 2], finish=[3, 7])
        check(run(policy, 8, [0, 3], [2, 2], [4, 5]), start=[0, 4], finish=[4, 9])


@BOTH
def test_ties_go_by_arrival_then_id_and_a_request_may_fill_the_memory(policy: str) -> None:
    # M = 5 = s + o of each: one at a time. All predictions equal: by arrival, then id.
    check(run(policy, 5, [0, 1, 1], [3, 3, 3], [2, 2, 2]), start=[0, 2, 4], finish=[2, 4, 6])


@BOTH
def test_arrivals_at_completion_between_rounds_and_after_idleness(policy: str) -> None:
    # 0 finishes at 2 and its memory is free for 1, which arrives at 2. 2 arrives within a round, at 2.5, and
    # can be considered from 3 on, but has to wait for 1. 3 finds the worker idle and starts at once.
    check(
        run(policy, 5, [0, 2, 2.5, 9.5], [3, 3, 3, 1], [2, 2, 2, 1]),
        start=[0, 2, 4, 9.5],
        finish=[2, 4, 6, 10.5],
    )
    # With room for both, 2.5 waits for the end of the round only.
    check(run(policy, 9, [2, 2.5], [1, 1], [3, 1]), start=[2, 3], finish=[5, 4])


@BOTH
def test_one_token_requests_take_one_round(policy: str) -> None:
    # M = 4: two at a time (s + 1 = 2 each).
    check(run(policy, 4, [0] * 5, [1] * 5, [1] * 5), start=[0, 0, 1, 1, 2], finish=[1, 1, 2, 2, 3])


@BOTH
def test_a_head_that_does_not_fit_blocks_the_rest(policy: str) -> None:
    # M = 12. t=0: 0 (s 6, o 3). t=1: head is 1 (s 5, o 2) under both orders: k=1 8+6 = 14. 2 (s 1, o 3) would
    # fit (k=1 8+2, k=2 9+3 = 12, k=3 4), but admission stops at 1. t=3: 1: 6, 7; 2: k=1 8, k=2 10.
    check(run(policy, 12, [0, 1, 1], [6, 5, 1], [3, 2, 3]), start=[0, 3, 3], finish=[3, 5, 6])


def test_mc_sf_lets_a_shorter_request_pass() -> None:
    # M = 12. 2 is now the shortest (o 1): t=1: k=1 8+2 = 10 fits; then 1: k=1 16. MC-Benchmark stops at 1.
    args = (12, [0, 1, 1], [6, 5, 1], [3, 2, 1])
    check(run("mc_sf", *args), start=[0, 3, 1], finish=[3, 5, 2])
    check(run("mc_benchmark", *args), start=[0, 3, 3], finish=[3, 5, 4])


@BOTH
def test_early_completion_frees_memory_at_once(policy: str) -> None:
    # M = 10. 0 (s 3, o 2, p 7) is expected to reach 10 in round 7; 1 (s 3, o 3, p 3) at t=0: k=3 6+6 = 12, no.
    # t=1: k=3 0 (g 1) 7 + 6. t=2: 0 is done: 1 starts.
    check(run(policy, 10, [0, 0], [3, 3], [2, 3], p=[7, 7]), start=[0, 2], finish=[2, 5])


def test_overflow_clears_all_and_the_round_is_lost() -> None:
    # M = 10. 0: s 4, o 3, p 2. 1: s 5, o 1, p 1, arrives at 2.
    # t=0: 0: k=2 6, starts. t=1: needs 6. t=2: 0 (g 2) has outlived its prediction and counts 0 in (5):
    # 1 passes with 6, the round would need 7+6 = 13: everything is cleared, 1 has not started, (2,3] is lost.
    # t=3: by kept predictions 1 first: 6; 0: k=1 6+5 = 11, stop. t=4: 0 from the beginning, alone.
    # Under MC-Benchmark 0 goes first at t=3 (5), 1: 11, stop. t=4: needs 6; 1: k=1 6+6 = 12, stop. t=5: 0 (g 2)
    # counts 0 again, 1 passes, 13 > 10: the same for ever.
    result = run("mc_sf", 10, [0, 2], [4, 5], [3, 1], p=[2, 1])
    check(result, start=[0, 3], finish=[7, 4], first=[1, 4], evictions=[1, 0])
    log = result.log
    assert log is not None
    lost = log[2]
    assert (lost["start_time"], lost["end_time"], lost["kv_tokens"]) == (2, 3, 0)
    assert (lost["num_evicted"], lost["num_admitted"], lost["num_active"], lost["num_waiting"]) == (
        1,
        0,
        0,
        2,
    )
    assert result.requests["num_recomputed_tokens"].tolist() == [6, 0]
    with pytest.raises(LivelockError, match="mc_benchmark"):
        run("mc_benchmark", 10, [0, 2], [4, 5], [3, 1], p=[2, 1], stall_limit=50)


@BOTH
def test_an_admission_that_overflows_clears_the_ongoing(policy: str) -> None:
    # M = 14. 0: s 3, o 4, p 2 at 0; 1: s 3, o 5, p 5 at 1; 2: s 4, o 1, p 1 at 3. t=0: 0. t=1: 1 next to 0 (g 1): k=1
    # 5+4 = 9, k=5 8. t=2: needs 6+5 = 11. t=3: 0 (g 3) outlived, needs 7+6 = 13. 2: k=1 1: 6, + 5 = 11 <= 14 in (5);
    # really 18: cleared. (3,4] lost. t=4: MC-SF: 2 (p 1): 5; 0 (p 2): k=1 5+4 = 9, k=2 5; 1 (p 5): k=1 5+4+4 = 13,
    # k=2 5+5 = 10, k=5 8, all in. MC-Benchmark: the same three. t=5: 2 is done. 5+5 = 10. t=6: 6+6 = 12. t=7: 7+7 =
    # 14. t=8: 0 is done, 1: 8. t=9.
    check(
        run(policy, 14, [0, 1, 3], [3, 3, 4], [4, 5, 1], p=[2, 5, 1]),
        start=[0, 1, 4],
        finish=[8, 9, 5],
        first=[1, 2, 5],
        evictions=[1, 1, 0],
    )


@BOTH
def test_repeated_clearing_is_a_livelock(policy: str) -> None:
    # M = 10, twice s 3, o 4, p 1: 8, 10, 12 > 10, lost, and again.
    with pytest.raises(LivelockError, match=r"no progress.*protection margin"):
        run(policy, 10, [0, 0], [3, 3], [4, 4], p=[1, 1], stall_limit=60)


@BOTH
def test_protection_bounds_the_look_ahead(policy: str) -> None:
    # M = 10, limit 9: 3 next to 6 (s + o) fits exactly, next to 7 not.
    check(run(f"{policy}:protection=0.1", 10, [0, 0], [2, 5], [1, 1]), start=[0, 0], finish=[1, 1])
    check(run(f"{policy}:protection=0.1", 10, [0, 0], [2, 6], [1, 1]), start=[0, 1], finish=[1, 2])
    # Under-predictions grow into the margin: M = 12, limit 9.6, twice s 3, o 3, p 1: 8, 10, 12, none is cleared.
    # A third (s 2, o 1, p 1) at t=1 passes (5) with 3, since the others have outlived their predictions: really
    # 5+5+3 = 13. With M = 13 that fits; with M = 12 all are cleared.
    spec = f"{policy}:protection=0.2"
    check(run(spec, 12, [0, 0], [3, 3], [3, 3], p=[1, 1]), start=[0, 0], finish=[3, 3])
    check(run(spec, 13, [0, 0, 1], [3, 3, 2], [3, 3, 1], p=[1, 1, 1]), start=[0, 0, 1], finish=[3, 3, 2])
    # t=2, after the lost round: 4+4, the third 11 > 9.6, stop. t=3: it passes again, 13 > 12: cleared, for ever.
    with pytest.raises(LivelockError):
        run(spec, 12, [0, 0, 1], [3, 3, 2], [3, 3, 1], p=[1, 1, 1], stall_limit=60)


@BOTH
def test_predictions_beyond_the_memory_are_never_admitted(policy: str) -> None:
    # s + p = 23 > M = 10: (5) never holds; the run says so rather than looping, or stops at the horizon.
    with pytest.raises(LivelockError, match=policy):
        run(policy, 10, [0], [3], [2], p=[20])
    result = run(policy, 10, [0, 30], [3, 3], [2, 2], p=[20, 2], horizon=31)
    assert not result.completed
    expected = 30 if policy == "mc_sf" else np.nan  # the shorter one passes the one that blocks MC-Benchmark
    np.testing.assert_array_equal(result.requests["start_time"], [np.nan, expected])


@BOTH
@pytest.mark.parametrize(
    ("protection", "M"),
    [("0.8", 50), ("0.1", 10), ("0.1", 70), ("0.3", 10), ("0.9", 110), ("0.7", 110)],
)
def test_thresholds_are_exact_decimals(policy: str, protection: str, M: int) -> None:  # noqa: N803
    # (1 - 0.8) * 50 is 9.999999999999998 in binary; the limit is 10. One of s 1 needs 2, the other the rest of it.
    limit = (10 - int(protection[2:])) * M // 10
    spec = f"{policy}:protection={protection}"
    check(run(spec, M, [0, 0], [1, limit - 3], [1, 1]), start=[0, 0], finish=[1, 1])
    check(run(spec, M, [0, 0], [1, limit - 2], [1, 1]), start=[0, 1], finish=[1, 2])


@BOTH
def test_an_empty_worker_admits_its_first_request_despite_the_margin(policy: str) -> None:
    # Limit 5 of M = 10; 1 (s 6, o 4) needs all of it. MC-Benchmark, t=1: it is blocked for four rounds; t=3: 0 is done,
    # and it runs alone regardless; t=7: 2+3. MC-SF, t=1: 3+2 with 2; 3 waits (3+3). t=3: 3; t=4: 1.
    columns: Any = ([0, 0.5, 0.5, 0.5], [1, 6, 1, 2], [3, 4, 1, 1])
    order = [0, 4, 1, 3] if policy == "mc_sf" else [0, 3, 7, 7]
    spec = f"{policy}:protection=0.5"
    check(run(spec, 10, *columns), start=order, finish=np.add(order, columns[2]))
    with pytest.raises(LivelockError, match="Request 1, which it would admit next"):
        run(f"{spec},strict=True", 10, *columns, stall_limit=9)


@BOTH
def test_iterations_of_other_durations(policy: str) -> None:
    # Half a second each; look-ahead is in iterations. M = 5: one at a time. 1 arrives at 0.7, within (0.5, 1.0].
    half = AffineBatchTime(0.5)
    check(
        run(policy, 5, [0, 0.7], [3, 3], [2, 2], batch_time=half),
        start=[0, 1],
        finish=[1, 2],
        first=[0.5, 1.5],
    )
    # A lost round takes the time of an empty batch: 0.5, without 0.25 per decode.
    model = AffineBatchTime(0.5, per_decode_token=0.25)
    if policy == "mc_sf":
        # As in the overflow above: prefill 0.5, decode 0.75, then lost 0.5 (1 has arrived), 1: 0.5, 0: 0.5 + 2 * 0.75.
        result = run(policy, 10, [0, 1.25], [4, 5], [3, 1], p=[2, 1], batch_time=model)
        check(result, start=[0, 1.75], finish=[4.25, 2.25], first=[0.5, 2.25], evictions=[1, 0])


@BOTH
def test_needs_predictions(policy: str) -> None:
    table = RequestTable.from_columns(arrival_time=[0], prompt_len=[1], output_len=[1])
    with pytest.raises(ConfigError, match="predicted_output_len"):
        simulate(System(kv_capacity=9, batch_time=UnitBatchTime()), table, policy)


@BOTH
@pytest.mark.parametrize("first_token", ["counted", "uncounted", "decode"])
def test_exact_predictions_never_overflow(policy: str, first_token: str) -> None:
    """Under any first-token rule, (5) is checked against the memory that the request really takes."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        s, o = rng.integers(1, 20, 25), rng.integers(1, 20, 25)
        a = np.floor(np.cumsum(rng.exponential(2, 25)))
        for time in (UnitBatchTime(), AffineBatchTime(0.3, 0.01, 0.02, 0.001)):
            result = run(policy, 45, a, s, o, batch_time=time, first_token=first_token)
            check(result, result.requests["start_time"].tolist(), result.requests["finish_time"].tolist())
            assert result.log is not None
            assert result.log["kv_tokens"].max() <= 45


@BOTH
def test_iterations_without_counted_prefill(policy: str) -> None:
    # o 2, s 3: prefill takes 3, then two decodes 4 and 5: 3 iterations, M = 5 is enough for one.
    check(
        run(policy, 5, [0, 0], [3, 3], [2, 2], first_token="uncounted"),
        start=[0, 3],
        finish=[3, 6],
        first=[1, 4],
    )
    check(
        run(policy, 5, [0, 0], [3, 3], [2, 2], first_token="decode"),
        start=[0, 3],
        finish=[3, 6],
        first=[2, 5],
    )
    # M = 9 holds 4+5 in iterations 2 and 3 when the second starts an iteration later; together 5+5 = 10 is too much.
    # At t=0: 1 next to 0: k=3 5+5. t=1: k=2 5+4 = 9, k=3 1 alone: in.
    check(run(policy, 9, [0, 0], [3, 3], [2, 2], first_token="uncounted"), start=[0, 1], finish=[3, 4])


@pytest.mark.parametrize(
    ("policy", "margin"), [("mc_sf", 0.15), ("mc_benchmark", 0.15), ("mc_longest", 0.15), ("ageing", 0.05)]
)
def test_the_rule_depends_on_whether_predictions_can_be_too_low(policy: str, margin: float) -> None:
    """Exact predictions and upper bounds: as printed. One that is too low: a margin, and overruns extend."""
    system = System(kv_capacity=100, batch_time=UnitBatchTime())
    columns = {"arrival_time": [0, 0], "prompt_len": [3, 3], "output_len": [4, 6]}
    for predicted, expected in (
        ([4, 6], [100, 0]), ([4, 9], [100, 0]), ([5, 5], [round(100 * (1 - margin)), 1]),
    ):  # fmt: skip
        table = RequestTable.from_columns(
            **columns, predicted_output_len=predicted, predicted_low=[1, 1], predicted_high=predicted
        )
        made = make_policy(policy)
        info = system_info(system, table, 0, made.info.needs)
        assert bool(info.underestimates) == (expected[1] == 1)
        assert info.underestimates <= {"predicted_length", "length_interval"}
        assert made.params(info)[[0, 2]].tolist() == expected  # type: ignore[attr-defined]
        assert made.resolve(info) == {
            "protection": margin * expected[1],
            "overrun": ("ignore", "extend")[expected[1]],
        }
        given = make_policy(policy, protection=0.5, overrun="ignore")
        assert given.params(info)[[0, 2]].tolist() == [50, 0]  # type: ignore[attr-defined]
        assert given.resolve(info) == {}
    assert not system_info(system, table, 0, {"class"}).underestimates  # it observes no prediction


def test_extending_overrun_predictions() -> None:
    # M = 10. The overflow above: at t=2 request 0 (s 4, g 2, p 2) has outlived its prediction. Extended, it counts
    # 4+2+1 = 7 in the next iteration: 1 (s 5, p 1), 6, does not pass. It finishes at 3, 1 starts then.
    for policy in ("mc_sf", "mc_benchmark"):
        check(
            run(f"{policy}:overrun=extend", 10, [0, 2], [4, 5], [3, 1], p=[2, 1]), start=[0, 3], finish=[3, 4]
        )
    # Twice s 3, o 4, p 1: nothing is left to admit when they have outlived: 8, 10, 12 > 10, lost, for ever.
    with pytest.raises(LivelockError):
        run("mc_sf:overrun=extend", 10, [0, 0], [3, 3], [4, 4], p=[1, 1], stall_limit=60)
    # It counts in the next iteration only: M = 12, 0: s 4, o 4, p 1; at t=1 (g 1) it takes 6 for k=1, 0 from k=2 on.
    # 1: s 3, o 4, p 4 passes: k=1 6+4 = 10, k=4 7. t=2: 7+5 = 12. t=3: 8+6 = 14 > 12: cleared.
    result = run("mc_sf:overrun=extend", 12, [0, 1], [4, 3], [4, 4], p=[1, 4], horizon=3.5)
    assert result.requests["num_evictions"].tolist() == [1, 1]
    assert result.log is not None
    assert result.log["kv_tokens"].tolist() == [5, 10, 12, 0]
    with pytest.raises(ConfigError, match=r"overrun.*ignore, extend or auto"):
        make_policy("mc_sf", overrun="never")
    with pytest.raises(ConfigError, match=r"protection = 1; expected a fraction in \[0, 1\), or auto"):
        make_policy("mc_sf", protection=1)
