"""Sources of the thresholds of WAIT and Nested WAIT: changing rates, drift, memory, groups of prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runs import schedules
from helpers.runs.schedules import PAPER_OF_WAIT as PAPER
from helpers.runs.schedules import check
from kvgym.baselines.thresholds.counting import IN_FORCE
from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.policy import Policy, make_policy
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.theory.fluid import wait_thresholds
from kvgym.theory.nested import nested_thresholds
from kvgym.workloads.classes import ClassStatistics, RateProfile
from kvgym.workloads.table import RequestTable


def run(
    policy: str | Policy,
    classes: tuple[ClassStatistics, ...],
    a: Any,
    s: Any,
    o: Any,
    types: Any = None,
    **settings: Any,
) -> SimulationResult:
    columns = {"class_id": types, "classes": classes}
    return schedules.run(policy, settings.pop("C", 900), a, s, o, **(columns | PAPER | settings))


def random_run(policy: str, classes: tuple[ClassStatistics, ...], **options: Any) -> Any:
    rng = np.random.default_rng(5)
    kinds = rng.integers(0, len(classes), 120)
    lengths = [np.array([int(getattr(c, x)) for c in classes])[kinds] for x in ("prompt_len", "output_len")]
    return run(policy, classes, np.cumsum(rng.exponential(0.15, 120)), *lengths, kinds, **options).log


# A class's rate is 1, then 3 from 100 s and 2 from 200 s; with a period it repeats every 300 s.
STEPS = RateProfile((0.0, 100.0, 200.0), (1.0, 3.0, 2.0))


def varying(name: str, output: float, profile: RateProfile | None, rate: float = 2.0) -> ClassStatistics:
    return ClassStatistics(name, rate, 2.0, output, profile)


# ---------------------------------------------------------------- (15)


@pytest.mark.parametrize("period", [None, 300.0])
def test_peak_thresholds_of_wait(period: float | None) -> None:
    # Unit time: 3 of the first and 2 of the second at most arrive in a second; the mean rates say 2 and 2.
    profile = RateProfile(STEPS.times, STEPS.rates, period)
    classes = (varying("a", 2.0, profile), varying("b", 4.0, None))
    own = random_run("wait:rule=peak,patience=3", classes)
    assert np.array_equal(own, random_run("wait:thresholds=3/2,patience=3", classes))
    assert np.array_equal(
        random_run("wait:patience=3", classes), random_run("wait:thresholds=2/2,patience=3", classes)
    )


def test_peak_thresholds_of_nested_wait() -> None:
    # Unit time. a: 1, 3, 2; b: 2 at all times. Together 5 at most: n_1 = 6. The share of b is 2/3, 2/5, 1/2: with
    # p* = 2/3 n_2 > 4: 5. Mean rates, 2 and 2: n_1 = 5, n_2 > 2.5.
    classes = (varying("a", 2.0, STEPS), varying("b", 4.0, None))
    own = random_run("nested_wait:rule=peak,patience=3", classes)
    assert np.array_equal(own, random_run("nested_wait:thresholds=6/5,patience=3", classes))
    fluid = random_run("nested_wait:patience=3", classes)
    assert np.array_equal(fluid, random_run("nested_wait:thresholds=5/3,patience=3", classes))


def test_peak_is_fluid_if_rates_are_constant() -> None:
    classes = (varying("a", 2.0, None), varying("b", 4.0, None))
    time = AffineBatchTime.from_wait(0.1, 0.002)
    for name in ("wait", "nested_wait"):
        logs = [
            random_run(f"{name}:rule={rule},patience=3", classes, batch_time=time)
            for rule in ("peak", "fluid")
        ]
        assert np.array_equal(*logs)


# ---------------------------------------------------------------- drift and memory


def test_slack() -> None:
    # Unit time, rates 2 and 2, slack 0.3: WAIT n_j >= 2.6; Nested n_1 > 5.2, n_2 > 1.3 * 0.5 * 6 = 3.9.
    classes = (varying("a", 2.0, None), varying("b", 4.0, None))
    own = random_run("wait:slack=0.3,patience=3", classes)
    assert np.array_equal(own, random_run("wait:thresholds=3,patience=3", classes))
    own = random_run("nested_wait:slack=0.3,patience=3", classes)
    assert np.array_equal(own, random_run("nested_wait:thresholds=6/4,patience=3", classes))


def test_overflow_chooses_the_drift_of_least_memory() -> None:
    from kvgym.theory.buffers import memory_bound
    from kvgym.theory.groups import SLACKS

    classes = (varying("a", 2.0, None), varying("b", 4.0, None))
    found = {}
    for slack in SLACKS:
        n = nested_thresholds([2.0, 2.0], 2.0, [2, 4], UnitBatchTime(), slack=slack)
        found[memory_bound(n, 2.0, [2, 4], [2.0, 2.0], 1_000_000, 0.1).total] = n
    least = min(found)
    own = random_run("nested_wait:overflow=0.1,patience=3", classes, C=int(least) + 1)
    given = f"nested_wait:thresholds={'/'.join(map(str, found[least]))},patience=3"
    assert np.array_equal(own, random_run(given, classes, C=int(least) + 1))
    with pytest.raises(ConfigError, match=r"overflow = 0\.1 takes"):
        random_run("nested_wait:overflow=0.1", classes, C=int(least) - 1)


# ---------------------------------------------------------------- adjusting


@pytest.mark.parametrize("policy", ["wait", "nested_wait"])
def test_a_long_memory_keeps_the_mean_rates(policy: str) -> None:
    classes = (varying("a", 2.0, None), varying("b", 4.0, None))
    time = AffineBatchTime.from_wait(0.1, 0.002)
    own = random_run(f"{policy}:adjust=1e9,patience=3,slack=0.1", classes, batch_time=time)
    assert np.array_equal(own, random_run(f"{policy}:patience=3,slack=0.1", classes, batch_time=time))


def estimate(a: np.ndarray, now: float, memory: float, rate: float) -> float:
    """Return the rate estimated from arrivals so far, by its definition."""
    seen = a[a <= now]
    return rate * float(np.exp(-now / memory)) + float(np.exp(-(now - seen) / memory).sum()) / memory


@pytest.mark.parametrize("name", ["wait", "nested_wait"])
def test_thresholds_follow_the_arrivals(name: str) -> None:
    # 1/s for 200 s, then 6/s for 100 s: the thresholds in force at the end are those for the estimated rate when they
    # were last solved, at most a sixteenth of 40 s earlier.
    a = np.concatenate([np.arange(0.5, 200), 200 + np.arange(0, 100, 1 / 6)])
    time, one = AffineBatchTime.from_wait(1.0, 0.001), (ClassStatistics("a", 1.0, 2.0, 4.0),)
    policy = make_policy(f"{name}:adjust=40,patience=1000,drain=False")
    table = RequestTable.from_columns(
        arrival_time=a, prompt_len=[2] * len(a), output_len=[4] * len(a), class_id=[0] * len(a), classes=one
    )
    system = System(kv_capacity=900, batch_time=time, horizon=299.5, **PAPER)  # type: ignore[arg-type]
    simulate(system, table, policy, compiled=False)
    found = int(policy._memory.state[IN_FORCE])  # type: ignore[attr-defined]
    expected = set()
    for now in np.linspace(296.5, 299.5, 60):
        c = ClassStatistics("a", estimate(a, now, 40.0, 1.0), 2.0, 4.0)
        by = (
            wait_thresholds([c], time)
            if name == "wait"
            else nested_thresholds([c.rate], c.prompt_len, [4], time)
        )
        expected.add(int(by[0]))
    assert found in expected
    assert found > int(wait_thresholds(one, time)[0]) + 1


def test_adjusted_thresholds_stay_within_the_memory() -> None:
    # 50/s are more than the worker can serve: thresholds grow only while their full batch, 20 n tokens, fits.
    one = (ClassStatistics("a", 1.0, 2.0, 4.0),)
    a = np.arange(0, 20, 0.02)
    policy = make_policy("wait:adjust=5")
    log = run(policy, one, a, [2] * len(a), [4] * len(a), [0] * len(a), C=90, compiled=False).log
    assert log is not None
    assert int(policy._memory.state[IN_FORCE]) <= 4  # type: ignore[attr-defined]
    assert log["kv_tokens"].max() <= 90


@pytest.mark.parametrize("policy", ["wait:adjust=3", "nested_wait:adjust=3", "nested_wait:adjust=3,groups=3"])
def test_compiled_equals_uncompiled(policy: str) -> None:
    classes = (varying("a", 2.0, None), ClassStatistics("b", 2.0, 5.0, 4.0))
    time = AffineBatchTime.from_wait(0.1, 0.002)
    logs = [random_run(f"{policy},patience=3", classes, batch_time=time, compiled=c) for c in (True, False)]
    assert np.array_equal(*logs)


# ---------------------------------------------------------------- groups


def test_groups_take_part_independently() -> None:
    # Prompts of 1 (ids even) and 3 (odd), l' = 1, e = 1 in both groups; n = 2 and 1. t=0: 0 alone: below 2. t=1: 1
    # (l = 3): its group has reached 1 and runs without 0. t=2: 2 (l = 1): 0 and 2 make two; none is in the queue of
    # the other group, and 1, prefilled, pauses. t=3: 3 (l = 3): 1 decodes next to it. t=4: 4 and 5, one of each group:
    # only 5 starts, 3 decodes. t=5: none. Patience 5 after t=5: everything.
    classes = (ClassStatistics("short", 1.0, 1.0, 1.0), ClassStatistics("long", 1.0, 3.0, 1.0))
    result = run(
        "nested_wait:groups=2,segments=1,thresholds=2/1,patience=5",
        classes,
        [0, 1, 2, 3, 4, 4],
        [1, 3, 1, 3, 1, 3],
        [1] * 6,
    )
    check(result, start=[2, 1, 2, 3, 10, 4], finish=[11, 4, 11, 5, 12, 11])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    capacity=st.integers(14, 80),
)
def test_groups_of_one_segment_are_wait(seed: int, n: tuple[int, int], capacity: int) -> None:
    """With one segment per group, groups of prompts are classes of WAIT."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, 40)
    a, l = np.cumsum(rng.exponential(0.5, 40)), np.where(kinds == 0, 2, 5)  # noqa: E741
    o = rng.integers(1, 5, 40)
    classes = (ClassStatistics("short", 1.0, 2.0, 4.0), ClassStatistics("long", 1.0, 5.0, 4.0))
    options = f"thresholds={n[0]}/{n[1]},patience=2"
    nested = run(f"nested_wait:groups=3,segments=4,{options}", classes, a, l, o, kinds, C=capacity)
    plain = run(f"wait:{options}", classes, a, l, o, kinds, C=capacity)
    for column in ("start_time", "finish_time", "num_evictions"):
        assert np.array_equal(nested.requests[column], plain.requests[column])


