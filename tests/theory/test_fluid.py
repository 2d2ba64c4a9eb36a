"""The fluid model against hand-worked instances, sums over stages, exhaustive searches and a simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime, PiecewiseBatchTime, UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.theory.fluid import (
    MAX_TOKENS,
    batch_memory,
    class_load,
    fcfs_overflow_probability,
    fluid_equilibrium,
    full_batch_time,
    is_unstable,
    practical_thresholds,
    safe_arrivals,
    stability_load,
    wait_condition,
    wait_margin,
    wait_thresholds,
)
from kvgym.workloads.classes import ClassStatistics

HELLO = ClassStatistics("hello", 4.0, 1, 1)
PAIR = [ClassStatistics("short", 1.0, 1, 1), ClassStatistics("long", 1.0, 1, 2)]
LOW_DEMAND = [ClassStatistics("a", 1000.0, 10, 10), ClassStatistics("b", 1000.0, 10, 20)]

whole_classes = st.lists(
    st.builds(
        ClassStatistics,
        name=st.just("c"),
        rate=st.floats(0.01, 20),
        prompt_len=st.integers(1, 30),
        output_len=st.integers(1, 30),
    ),
    min_size=1,
    max_size=4,
)


def tokens_by_stage(classes, n):
    """M^pi as a plain sum over every request of the batch."""
    return sum(
        k * (c.prompt_len + s) for c, k in zip(classes, n, strict=True) for s in range(int(c.output_len) + 1)
    )


@given(whole_classes)
def test_class_load_sums_the_stages(classes):
    for c in classes:
        assert class_load(c) == tokens_by_stage([c], [1])


def test_equilibrium_of_the_hello_example():
    """Example 2: 4 requests at each stage in 12 tokens, one iteration per second."""
    d1 = 1 / 24
    state = fluid_equilibrium([HELLO], 1 - 12 * d1, d1)
    assert state.iteration_time == pytest.approx(1.0)
    assert state.per_stage == pytest.approx([4.0])
    assert state.num_active == pytest.approx([8.0])
    assert state.memory == pytest.approx(12.0)
    assert state.throughput == pytest.approx(4.0)


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_equilibrium_of_the_proof_of_proposition_three(scale):
    """n* = (2K, 3K) and M* = 9K with K = d0 / (1 - 9 d1)."""
    state = fluid_equilibrium(PAIR, scale * (1 - 9 * 0.04), 0.04)
    assert state.num_active == pytest.approx([2 * scale, 3 * scale])
    assert state.memory == pytest.approx(9 * scale)


def test_single_type_equals_the_printed_closed_form():
    c, d0, d1 = ClassStatistics("c", 2.0, 30, 12), 0.02, 3e-5
    state = fluid_equilibrium([c], d0, d1)
    middle = 30 + 12 / 2
    n = d0 * 2 * 13 / (1 - d1 * 2 * 13 * middle)
    assert state.num_active[0] == pytest.approx(n)  # below eq. (4)
    assert state.memory == pytest.approx(n * middle)  # (4)
    assert state.throughput == pytest.approx(n * 12 / (13 * (d0 + d1 * n * middle)))  # (6)


@given(whole_classes, st.floats(0.01, 2), st.floats(0.0, 0.99))
def test_equilibrium_balances_arrivals_and_completions(classes, d0, load):
    d1 = load / sum(c.rate * class_load(c) for c in classes)
    state = fluid_equilibrium(classes, d0, d1)
    assert state.iteration_time == pytest.approx(d0 + d1 * state.memory, rel=1e-9)
    assert state.memory == pytest.approx(tokens_by_stage(classes, state.per_stage), rel=1e-9)
    completed = state.per_stage @ [c.output_len for c in classes] / state.iteration_time
    assert completed == pytest.approx(state.throughput, rel=1e-9)
    for c, n, total in zip(classes, state.per_stage, state.num_active, strict=True):
        assert n == pytest.approx(c.rate * (d0 + d1 * state.memory), rel=1e-9)
        assert total == pytest.approx(n * (c.output_len + 1), rel=1e-9)


def test_stability_limit_is_sharp():
    assert stability_load([HELLO], 1 / 12) == pytest.approx(1.0)
    assert is_unstable([HELLO], 0.0834)
    assert not is_unstable([HELLO], 0.0833)
    with pytest.raises(ConfigError, match="below 1"):
        fluid_equilibrium([HELLO], 1.0, 0.0834)


def test_above_the_limit_the_queue_grows_in_every_iteration():
    """Proposition 1, played through: everything present joins the batch, yet more arrives than leaves."""

    def queue(d1):
        waiting, stages = 0.0, np.zeros(2)
        for _ in range(400):
            batch = np.array([waiting, stages[0]])  # stage 0, stage 1
            tau = 0.1 + d1 * (batch[0] + 2 * batch[1])
            stages[0], waiting = batch[0], HELLO.rate * tau
        return waiting

    stable = queue(0.05)
    assert stable == pytest.approx(fluid_equilibrium([HELLO], 0.1, 0.05).per_stage[0])
    assert queue(0.09) > 100 * stable


def test_full_batch_with_equation_one():
    # Prefills of 10, 10, 20; two decodes at 11 and 12 tokens each, one at 21, when the batch ends.
    classes = [ClassStatistics("a", 1.0, 10, 2), ClassStatistics("b", 1.0, 20, 1)]
    tokens = 2 * (10 + 11 + 12) + (20 + 21)
    assert batch_memory(classes, [2, 1]) == tokens
    assert full_batch_time(classes, [2, 1], AffineBatchTime.from_wait(0.5, 0.01)) == pytest.approx(
        0.5 + 0.01 * tokens
    )
    requests = PiecewiseBatchTime("requests", [0.0], [0.0], 1.0)
    assert full_batch_time(classes, [2, 1], requests) == 2 * 3 + 2


@given(whole_classes, st.data())
def test_full_batch_time_is_affine_in_memory(classes, data):
    n = data.draw(st.lists(st.integers(0, 50), min_size=len(classes), max_size=len(classes)))
    tau = full_batch_time(classes, n, AffineBatchTime.from_wait(0.25, 0.125))
    assert tau == pytest.approx(0.25 + 0.125 * tokens_by_stage(classes, n), rel=1e-12)


def test_fractional_means_round_up():
    c = [ClassStatistics("c", 1.0, 10.25, 4.5)]
    exact = 0.01 * 3 * class_load(c[0])
    tau = full_batch_time(c, [3], AffineBatchTime.from_wait(0.0, 0.01))
    assert exact <= tau < exact + 0.03


@pytest.mark.parametrize(
    ("classes", "d0", "load", "slack"),
    [(PAIR, 0.7, 0.6, 0.0), (PAIR, 2.0, 0.3, 0.5), ([HELLO], 1.0, 0.7, 0.0), (LOW_DEMAND, 0.002, 0.5, 0.1)],
)
def test_thresholds_are_the_least_of_all(classes, d0, load, slack):
    """Every vector in a box around the answer is tried with eq. (11) written out."""
    d1 = load / sum(c.rate * class_load(c) for c in classes)
    found = wait_thresholds(classes, AffineBatchTime.from_wait(d0, d1), slack=slack)
    assert found.dtype == np.int64
    satisfying = [
        n
        for n in itertools.product(*(range(1, int(k) + 4) for k in found))
        if all(
            k >= (1 + slack) * c.rate * (d0 + d1 * tokens_by_stage(classes, n)) - 1e-9
            for c, k in zip(classes, n, strict=True)
        )
    ]
    assert tuple(found) in satisfying
    assert np.array_equal(np.min(satisfying, axis=0), found)


@settings(deadline=None, max_examples=60)
@given(whole_classes, st.floats(0.001, 1), st.floats(0.0, 0.9), st.floats(0, 0.1))
def test_threshold_properties(classes, d0, load, slack):
    d1 = load / sum(c.rate * class_load(c) for c in classes)
    model = AffineBatchTime.from_wait(d0, d1)
    n = wait_thresholds(classes, model, slack=slack)
    assert wait_condition(classes, n, model)
    assert np.all(wait_margin(classes, n, model) >= -1e-9)
    # The equilibrium is the fluid version of (11) with equality, hence a lower bound.
    assert np.all(n >= fluid_equilibrium(classes, d0, d1).per_stage * (1 - 1e-9))
    for j in np.flatnonzero(n > 1):  # a smaller threshold for one type alone violates (11) with this slack
        less = n - np.eye(len(n), dtype=np.int64)[j]
        assert less[j] < (1 + slack) * classes[j].rate * full_batch_time(classes, n, model)
    assert np.all(wait_thresholds(classes, model, slack=slack + 0.01) >= n)


def test_equality_in_the_condition_counts():
    model = AffineBatchTime.from_wait(0.5, 1 / 24)  # 4 at each stage: exactly one second, exactly 4 arrivals
    assert wait_thresholds([HELLO], model).tolist() == [4]
    assert wait_margin([HELLO], [4], model) == pytest.approx([0.0], abs=1e-12)
    assert wait_condition([HELLO], [4], model)
    assert not wait_condition([HELLO], [3], model)
    strict = wait_thresholds([HELLO], model, slack=0.01)
    assert wait_margin([HELLO], strict, model)[0] > 0


def test_piecewise_time_has_thresholds_below_its_knee_only():
    """Flat up to 30 tokens, then so steep that large batches are unstable: the flat part still works."""
    model = PiecewiseBatchTime("kv_tokens", [30.0], [1.0], 1.0)
    assert wait_thresholds([HELLO], model).tolist() == [4]
    with pytest.raises(ConfigError, match=r"\(11\)"):
        wait_thresholds([ClassStatistics("hello", 12.0, 1, 1)], model)


def test_divergence_and_memory_limits_are_reported():
    unstable = AffineBatchTime.from_wait(0.3, 0.1)
    assert is_unstable([HELLO], 0.1)
    with pytest.raises(ConfigError, match="no thresholds found") as error:
        wait_thresholds([HELLO], unstable)
    assert float(str(error.value).split("of which holds ")[1].split()[0]) > MAX_TOKENS
    stable = AffineBatchTime.from_wait(0.5, 1 / 24)
    assert wait_thresholds([HELLO], stable, max_memory=12).tolist() == [4]
    with pytest.raises(ConfigError, match=r"12 KV tokens; max_memory is 11"):
        wait_thresholds([HELLO], stable, max_memory=11)


def test_practical_rule_by_hand():
    """High demand of Section 6.1 with B = 1206: shares 1/2, 1/3, 1/6 over 101, 201, 301 stages."""
    rates, lens = (6000.0, 4000.0, 2000.0), (100, 200, 300)
    classes = [ClassStatistics("c", r, 20, o) for r, o in zip(rates, lens, strict=True)]
    assert practical_thresholds(classes, 1206).tolist() == [5, 2, 1]  # 5.97, 2.0, 0.67
    assert practical_thresholds(classes, 5).tolist() == [1, 1, 1]


def test_practical_rule_contradicts_the_condition():
    """Equal rates want equal thresholds; the practical rule gives long outputs fewer and violates (11)."""
    d1 = 0.5 / sum(c.rate * class_load(c) for c in LOW_DEMAND)
    model = AffineBatchTime.from_wait(0.01, d1)
    needed = wait_thresholds(LOW_DEMAND, model)
    assert needed[0] == needed[1]
    total = int(needed @ [c.output_len + 1 for c in LOW_DEMAND])
    practical = practical_thresholds(LOW_DEMAND, total)
    assert practical[1] < needed[1]
    assert not wait_condition(LOW_DEMAND, practical, model)


def test_safe_pairs_and_overflow_probability_of_proposition_three():
    assert sorted(safe_arrivals(PAIR, [1, 1])) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert sorted(safe_arrivals(PAIR, [1, 1], iterations=2)) == sorted(safe_arrivals(PAIR, [1, 1]))
    p = fcfs_overflow_probability(PAIR, [1, 1])
    assert p == pytest.approx(1 - 9 / (2 * math.e**2), rel=1e-12)
    assert round(p, 3) == 0.391


def overflows(arrivals, per_stage, lens, capacity, prompt=1):
    """Play the iterations out, request by request."""
    stages = [[k] * (o + 1) for k, o in zip(per_stage, lens, strict=True)]
    for stage, x in zip(stages, arrivals, strict=True):
        stage[0] = x
    for _ in range(max(lens) + 1):
        if sum(k * (prompt + s) for stage in stages for s, k in enumerate(stage)) > capacity:
            return True
        stages = [[n, *stage[:-1]] for n, stage in zip(per_stage, stages, strict=True)]
    return False


def test_safe_arrivals_by_simulation_with_other_lengths():
    classes = [ClassStatistics("a", 1.0, 3, 2), ClassStatistics("b", 1.0, 3, 5)]
    capacity = batch_memory(classes, [2, 1]) + 4
    box = itertools.product(range(9), repeat=2)
    expected = [x for x in box if not overflows(x, (2, 1), (2, 5), capacity, prompt=3)]
    assert safe_arrivals(classes, [2, 1], capacity) == expected
    assert 3 < len(expected) < 30


def test_less_than_the_equilibrium_memory_is_never_safe_in_the_mean():
    assert (1, 1) not in safe_arrivals(PAIR, [1, 1], 8)
    assert safe_arrivals(PAIR, [1, 1], 6) == []
    assert fcfs_overflow_probability(PAIR, [1, 1], 6) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: fluid_equilibrium([], 1.0, 0.0),
        lambda: fluid_equilibrium([HELLO], 0.0, 0.0),
        lambda: fluid_equilibrium([HELLO], 1.0, -1.0),
        lambda: batch_memory([HELLO], [1, 2]),
        lambda: batch_memory([HELLO], [-1]),
        lambda: full_batch_time([HELLO], [math.nan], UnitBatchTime()),
        lambda: wait_thresholds([HELLO], UnitBatchTime(), slack=-0.1),
        lambda: wait_thresholds([HELLO], UnitBatchTime(), max_memory=0),
        lambda: practical_thresholds([HELLO], 0),
        lambda: safe_arrivals([ClassStatistics("c", 1.0, 1.5, 2)], [1]),
        lambda: safe_arrivals([HELLO] * 8, [20] * 8),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ConfigError):
        call()
