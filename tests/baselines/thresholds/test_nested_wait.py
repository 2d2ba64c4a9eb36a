"""Nested WAIT on schedules worked out by hand.

Source: Ao et al., "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints", Algorithm 2,
Example 3, inequality (12), Section 6.2. Notation in comments: l prompt, l' output, n_k threshold of segment k, e_k
its last stage, C memory. Rules of the paper unless stated otherwise: a prefill takes l and shows nothing, l' decodes
follow, the s-th with l + s; eviction loses everything and leads to the back of the queue. Unit batch time. A request
with e_{k-1} tokens is at the entry of segment k; "timeout" is the end of the patience, where a drain batch runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.runs import schedules
from helpers.runs.schedules import PAPER_OF_WAIT as PAPER
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime, BatchTimeModel
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import SimulationResult
from kvgym.workloads.classes import ClassStatistics

HELLO = (ClassStatistics("Hi", 1.0, 1.0, 1.0), ClassStatistics("Hi there!", 1.0, 1.0, 2.0))


def run(
    policy: str,
    C: int,  # noqa: N803
    a: Any,
    s: Any,
    o: Any,
    classes: Any = HELLO,
    types: Any = None,
    **settings: Any,
) -> SimulationResult:
    return schedules.run(policy, C, a, s, o, class_id=types, classes=classes, **(PAPER | settings))


def column(result: SimulationResult, name: str) -> list[int]:
    assert result.log is not None
    found: list[int] = result.log[name].tolist()
    return found


# ---------------------------------------------------------------- segments

# The course of Figure 6: n = (3, 2), e = (1, 2), l = 1; ids 0..11, those with l' = 2 marked *. t=0: 0, 1. t=1:
# 2*: three, [1, 2]. t=2: none. t=5: 3, 4*: two. t=7: 5*, 6: four. Entry of segment 2: none; k = 1: 3, 4, 5
# are prefilled; 0, 1, 2 decode: 0, 1 done, 2 at the entry. t=8: 6 alone. t=14: 7, 8, 9: four. Entry: 2 alone, k
# = 1: 6, 7, 8; 3, 4, 5 decode: 3 is done. t=15: 9 alone. t=16: 10, 11: three. Entry: 2, 4, 5: k = 2: 9, 10, 11;
# 6, 7, 8 decode and are done; 2 and 4, the first two, too; 5 pauses. t=17: none waits.
ARRIVALS = [0, 0, 1, 5, 5, 7, 7, 14, 14, 14, 16, 16]
OUTPUTS = [1, 1, 2, 1, 2, 2, 1, 1, 1, 1, 1, 1]


def test_later_segments_wait_at_their_entry() -> None:
    # C = 17 is what t=16 takes: 3 * 1 + 3 * 2 + 2 * 3, and 2 of the one that pauses. Timeout at 37.
    result = run("nested_wait:thresholds=3/2,segments=1/2,patience=20", 17, ARRIVALS, [1] * 12, OUTPUTS)
    check(
        result,
        start=[1, 1, 1, 7, 7, 7, 14, 14, 14, 16, 16, 16],
        first=[8, 8, 8, 15, 15, 15, 17, 17, 17, 38, 38, 38],
        finish=[8, 8, 17, 15, 17, 38, 17, 17, 17, 38, 38, 38],
    )
    assert column(result, "kv_tokens") == [3, 9, 11, 17, 9]
    assert column(result, "num_decodes") == [0, 3, 3, 5, 4]


def test_the_last_pick_is_undone_if_memory_is_short() -> None:
    # C = 16: 11 stays behind at t=16, alone. Timeout at 37: it is admitted next to 5, 9, 10. t=38: still draining.
    result = run("nested_wait:thresholds=3/2,segments=1/2,patience=20", 16, ARRIVALS, [1] * 12, OUTPUTS)
    check(
        result,
        start=[1, 1, 1, 7, 7, 7, 14, 14, 14, 16, 16, 37],
        finish=[8, 8, 17, 15, 17, 38, 17, 17, 17, 38, 38, 39],
    )
    assert column(result, "kv_tokens") == [3, 9, 11, 16, 8, 2]


def test_a_segment_below_its_threshold_stops_all_later_ones() -> None:
    # n = (1, 2, 1), e = (1, 2, 3), l = 1; 0, 1, 2 (l' 3) at 0, 1, 2, then 3, 4, … (l' 1), one per iteration.
    # t=0: 0. t=1: 1; 0 decodes. t=2: entry of 2: {0}: k = 1: 2; 1 decodes. t=3: {0, 1}: k = 2, entry of 3
    # empty: 3; 2 decodes; 0, 1 decode. t=4: entry of 2: {2}, of 3: {0, 1}, both full enough alone but 2
    # is not: k = 1 only: 4; 3. t=5, t=6: the same. Timeout 10 after t=7: 0, 1 (third token), 2 (second), 6
    # (first); then 2.
    result = run(
        "nested_wait:thresholds=1/2/1,segments=1/2/3,patience=10", 99, range(7), [1] * 7, [3] * 3 + [1] * 4
    )
    check(
        result,
        start=range(7),
        finish=[18, 18, 19, 5, 6, 7, 18],
        first=[2, 3, 4, 5, 6, 7, 18],
    )
    assert column(result, "num_decodes") == [0, 1, 1, 3, 1, 1, 1, 4, 1]


def test_all_segments_run_together_with_their_own_limits() -> None:
    # n = (2, 1), e = (1, 3), l = 1, l' = 3 for 0..3; 4..11 with l' = 1; two arrive per iteration. t=0: 0, 1.
    # t=1: 2, 3; 0, 1 decode. t=2: entry of 2: {0, 1}: k = 2: 4, 5; 2, 3; of 0, 1 one: 0. t=3: entry {1, 2, 3}:
    # 6, 7; 4, 5; 1; and 0 at its last stage: done at 4. t=4: entry {2, 3}: 8, 9; 6, 7; 2; and 1: done. t=5:
    # {3}: 10, 11; 8, 9; 3 and 2: done. t=6: none waits: 3 has its last token at the timeout, 5 later.
    a = np.repeat(np.arange(6), 2)
    result = run("nested_wait:thresholds=2/1,segments=1/3,patience=5", 99, a, [1] * 12, [3] * 4 + [1] * 8)  # type: ignore
    check(result, start=a, finish=[4, 5, 6, 12, 4, 4, 5, 5, 6, 6, 12, 12])  # type: ignore
    assert column(result, "num_decodes") == [0, 2, 3, 4, 4, 4, 3]


def test_outputs_beyond_the_last_segment_stay_in_it() -> None:
    # n = (1, 1), e = (1, 2). 0 (l' 4) continues as long as requests come and one is at the entry of 2
    # (after one token). t=0: 0. t=1: 1 (l' 2); 0. t=2: entry {0}: 2; 1; 0. t=3: entry {1}: 3 (l' 1); 2; 1
    # (done), 0 (third token). t=4: entry {2}: 4; 3 (done); 2 (done), 0 (fourth token: done).
    result = run(
        "nested_wait:thresholds=1/1,segments=1/2,patience=10", 99, range(5), [1] * 5, [4, 2, 2, 1, 1]
    )
    check(result, start=range(5), finish=[5, 4, 5, 5, 16])


def test_example_3_prompts_reveal_themselves() -> None:
    """The policy does not use types: missing or wrong ones have no effect."""
    rng = np.random.default_rng(0)
    a, o = np.sort(rng.uniform(0, 60, 100)), rng.integers(1, 3, 100)
    assert make_policy("nested_wait").info.needs == {"class_rates"}
    for spec in ("nested_wait", "nested_wait:rule=practical,batch_limit=12", "nested_wait:thresholds=3/2"):
        logs = [
            run(spec, 40, a, [1] * 100, o, types=types).log  # type: ignore
            for types in (None, o - 1, 2 - o, np.zeros(100, int))
        ]
        for log in logs[1:]:
            np.testing.assert_array_equal(log, logs[0])


@pytest.mark.parametrize("first_token", ["counted", "uncounted", "decode"])
@pytest.mark.parametrize("progress", ["lost", "recompute", "kept"])
def test_one_segment_is_wait_with_one_type(first_token: str, progress: str) -> None:
    one = (ClassStatistics("only", 1.0, 3.0, 4.0),)
    evictions = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        a = np.floor(np.cumsum(rng.exponential(0.5, 40)) * 2) / 2
        s, o, n = rng.integers(1, 6, 40), rng.integers(1, 8, 40), int(rng.integers(1, 5))
        rules = {
            "first_token": first_token,
            "progress_on_evict": progress,
            "requeue": ["back", "front", "arrival"][seed % 3],
        }
        rest = {"classes": one, "types": np.zeros(40, int), "stall_limit": 300}
        wait, nested = (
            run(spec, 25, a, s, o, **rest, **rules)  # type: ignore
            for spec in (
                f"wait:thresholds={n},patience=1.5",
                f"nested_wait:thresholds={n},segments=4,patience=1.5",
            )
        )
        np.testing.assert_array_equal(wait.log, nested.log)
        np.testing.assert_array_equal(wait.requests["finish_time"], nested.requests["finish_time"])
        evictions += int(wait.worker["total_evicted"][0])
    assert evictions > 10


# ---------------------------------------------------------------- memory


def test_paused_prompts_fill_a_memory_that_is_too_small() -> None:
    # C = 8 < M^pi; n = (1, 5), e = (1, 2), all l = 1, l' = 2, one per second. t=0: 1. t=1: 2+1. t=2: 2, 2+1.
    # t=3: 2, 2, 2+1. t=4: three pause with 2 each, 3 decodes: 8; no room for 4. t=5: four at the entry of
    # segment 2, not five; segment 1 has nothing that runs: no batch, for ever.
    spec = "nested_wait:thresholds=1/5,segments=1/2"
    args = (8, range(8), [1] * 8, [2] * 8)
    with pytest.raises(LivelockError, match="nested_wait"):
        run(f"{spec},drain=False", *args)
    result = run(f"{spec},drain=False", *args, horizon=7)
    assert column(result, "kv_tokens") == [1, 3, 5, 7, 8]
    assert result.worker["num_active"][0] == 4
    assert result.worker["total_finished"][0] == 0
    # Patience 3 after the last arrival: t=10: 4 * 3 > 8: 3, then 2 are evicted, 0 and 1 are done. t=11: queue 4..7, 3,
    # 2: one by one until four pause again.
    result = run(f"{spec},patience=3", *args)
    assert result.completed
    assert result.requests["finish_time"][:2].tolist() == [11, 11]
    assert (result.requests["num_evictions"][2:4] >= 1).all()
    # With M^pi and what five waiting at the entry take, none goes: 1 + 2 + 5 * 3 + 4 * 2.
    result = run(f"{spec},patience=3", 26, *args[1:])
    assert result.worker["total_evicted"][0] == 0


def test_overflow_evicts_the_newest() -> None:
    # C = 7, n = (2, 1), e = (1, 2), l = 1, l' = 2. t=0: 0, 1: 2. t=1: 2+2, 2 and 3: 6. t=2: k = 2: entry {0,
    # 1}: 0 (3), 1 pauses (2), 2, 3 decode (2+2): 9 > 7: no picks; 3 is evicted: 7. t=3: entry {1, 2}; 4, 5, 3 wait:
    # 1: 3, 2 pauses with 2, 4 and 5: 7. t=4: entry {2}: 3; 4, 5: 2+2 = 7; 3 alone waits, below n. So nothing;
    # timeout at 6: all: 3+2+2 = 7, no room for 3. t=7: 4, 5 continue, 3+3, and 3 is admitted, 1: 7. t=8: 3: 2.
    # t=9: 3.
    result = run(
        "nested_wait:thresholds=2/1,segments=1/2,patience=2", 7, [0, 0, 1, 1, 2, 2], [1] * 6, [2] * 6
    )
    check(
        result,
        start=[0, 0, 1, 1, 3, 3],
        first=[2, 2, 3, 9, 7, 7],
        finish=[3, 4, 7, 10, 8, 8],
        evictions=[0, 0, 0, 1, 0, 0],
    )
    assert column(result, "kv_tokens") == [2, 6, 7, 7, 7, 7, 2, 3]


def test_stages_hold_at_most_their_thresholds_beyond_the_entries() -> None:
    """M^pi and a buffer for the entries suffice: without eviction only the entries of segments can grow."""
    rng = np.random.default_rng(1)
    l, ends, n = 2, (2, 5), (3, 2)  # noqa: E741
    a, o = np.cumsum(rng.exponential(0.4, 600)), np.where(rng.random(600) < 0.5, 2, 5)
    spec = "nested_wait:thresholds=3/2,segments=2/5,patience=50"
    result = run(spec, 4000, a, [l] * 600, o, classes=_classes(1.25, 1.25, ends))  # type: ignore
    log = result.log
    assert log is not None
    # decodes: n_1 at each of stages 1, 2 and n_2 at each of 3, 4, 5; beyond them only drain batches, which are rare
    assert log["num_prefills"].max() == n[0]
    normal = log["num_decodes"] <= n[0] * ends[0] + n[1] * (ends[1] - ends[0])
    assert normal.mean() > 0.99
    assert log["num_decodes"][normal].max() == 3 * 2 + 2 * 3
    entries = log["num_active"] - log["num_prefills"] - log["num_decodes"]
    m_pi = 3 * (2 + 3 + 4) + 2 * (5 + 6 + 7)
    # paused requests are at the entry of segment 2 (l + 2 each) or deeper in it, at most n_2 per stage (l + 3,
    # l + 4)
    assert (log["kv_tokens"][normal] <= m_pi + entries[normal] * (l + 4)).all()
    assert result.worker["total_evicted"][0] == 0


# ---------------------------------------------------------------- computed thresholds, segments and patience


def _classes(first: float, second: float, ends: tuple[int, int], prompt: float = 2.0) -> tuple[Any, ...]:
    rates = zip((first, second), ends, strict=True)
    return tuple(ClassStatistics(str(end), rate, prompt, end) for rate, end in rates)


def outcome(spec: str, classes: tuple[ClassStatistics, ...], **time: BatchTimeModel) -> Any:
    rng = np.random.default_rng(5)
    a = np.cumsum(rng.exponential(0.15, 120))
    o = np.where(rng.random(120) < 0.5, 2, 4)
    return run(spec, 900, a, [2] * 120, o, classes=classes, **time).log  # type: ignore


def test_least_thresholds_by_12() -> None:
    # lambda = (2, 1), unit time: n_1 > 3 and n_2 > n_1 / 3, both strictly: (4, 2).
    classes = _classes(2.0, 1.0, (2, 4))
    own = outcome("nested_wait:patience=3", classes)
    assert np.array_equal(own, outcome("nested_wait:thresholds=4/2,segments=2/4,patience=3", classes))
    for other in ("3/2", "5/2", "4/1", "4/3"):
        assert not np.array_equal(own, outcome(f"nested_wait:thresholds={other},patience=3", classes))
    # With d0 = 0.5, d1 = 0.005 and l = 2: stages 0, 1, 2 hold 2, 3, 4 and stages 3, 4 hold 5, 6. n = (1, 1) lasts
    # 0.5 + 0.005 (9 + 11) = 0.6, and 3 * 0.6 > 1. n = (2, 1): 0.5 + 0.005 (18 + 11) = 0.645, 1.935 < 2.
    time = AffineBatchTime.from_wait(0.5, 0.005)
    own = outcome("nested_wait:patience=3", classes, batch_time=time)
    assert np.array_equal(own, outcome("nested_wait:thresholds=2/1,patience=3", classes, batch_time=time))
    assert not np.array_equal(own, outcome("nested_wait:thresholds=3/2,patience=3", classes, batch_time=time))


def test_practical_thresholds_are_proportional_to_the_requests_that_reach_a_segment() -> None:
    # Rates (1, 1): 2 reach segment 1 with stages 0, 1, 2; 1 reaches segment 2 with stages 3, 4: 2 * 3 + 1 * 2 =
    # 8 of a batch of 16: (4, 2).
    classes = _classes(1.0, 1.0, (2, 4))
    own = outcome("nested_wait:rule=practical,batch_limit=16,patience=3", classes)
    assert np.array_equal(own, outcome("nested_wait:thresholds=4/2,patience=3", classes))
    assert not np.array_equal(own, outcome("nested_wait:thresholds=5/2,patience=3", classes))
    own = outcome("nested_wait:rule=practical,batch_limit=1,patience=3", classes)
    assert np.array_equal(own, outcome("nested_wait:thresholds=1/1,patience=3", classes))


def test_segments_end_where_types_do() -> None:
    # Mean outputs 4.2, 1.9 and 2.1: segments 2 and 4, in any order.
    classes = tuple(ClassStatistics(str(x), 1.0, 2.0, x) for x in (4.2, 1.9, 2.1))
    own = outcome("nested_wait:thresholds=3/2,patience=3", classes)
    assert np.array_equal(own, outcome("nested_wait:thresholds=3/2,segments=2/4,patience=3", classes))
    assert not np.array_equal(own, outcome("nested_wait:thresholds=3/2,segments=1/4,patience=3", classes))


def test_default_patience() -> None:
    # The larger of 1 s and 10 n_k / Lambda_k, where Lambda = (3, 1) reach the segments: 4: 13.3, 2: 20.
    classes = _classes(2.0, 1.0, (2, 4))
    check(run("nested_wait", 99, [0], [1], [1], classes=classes), start=[20], finish=[22])
    # (6, 1): 20 and 10. Fast: 6 / 300, 2 / 100: 1 s.
    check(run("nested_wait:thresholds=6/1", 99, [0], [1], [1], classes=classes), start=[20], finish=[22])
    fast = _classes(200.0, 100.0, (2, 4))
    check(run("nested_wait:thresholds=6/2", 99, [0], [1], [1], classes=fast), start=[1], finish=[3])


def test_an_arrival_at_the_timeout_is_an_arrival() -> None:
    spec = "nested_wait:thresholds=3/1,patience=2"
    check(run(spec, 9, [0, 2], [1, 1], [1, 1]), start=[4, 4], finish=[6, 6])
    check(run(spec, 9, [0, 2.5], [1, 1], [1, 1]), start=[2, 3], finish=[4, 5])


def test_a_drain_batch_admits_up_to_the_first_threshold() -> None:
    # C = 6, n = (4, 1), patience 1: 0 (l = 4) and 1, 2 (l = 1), three below four. t=1: 4+1+1 = 6. t=2: l' = 1: 5+2+2
    # = 9 > 6: 2 is evicted, then 1: 5. t=3: 2, 1 in this order are below four; none is active: patience begins again.
    # t=4: both. t=5.
    result = run("nested_wait:thresholds=4/1,patience=1", 6, [0] * 3, [4, 1, 1], [1] * 3)
    check(result, start=[1, 1, 1], finish=[3, 6, 6], evictions=[0, 1, 1])


# ---------------------------------------------------------------- checks of hyperparameters


def test_incompatible_options() -> None:
    with pytest.raises(ConfigError, match="thresholds"):
        run("nested_wait:thresholds=3/2/1,segments=1/2", 99, [0], [1], [1])
    with pytest.raises(ConfigError, match="segment"):  # no type ends in 3..9: nothing to derive n_2 from
        run("nested_wait:segments=2/9/12", 99, [0], [1], [1])
    with pytest.raises(ConfigError, match="class_rates"):
        run("nested_wait", 99, [0], [1], [1], classes=())
