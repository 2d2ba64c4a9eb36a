"""WAIT on schedules worked out by hand, and the paper's Examples 1 and 2.

Source: Ao et al., "Optimizing LLM Inference: Fluid-Guided Online Scheduling with Memory Constraints", Algorithm 1,
inequality (11), Section 6.1. Notation in comments: l prompt, l' output, n threshold, C memory, C* the memory of
the fluid equilibrium. Rules of the paper unless stated otherwise: a prefill takes l and shows nothing, l' decodes
follow, the s-th with l + s; eviction loses everything and leads to the back of the queue. Unit batch time. A request
is at stage s >= 1 when it has s - 1 tokens; "timeout" is the end of the patience, where a drain batch runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helpers.runs import schedules
from helpers.runs.schedules import PAPER_OF_WAIT as PAPER
from helpers.runs.schedules import check
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError, LivelockError
from kvgym.policies.policy import make_policy
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

ONE = (ClassStatistics("hello", 4.0, 1.0, 1.0),)
TWO = (ClassStatistics("a", 1.0, 1.0, 1.0), ClassStatistics("b", 1.0, 1.0, 2.0))


def run(
    policy: str,
    C: int,  # noqa: N803
    a: Any,
    s: Any,
    o: Any,
    types: Any = None,
    classes: Any = ONE,
    **settings: Any,
) -> SimulationResult:
    kinds = [0] * len(a) if types is None else types
    return schedules.run(policy, C, a, s, o, class_id=kinds, classes=classes, **(PAPER | settings))


def column(result: SimulationResult, name: str) -> list[int]:
    assert result.log is not None
    found: list[int] = result.log[name].tolist()
    return found


# ---------------------------------------------------------------- Examples 1 and 2


def hello(policy: str, a: Sequence[float], **rules: Any) -> SimulationResult:
    """Run the examples' requests: l = l' = 1, so that C = 12 holds four at prefill (1 each) and four at decode (2)."""
    return run(policy, 12, a, [1] * len(a), [1] * len(a), **rules)


def four_each(first: int, last: int, offset: float = 0.0) -> list[float]:
    return [k + offset for k in range(first, last) for _ in range(4)]


@pytest.mark.parametrize("policy", ["fcfs", "wait:thresholds=4,drain=False"])
def test_example_1_in_balance(policy: str) -> None:
    # Four arrive per iteration. t=0: 4 * 1. From then on 4 * 2 + 4 * 1 = 12 = C with four completions each.
    result = hello(policy, four_each(0, 50), horizon=50)
    assert column(result, "kv_tokens") == [4] + [12] * 49
    assert column(result, "num_finished") == [0] + [4] * 49
    assert column(result, "num_evicted") == [0] * 50


def test_examples_1_and_2_first_come_first_served_cascades() -> None:
    # 3 arrive at 0, 6 at 1, then four at each iteration. t=1: 3 decodes, 6 prefills: 6 + 6 = 12, three
    # completions. t=2: the 6 decode with 12, no room for the four that have arrived. t=3: all 8 are prefilled. t=4:
    # 8 decodes would take 16: two lose their KV and wait behind four newcomers. t=5: those 2 and 8 new ones,
    # 10. t=6: 4 are evicted. t=7: 12, as many as there is room for. From then on 6 of 12 go each time: six completions
    # in two iterations, 3 instead of 4.
    result = hello("fcfs", [0] * 3 + [1] * 6 + four_each(2, 1000), horizon=1000)
    assert column(result, "num_admitted")[:9] == [3, 6, 0, 8, 0, 10, 0, 12, 0]
    assert column(result, "kv_tokens")[:9] == [3, 12, 12, 8, 12, 10, 12, 12, 12]
    assert column(result, "num_evicted")[:11] == [0, 0, 0, 0, 2, 0, 4, 0, 6, 0, 6]
    assert column(result, "num_finished")[:9] == [0, 3, 6, 0, 6, 0, 6, 0, 6]
    per_iteration = np.mean(column(result, "num_finished")[10:])
    assert 3 <= per_iteration <= 3.5  # the paper: 12 to 25 % below 4
    assert result.worker["num_waiting"][0] > 900  # a backlog that grows by one per iteration


@pytest.mark.parametrize("policy", ["vllm:watermark=0", "sarathi:watermark=0"])
def test_example_2_iteration_level_batching_loses_as_well(policy: str) -> None:
    result = hello(policy, [0] * 3 + [1] * 6 + four_each(2, 1000), horizon=1000)
    finished = column(result, "num_finished")
    assert 3 <= np.mean(finished[10:]) <= 3.5


def test_example_2_wait_does_not_lose() -> None:
    # The same arrivals. t=0: 3 < 4. t=1: four of the nine; t=2: these decode, four of nine, 12; and so on, with
    # five left in the queue.
    result = hello("wait:thresholds=4,drain=False", [0] * 3 + [1] * 6 + four_each(2, 1000), horizon=1000)
    assert column(result, "num_finished") == [0] + [4] * 998
    assert column(result, "kv_tokens") == [4] + [12] * 998
    assert column(result, "num_evicted") == [0] * 999
    assert result.worker["num_waiting"][0] == 5


def test_example_2_wait_from_an_imbalance() -> None:
    # Three at 0; patience 0.5: timeout, they are prefilled from 0.5 to 1.5. Then six at stage 0 and three at
    # stage 1: four prefills and three decodes, 10. Two wait; four arrive each iteration from 2.5 on: 12 and
    # four completions.
    a = [0] * 3 + [1.5] * 6 + four_each(2, 1000, 0.5)
    result = hello("wait:thresholds=4,patience=0.5", a, horizon=1000.5)
    assert column(result, "num_prefills") == [3] + [4] * 999
    assert column(result, "num_finished") == [0, 3] + [4] * 998
    assert column(result, "kv_tokens") == [3, 10] + [12] * 998
    assert column(result, "num_evicted") == [0] * 1000
    assert result.worker["num_waiting"][0] == 2


def test_example_2_with_random_arrivals() -> None:
    # Poisson, four per iteration on average, C = C*: the backlog of FCFS grows linearly, WAIT's like a
    # square root.
    a = np.cumsum(np.random.default_rng(3).exponential(0.25, 40_000))
    a = a[a < 4000]
    fcfs, wait = (hello(p, a, horizon=4000) for p in ("fcfs", "wait:thresholds=4,drain=False"))  # type: ignore
    assert fcfs.worker["total_finished"][0] < 0.88 * 4 * 4000
    assert wait.worker["total_finished"][0] > 0.97 * 4 * 4000
    assert fcfs.worker["total_evicted"][0] > 4000
    assert wait.worker["total_evicted"][0] == 0


# ---------------------------------------------------------------- thresholds


def test_none_starts_below_the_threshold_and_the_paused_keep_their_kv() -> None:
    # n = 2, patience 10. t=0: one. t=0.5: two: [0.5, 1.5]. t=1.5: 2 alone; 0 and 1 pause with 2 each. t=3: 2, 3 are
    # prefilled, 0, 1 decode. t=4: none waits; timeout at 14: all decode, 0 and 1 are done. 15: 2 and 3.
    result = run("wait:thresholds=2,patience=10", 100, [0, 0.5, 0.7, 3], [2] * 4, [2] * 4)
    check(result, start=[0.5, 0.5, 3, 3], first=[4, 4, 15, 15], finish=[15, 15, 16, 16])
    assert column(result, "kv_tokens") == [4, 10, 14, 8]
    assert result.requests["max_token_gap"].tolist() == [11, 11, 1, 1]


def test_types_are_independent() -> None:
    # n = (1, 2). t=0: 0 (a) and 1, 2 (b, l' = 2). t=1: 3 (a) is prefilled, 0 decodes; no b waits: 1, 2 pause.
    # t=2: 4 (a), 3 decodes; 5 (b) is one. t=3: 5, 6 (b) and 1, 2; no a waits: 4 pauses. t=4: none waits,
    # patience 2. t=6: all: 4, 1, 2 are done. t=7: still draining: 5, 6.
    result = run(
        "wait:thresholds=1/2,patience=2", 100, [0, 0, 0, 1, 2, 2, 3], [1] * 7, [1, 2, 2, 1, 1, 2, 2],
        types=[0, 1, 1, 0, 0, 1, 1], classes=TWO,
    )  # fmt: skip
    check(result, start=[0, 0, 0, 1, 2, 3, 3], first=[2, 4, 4, 3, 7, 7, 7], finish=[2, 7, 7, 3, 7, 8, 8])
    assert column(result, "kv_tokens") == [3, 5, 5, 7, 12, 6]


def test_at_most_the_threshold_is_admitted_by_class_then_queue_order() -> None:
    # n = (2, 1), ids 0..5 of types b a a b a b at 0. t=0: 1, 2 (a), 0 (b). t=1: a has one (4), b has two (3,
    # 5): 3 is prefilled, 0 decodes (done). t=2: 5, 3 decodes. t=3: patience 1. t=4: 1, 2, 5, and 4 is admitted.
    # t=5: 4.
    result = run(
        "wait:thresholds=2/1,patience=1",
        100,
        [0] * 6,
        [1] * 6,
        [1] * 6,
        types=[1, 0, 0, 1, 0, 1],
        classes=TWO,
    )
    check(result, start=[0, 0, 0, 1, 4, 2], finish=[2, 5, 5, 3, 6, 5])
    # Memory 2 at t=0: a goes first, b is undone. t=1: b qualifies (0, 3, 5), but 1 and 2 fill the memory:
    # nothing of it would run, none is evicted, and it counts as waiting. Timeout at 2: 4 > C: 2 is evicted, 1 is
    # done at 3.
    result = run(
        "wait:thresholds=2/1,patience=1", 2, [0] * 6, [1] * 6, [1] * 6, types=[1, 0, 0, 1, 0, 1], classes=TWO,
        horizon=3,
    )  # fmt: skip
    nan = np.nan
    check(result, [nan, 0, 0, nan, nan, nan], [nan, 3, nan, nan, nan, nan], evictions=[0, 0, 1, 0, 0, 0])


def test_an_output_of_one_token_under_every_first_token_rule() -> None:
    # n = 2. Counted, the prefill emits it and no patience is needed.
    args = ("wait:thresholds=2,drain=False", 4, [0, 1, 1, 2], [1] * 4, [1] * 4)
    check(run(*args, first_token="counted"), [1, 1, 2, 2], [2, 2, 3, 3], first=[2, 2, 3, 3])
    # Otherwise a decode follows, next to the next two; the last two are left behind.
    for first_token, first in (("uncounted", [2, 2, 3, 3]), ("decode", [3, 3, 5, 5])):
        result = run("wait:thresholds=2,patience=1", 6, *args[2:], first_token=first_token)
        check(result, [1, 1, 2, 2], [3, 3, 5, 5], first=first)


# ---------------------------------------------------------------- memory


def test_overflow_undoes_picks_and_then_evicts_the_newest() -> None:
    # n = 2, C = 8, l = l' = 2 (2, 3, 4 each). t=0: 0, 1. t=1: 3+3, and 2: 8; 3 is undone. t=2: 4+4+3 = 11: 2
    # goes, to the back. t=3: 3, 4. t=4: 3+3, 5 with 2 = 8, 2 is undone. t=5: 2 alone is below n. Timeout at 6:
    # 4+4+3: 5 is evicted. t=7: 2, 5. t=8: none waits. Timeout at 9: 3+3, 4+4.
    args = (8, [0, 0, 1, 1, 2, 2], [2] * 6, [2] * 6)
    result = run("wait:thresholds=2,patience=1", *args)
    check(
        result,
        start=[0, 0, 1, 3, 3, 4],
        first=[2, 2, 10, 5, 5, 10],
        finish=[3, 3, 11, 7, 7, 11],
        evictions=[0, 0, 1, 0, 0, 1],
    )
    assert column(result, "kv_tokens") == [4, 8, 8, 4, 8, 8, 4, 6, 8]
    # By arrival 2 is first again: t=3: 2, 3. t=4: 3+3, 4. t=5: only 5 waits. Timeout at 6: 4 is evicted. t=7: 4, 5.
    result = run("wait:thresholds=2,patience=1", *args, requeue="arrival")
    check(
        result,
        start=[0, 0, 1, 3, 4, 7],
        first=[2, 2, 5, 5, 10, 10],
        finish=[3, 3, 7, 7, 11, 11],
        evictions=[0, 0, 1, 0, 1, 0],
    )


def test_paused_kv_counts_and_may_be_evicted() -> None:
    # n = (1, 2), C = 8. 0, 1 (b, l 2): t=0: 2+2; no other b comes, they pause. From t=1 on 2, 3, 4, 5 (a, l' 2:
    # 1, 2, 3) arrive, one per iteration. t=1: 4 + 1. t=2: 4 + 2+1. t=3: 4 + 3+2 = 9 > 8, without any pick: 3,
    # the newest, goes behind 4; 2 is done. t=4: queue 4, 3, 5: 4 + 1. t=5: 4 + 2+1. t=6: 4 + 3+2: 3 is evicted again,
    # 4 is done.
    result = run(
        "wait:thresholds=1/2,drain=False", 8, [0, 0, 1, 2, 3, 4], [2, 2, 1, 1, 1, 1], [1, 1, 2, 2, 2, 2],
        types=[1, 1, 0, 0, 0, 0], classes=TWO, horizon=7,
    )  # fmt: skip
    assert column(result, "kv_tokens") == [4, 5, 7, 7, 5, 7, 7]
    assert result.requests["num_evictions"].tolist() == [0, 0, 0, 2, 0, 0]
    np.testing.assert_array_equal(result.requests["finish_time"], [np.nan, np.nan, 4, np.nan, 7, np.nan])


def test_a_request_that_fills_the_memory() -> None:
    # C = 8, 0: l = l' = 4. n = 1, patience 1. t=0: 4. t=1: 5, and 1 (l = l' = 2) with 2. t=2: none waits.
    # Timeout at 3: 6+3 > 8: 1 is evicted. t=4: 1 qualifies: 0 decodes with 7, the pick is undone. t=5: 8 = C. t=6: 1:
    # 2; timeout at 8: 3, 4.
    result = run("wait:thresholds=1,patience=1", 8, [0, 1], [4, 2], [4, 2])
    check(result, start=[0, 1], first=[2, 9], finish=[6, 10], evictions=[0, 1])
    assert column(result, "kv_tokens") == [4, 7, 6, 7, 8, 2, 3, 4]


@pytest.mark.parametrize("thresholds", [(1, 1), (3, 1), (2, 4)])
def test_within_the_memory_of_the_thresholds_none_is_evicted(thresholds: tuple[int, int]) -> None:
    """M^pi of (11) holds n_j requests at every stage: enough for any arrivals, and fully used under overload."""
    l, o = (3, 2), (4, 7)  # noqa: E741
    memory = sum(n * (b + 1) * (2 * a + b) // 2 for n, a, b in zip(thresholds, l, o, strict=True))
    spec = f"wait:thresholds={thresholds[0]}/{thresholds[1]},patience=2"
    for seed, rate in enumerate([0.5, 2.0, 20.0]):
        rng = np.random.default_rng(seed)
        types = rng.integers(0, 2, 400)
        table = (np.cumsum(rng.exponential(1 / rate, 400)), np.take(l, types), np.take(o, types), types)
        result = run(spec, memory, *table, classes=TWO)  # type: ignore
        assert result.completed
        assert result.worker["total_evicted"][0] == 0
        if rate == 20:
            assert result.worker["peak_kv_tokens"][0] == memory


# ---------------------------------------------------------------- patience and draining


def test_an_arrival_at_the_timeout_is_an_arrival_and_restarts_the_patience() -> None:
    # n = 3, patience 2. t=2: the timeout of 0, but 1 arrives. t=4: both.
    check(run("wait:thresholds=3,patience=2", 9, [0, 2], [1, 1], [1, 1]), start=[4, 4], finish=[6, 6])
    # A moment later, and 0 has gone: [2, 3]. t=3: 1, arrived at 2.5, waits while 0 drains: [3, 4] has both.
    check(run("wait:thresholds=3,patience=2", 9, [0, 2.5], [1, 1], [1, 1]), start=[2, 3], finish=[4, 5])


def test_draining_ends_when_a_type_qualifies_or_none_is_active() -> None:
    # n = 2, patience 1. 0 (l' 1) at 0: t=1, 2. 1 arrives at 2, the end of the prefill: it joins the drain
    # batch. 2 and 3 at 3: 0 is done; normal: 2, 3, and 1 decodes (l' 3). t=4: none waits: patience. Timeout
    # at 5: all.
    result = run("wait:thresholds=2,patience=1", 99, [0, 2, 3, 3], [1] * 4, [1, 3, 1, 1])
    check(result, start=[1, 2, 3, 3], first=[3, 4, 6, 6], finish=[3, 7, 6, 6])
    # Counted, one token: 0 is done within the drain batch [1, 2]; 1, arrived meanwhile, finds none active:
    # [3, 4].
    result = run("wait:thresholds=2,patience=1", 99, [0, 1.5], [1, 1], [1, 1], first_token="counted")
    check(result, start=[1, 3], finish=[2, 4])


@pytest.mark.parametrize("rate", [1.0, 4.0, 100.0])
def test_default_patience(rate: float) -> None:
    # The larger of 1 s and 10 n / lambda, here n = 4: 40, 10, 1 s.
    result = run("wait:thresholds=4", 9, [0], [1], [1], classes=(ClassStatistics("x", rate, 1, 1),))
    check(result, start=[max(1, 40 / rate)], finish=[max(1, 40 / rate) + 2])


def test_default_patience_follows_the_slowest_type() -> None:
    classes = (ClassStatistics("x", 10.0, 1, 1), ClassStatistics("y", 2.0, 1, 1))
    check(run("wait:thresholds=9/4", 9, [0], [1], [1], classes=classes), start=[20], finish=[22])


def test_without_draining_the_last_requests_never_finish() -> None:
    spec = "wait:thresholds=2,drain=False"
    with pytest.raises(LivelockError, match="wait"):
        run(spec, 99, [0, 0], [1, 1], [1, 1])
    result = run(spec, 99, [0, 0, 1, 1], [1] * 4, [1] * 4, horizon=50)
    check(result, start=[0, 0, 1, 1], finish=[2, 2, np.nan, np.nan])
    assert not result.completed


# ---------------------------------------------------------------- computed thresholds


def same(one: SimulationResult, other: SimulationResult) -> bool:
    return one.log is not None and other.log is not None and np.array_equal(one.log, other.log)


def many(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    types = rng.integers(0, 2, 60)
    return {"a": np.cumsum(rng.exponential(0.1, 60)), "s": [2] * 60, "o": [2] * 60, "types": types}


def test_least_thresholds_by_11() -> None:
    # l = l' = 2, lambda = (5, 2), d0 = 0.2, d1 = 0.01: a batch of n per stage lasts 0.2 + 0.09 (n1 + n2). From
    # (1, 1): 0.38 * 5 -> 2; 0.47 * 5 -> 3; 0.56 * (5, 2) -> (3, 2); 0.65 * 5 -> 4; 0.74 * (5, 2) = (3.7, 1.48):
    # (4, 2).
    classes = (ClassStatistics("x", 5.0, 2, 2), ClassStatistics("y", 2.0, 2, 2))
    model = AffineBatchTime.from_wait(0.2, 0.01)

    def outcome(spec: str) -> SimulationResult:
        return run(spec, 500, **many(), classes=classes, batch_time=model)

    assert same(outcome("wait:patience=1"), outcome("wait:thresholds=4/2,patience=1"))
    for other in ("3/2", "4/1", "5/2", "4/3"):
        assert not same(outcome("wait:patience=1"), outcome(f"wait:thresholds={other},patience=1"))
    # Overloaded by Proposition 1: 0.05 * 9 * 7 > 1.
    with pytest.raises(ConfigError, match=r"(?i)overload|unstable|stab|threshold"):
        run("wait", 500, **many(), classes=classes, batch_time=AffineBatchTime.from_wait(0.2, 0.05))


def test_practical_thresholds() -> None:
    # Section 6.1, low demand, B = 128: 128 * 0.5 / 11 = 5.8 and 128 * 0.5 / 21 = 3.05: (5, 3).
    classes = (ClassStatistics("x", 1000.0, 10, 10), ClassStatistics("y", 1000.0, 10, 20))

    def outcome(spec: str) -> SimulationResult:
        return run(spec, 500, **many(1), classes=classes)

    practical = outcome("wait:rule=practical,patience=1")
    assert same(practical, outcome("wait:thresholds=5/3,patience=1"))
    assert not same(practical, outcome("wait:thresholds=6/3,patience=1"))
    assert not same(practical, outcome("wait:thresholds=5/4,patience=1"))
    # B = 44: 2 and 1.05; B = 1: at least 1 each.
    for limit, n in ((44, "2/1"), (1, "1/1")):
        spec = f"wait:rule=practical,batch_limit={limit},patience=1"
        assert same(outcome(spec), outcome(f"wait:thresholds={n},patience=1"))


def test_one_number_applies_to_all_types() -> None:
    one, two = (run(f"wait:thresholds={n},patience=1", 500, **many(2), classes=TWO) for n in ("3", "3/3"))
    assert same(one, two)


# ---------------------------------------------------------------- checks of hyperparameters


def test_the_wrong_number_of_thresholds() -> None:
    with pytest.raises(ConfigError, match="thresholds"):
        run("wait:thresholds=1/2/3", 99, [0, 0], [1, 1], [1, 1], types=[0, 1], classes=TWO)


def test_needs_classes_and_their_rates() -> None:
    assert make_policy("wait").info.needs == {"class", "class_rates"}
    system = System(kv_capacity=9, batch_time=UnitBatchTime())
    columns = {"arrival_time": [0.0], "prompt_len": [1], "output_len": [1]}
    with pytest.raises(ConfigError, match="class_id"):
        simulate(system, RequestTable.from_columns(**columns, classes=ONE), "wait")  # type: ignore
    with pytest.raises(ConfigError, match="class_rates"):
        simulate(system, RequestTable.from_columns(**columns, class_id=[0]), "wait")  # type: ignore