def test_a_group_without_requests_changes_nothing() -> None:
    classes = (varying("a", 2.0, None), varying("b", 4.0, None))
    spec = "nested_wait:segments=2/4,patience=3,thresholds="
    assert np.array_equal(random_run(f"{spec}5/3/1/1,groups=100", classes), random_run(f"{spec}5/3", classes))


def test_thresholds_of_groups() -> None:
    # Unit time; prompts of 2: rates 1, 1, outputs 2, 4; prompts of 6: 3 with output 3. n_1 > 2, n_2 > 1.5; n > 3.
    classes = (
        ClassStatistics("a", 1.0, 2.0, 2.0),
        ClassStatistics("b", 1.0, 2.0, 4.0),
        ClassStatistics("c", 3.0, 6.0, 3.0),
    )
    policy = make_policy("nested_wait:groups=4")
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 5)
    run(policy, classes, np.arange(5.0), np.array([2, 2, 6])[kinds], [2] * 5, kinds, compiled=False)
    assert policy._memory.state[IN_FORCE : IN_FORCE + 3].tolist() == [3, 2, 4]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- checks of hyperparameters


@pytest.mark.parametrize(
    "spec",
    [
        "wait:slack=-0.1",
        "wait:slack=0.1,thresholds=3",
        "wait:slack=0.1,rule=practical",
        "wait:adjust=0",
        "wait:adjust=5,thresholds=3",
        "wait:adjust=5,rule=peak",
        "nested_wait:groups=8/4",
        "nested_wait:groups=0",
        "nested_wait:overflow=1",
        "nested_wait:overflow=0.1,slack=0.1",
        "nested_wait:overflow=0.1,thresholds=3",
    ],
)
def test_options_that_conflict(spec: str) -> None:
    with pytest.raises(ConfigError, match=spec.split(":")[1].split("=")[0]):
        make_policy(spec)


def test_a_group_without_classes_has_no_thresholds() -> None:
    classes = (varying("a", 2.0, None), varying("b", 4.0, None))
    with pytest.raises(ConfigError, match="group 2 of prompts"):
        random_run("nested_wait:groups=100", classes)
