"""Nested WAIT's conditions and bounds against sums over stages, exhaustive searches and simulations."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.theory.buffers import memory_bound, memory_by_segments, segment_design, theta, theta_lower_bound
from kvgym.theory.fluid import batch_memory, wait_thresholds
from kvgym.theory.nested import (
    nested_batch_time,
    nested_condition,
    nested_thresholds,
    practical_nested_thresholds,
    segment_memory,
    survival_probabilities,
)
from kvgym.theory.time_varying import (
    time_varying_condition,
    time_varying_thresholds,
    worst_arrivals,
    worst_survival,
)
from kvgym.workloads.classes import ClassStatistics

FOUR_RATES, FOUR_LENS = [20, 40, 80, 160], [20, 40, 80, 160]
TEN_RATES, TEN_LENS = [23, 11, 8, 7, 6, 4, 3, 2, 1, 1], list(range(50, 501, 50))
PRINTED_TEN = [66, 43, 32, 24, 17, 11, 7, 4, 2, 1]

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True).map(sorted)


def tokens_by_stage(n, prompt_len, ends):
    """M^pi as a plain sum: stage s belongs to the first segment that ends at or after it."""
    total = 0
    for s in range(ends[-1] + 1):
        segment = next(k for k, end in enumerate(ends) if s <= end)
        total += n[segment] * (prompt_len + s)
    return total


@st.composite
def systems(draw):
    ends = draw(lengths)
    size = len(ends)
    rates = draw(st.lists(st.floats(0.05, 10), min_size=size, max_size=size))
    return np.array(rates), draw(st.integers(1, 40)), ends


@given(systems(), st.data())
def test_exact_memory_sums_the_stages(system, data):
    _, prompt_len, ends = system
    n = data.draw(st.lists(st.integers(0, 30), min_size=len(ends), max_size=len(ends)))
    expected = tokens_by_stage(n, prompt_len, ends)
    assert segment_memory(n, prompt_len, ends) == expected
    tau = nested_batch_time(n, prompt_len, ends, AffineBatchTime.from_wait(0.5, 0.25))
    assert tau == pytest.approx(0.5 + 0.25 * expected, rel=1e-12)


def test_one_segment_is_wait_with_one_type():
    c = ClassStatistics("c", 3.0, 7, 5)
    model = AffineBatchTime.from_wait(0.4, 0.002)
    assert segment_memory([4], 7, [5]) == batch_memory([c], [4])
    assert nested_thresholds([3.0], 7, [5], model) == wait_thresholds([c], model)


def test_printed_memory_forms_by_hand():
    """l = 10, outputs 2, 3, 7, thresholds 3, 2, 1."""
    n, ends = [3, 2, 1], [2, 3, 7]
    assert segment_memory(n, 10, ends) == 3 * (10 + 11 + 12) + 2 * 13 + (14 + 15 + 16 + 17)
    # (13): L' = 2, 5, 12 and widths 2, 1, 4.
    assert segment_memory(n, 10, ends, "theorem") == 3 * 11 * 2 + 2 * 12.5 * 1 + 1 * 16 * 4
    # Section 7.2 with outputs 1 … 6 in three segments of two.
    assert segment_memory(n, 10, [2, 4, 6], "segment_design") == (3 * 11 + 2 * 12 + 13) * 2


@given(lengths, st.integers(1, 40))
def test_where_the_theorem_form_counts_too_much_and_too_little(ends, prompt_len):
    for k, unit in enumerate(np.eye(len(ends))):
        exact = segment_memory(unit, prompt_len, ends)
        printed = segment_memory(unit, prompt_len, ends, "theorem")
        width = ends[k] - (ends[k - 1] if k else 0)
        if k == 0:
            assert printed == pytest.approx(exact - prompt_len - width / 2)
        elif k == 1:
            assert printed == pytest.approx(exact - width / 2)
        else:
            assert printed == pytest.approx(exact + width * (sum(ends[: k - 1]) - 1) / 2)


@given(st.integers(1, 8), st.integers(1, 20), st.integers(1, 40), st.data())
def test_segment_design_form_counts_too_little(count, width, prompt_len, data):
    n = np.array(data.draw(st.lists(st.integers(1, 30), min_size=count, max_size=count)))
    ends = width * np.arange(1, count + 1)
    assert segment_memory(n, prompt_len, ends, "segment_design") < segment_memory(n, prompt_len, ends)


def test_survival_by_hand():
    assert survival_probabilities([1, 2, 1]) == pytest.approx([3 / 4, 1 / 3])
    assert survival_probabilities([5]).shape == (0,)


@given(systems())
def test_survival_times_rates_telescopes(system):
    rates = system[0]
    assert np.prod(survival_probabilities(rates)) == pytest.approx(rates[-1] / rates.sum(), rel=1e-9)


def test_printed_thresholds_are_the_practical_rule_and_have_no_drift():
    """Section 6.2's ratios are exact tail sums; they violate the strict (12) in every step."""
    stages = np.diff(TEN_LENS, prepend=-1)
    limit = int(np.array(PRINTED_TEN) @ stages)
    assert practical_nested_thresholds(TEN_RATES, TEN_LENS, limit).tolist() == PRINTED_TEN
    four = practical_nested_thresholds(FOUR_RATES, FOUR_LENS, 21 * 15 + 20 * 14 + 40 * 12 + 80 * 8)
    assert four.tolist() == [15, 14, 12, 8]
    instant = AffineBatchTime(1e-9)
    for rates, n, ends in ((FOUR_RATES, four, FOUR_LENS), (TEN_RATES, PRINTED_TEN, TEN_LENS)):
        assert not nested_condition(n, rates, 10, ends, instant)
        bound = memory_bound(n, 10, ends, rates, 1000, 0.1)
        assert np.all(bound.thetas == 0)
        assert bound.total == math.inf
        assert math.isfinite(bound.batch + bound.queues)
        for k in range(1, len(n)):
            with pytest.raises(ConfigError, match="Lemma 8"):
                theta(n[k - 1], n[k], survival_probabilities(rates)[k - 1])


@pytest.mark.parametrize("slack", [0.0, 0.1])
def test_practical_rule_made_strict(slack):
    limit = 3430
    n = practical_nested_thresholds(FOUR_RATES, FOUR_LENS, limit, slack=slack)
    stages = np.diff(FOUR_LENS, prepend=-1)
    assert n @ stages <= limit
    assert nested_condition(n, FOUR_RATES, 10, FOUR_LENS, AffineBatchTime(1e-9))
    for first in range(n[0] + 1, n[0] + 4):  # any larger n_1 makes the batch too large
        chain = [first]
        for p in survival_probabilities(FOUR_RATES):
            chain.append(min(chain[-1], math.floor((1 + slack) * p * chain[-1] + 1e-9) + 1))
        assert np.array(chain) @ stages > limit
    assert practical_nested_thresholds(FOUR_RATES, FOUR_LENS, 1, slack=slack).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("rates", "ends", "d0", "d1"),
    [
        ([1.0, 1.0], [1, 2], 2.0, 0.02),
        ([2.0, 1.0, 1.0], [1, 3, 4], 0.8, 0.004),
        ([1.0, 3.0], [2, 3], 1.5, 0.01),
    ],
)
def test_thresholds_are_the_least_of_all(rates, ends, d0, d1):
    """Every vector in a box is tried with eq. (12) written out; the answer is below all that satisfy it."""
    found = nested_thresholds(rates, 2, ends, AffineBatchTime.from_wait(d0, d1))
    tails = [sum(rates[k:]) for k in range(len(rates))]

    def satisfies(n):
        tau = d0 + d1 * tokens_by_stage(n, 2, ends)
        return n[0] > tau * tails[0] and all(
            n[k + 1] * tails[k] > n[k] * tails[k + 1] for k in range(len(n) - 1)
        )

    box = itertools.product(range(1, int(found[0]) + 4), repeat=len(rates))
    satisfying = [n for n in box if satisfies(n)]
    assert tuple(found) in satisfying
    assert np.array_equal(np.min(satisfying, axis=0), found)


@settings(deadline=None, max_examples=80)
@given(systems(), st.floats(0.001, 0.5), st.floats(0, 0.7), st.floats(0, 0.2))
def test_threshold_properties(system, d0, load, slack):
    rates, prompt_len, ends = system
    d1 = load / (rates.sum() * tokens_by_stage([1] * len(ends), prompt_len, ends)) / (1 + slack)
    model = AffineBatchTime.from_wait(d0, d1)
    n = nested_thresholds(rates, prompt_len, ends, model, slack=slack)
    assert nested_condition(n, rates, prompt_len, ends, model)
    assert np.all(np.diff(n) <= 0)
    assert np.all(nested_thresholds(rates, prompt_len, ends, model, slack=slack + 0.05) >= n)
    if n[0] > 1:
        fewer = n.copy()
        fewer[0] -= 1  # with fewer at the front the same full batch brings too many
        arrivals = (1 + slack) * rates.sum() * nested_batch_time(n, prompt_len, ends, model)
        assert fewer[0] <= arrivals * (1 + 1e-9)
    assert memory_bound(n, prompt_len, ends, rates, 100, 0.1).total < math.inf


def test_overload_and_memory_limits_are_reported():
    model = AffineBatchTime.from_wait(0.1, 0.1)
    with pytest.raises(ConfigError, match=r"no thresholds found for \(12\)"):
        nested_thresholds([1.0, 1.0], 5, [3, 6], model)
    light = AffineBatchTime.from_wait(2.0, 0.001)
    n = nested_thresholds([1.0, 1.0], 5, [3, 6], light)
    memory = segment_memory(n, 5, [3, 6])
    assert np.array_equal(nested_thresholds([1.0, 1.0], 5, [3, 6], light, max_memory=memory), n)
    with pytest.raises(ConfigError, match="max_memory"):
        nested_thresholds([1.0, 1.0], 5, [3, 6], light, max_memory=memory - 1)


def test_theta_by_hand():
    # n_prev = 2, n_k = 1, y = e^theta: (1 - p + p y)^2 = y, and its other root is ((1 - p) / p)^2.
    assert theta(2, 1, 0.25) == pytest.approx(2 * math.log(3))
    assert theta(5, 5, 0.9) == math.inf
    assert theta(5, 7, 0.9) == math.inf


@given(st.integers(2, 400), st.data())
def test_theta_properties(n_prev, data):
    n_k = data.draw(st.integers(1, n_prev - 1))
    p = data.draw(st.floats(1e-3, 1.0)) * n_k / n_prev
    assume(n_k - n_prev * p > 1e-6)
    x = theta(n_prev, n_k, p)
    assert x >= theta_lower_bound(n_prev, n_k, p) * (1 - 1e-9)
    assert x > theta(n_prev, n_k, p + (n_k / n_prev - p) / 2)  # less drift, smaller theta
    log_left = -x * n_k + n_prev * (np.logaddexp(math.log1p(-p), math.log(p) + x))
    assert log_left == pytest.approx(0.0, abs=1e-9 * max(1.0, x * n_k))


def test_printed_lower_bound_is_not_one():
    """With the theorems' denominator n_k the bound exceeds theta itself; with n_{k-1} it holds."""
    n_prev, n_k, p = 20, 11, 0.5
    assert theta_lower_bound(n_prev, n_k, p) == pytest.approx(0.4)
    assert 8 * (n_k - n_prev * p) / n_k > theta(n_prev, n_k, p) > 0.4


def test_memory_bound_by_hand():
    """Outputs 1, 2, 4 after prompts of 10; theta_2 = 2 ln 3, and segment 3 cannot be overrun."""
    rates = [3.0, 0.5, 0.5]
    bound = memory_bound([2, 1, 1], 10, [1, 2, 4], rates, 1000, 0.01)
    assert bound.thetas == pytest.approx([2 * math.log(3), math.inf])
    assert bound.batch == 2 * (10 + 11) + 12 + (13 + 14)
    assert bound.queues == 11 * 1 + 12 * 1
    assert bound.buffer == pytest.approx(11 * math.log(2 * 1000 / 0.01) / (2 * math.log(3)))
    assert bound.total == bound.batch + bound.queues + bound.buffer
    printed = memory_bound([2, 1, 1], 10, [1, 2, 4], rates, 1000, 0.01, form="theorem")
    assert printed.batch == segment_memory([2, 1, 1], 10, [1, 2, 4], "theorem")
    assert printed.buffer == bound.buffer


def test_memory_bound_with_one_segment_is_the_batch():
    bound = memory_bound([3], 10, [4], [1.0], 1000, 0.01)
    assert bound.total == bound.batch == segment_memory([3], 10, [4])


@pytest.mark.parametrize("delta", [0.3, 0.05])
def test_queues_between_segments_stay_within_the_bound(delta):
    """Simulate Appendix C's recursion: waiting requests' tokens exceed the bound in at most delta of runs."""
    n, rates, ends, batches, runs = np.array([12, 8, 4]), [4.0, 4.0, 3.0], [2, 5, 9], 300, 400
    bound = memory_bound(n, 10, ends, rates, batches, delta)
    assert math.isfinite(bound.total)
    rng = np.random.default_rng(11)
    waiting = np.zeros((runs, 2), dtype=np.int64)
    exceeded = np.zeros(runs, dtype=bool)
    grew = np.zeros(2, dtype=bool)
    for _ in range(batches):
        for k, p in enumerate(survival_probabilities(rates)):
            waiting[:, k] += rng.binomial(n[k], p, size=runs)
            waiting[:, k] -= n[k + 1] * (waiting[:, k] >= n[k + 1])
        exceeded |= waiting @ [10 + 2, 10 + 5] > bound.queues + bound.buffer
        grew |= (waiting >= n[1:]).any(axis=0)
    assert exceeded.mean() <= delta
    assert grew.all()  # the queues do exceed their thresholds, so the buffer is not idle


def test_zero_drift_queues_outgrow_every_level():
    """Why the printed thresholds are no good for ever: the queue's size keeps growing like sqrt(batches)."""
    rng = np.random.default_rng(3)
    waiting, means = np.zeros(300, dtype=np.int64), []
    for batch in range(1, 4001):
        waiting += rng.binomial(15, 14 / 15, size=300)
        waiting -= 14 * (waiting >= 14)
        if batch in (250, 4000):
            means.append(waiting.mean())
    assert means[1] > 2 * means[0]


def test_segment_design_groups_types():
    rates = np.array([1.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    design = segment_design(rates, 5, 3, AffineBatchTime.from_wait(0.1, 1e-5))
    assert design.output_lens.tolist() == [3, 5, 7]  # 7 = 3 + 2 + 2
    assert design.rates.tolist() == [3.0, 7.0, 11.0]
    model = AffineBatchTime.from_wait(0.1, 1e-5)
    assert nested_condition(design.thresholds, design.rates, 5, design.output_lens, model)
    own = segment_design(rates, 5, 2, model, output_lens=[2, 4, 6, 8, 10, 12, 20])
    assert own.output_lens.tolist() == [8, 20]
    with pytest.raises(ConfigError, match="segment 2 of 7"):
        segment_design(rates, 5, 7, model)


def test_memory_by_segments():
    """Outputs up to 100 with falling rates: the full batch shrinks at first, the queues' share rises."""
    rates = 20 * np.exp(-np.arange(100) / 30.0)
    model = AffineBatchTime.from_wait(0.05, 1e-8)
    counts = [1, 2, 5, 10, 50]
    study = memory_by_segments(rates, 62, counts, model, 201, 0.1)
    assert [len(b.thresholds) for b in study] == counts
    assert study[0].queues == study[0].buffer == 0
    assert study[2].batch < study[1].batch < study[0].batch
    queues = [b.queues for b in study]
    assert queues == sorted(queues)
    for count, bound in zip(counts, study, strict=True):
        d = segment_design(rates, 62, count, model)
        assert bound.batch == tokens_by_stage(d.thresholds, 62, d.output_lens.tolist())
    surer = memory_by_segments(rates, 62, counts, model, 201, 1e-5)
    for a, b in zip(study[1:], surer[1:], strict=True):
        assert b.buffer > a.buffer
        assert (b.batch, b.queues) == (a.batch, a.queues)


PIECES = np.array([0.0, 2.0, 3.0])
VARYING = np.array([[1.0, 6.0, 2.0], [1.0, 2.0, 2.0]])


def test_worst_window_by_hand():
    assert worst_arrivals(PIECES, VARYING, 0.5) == pytest.approx(4.0)  # inside the peak of 8 per second
    assert worst_arrivals(PIECES, VARYING, 1.0) == pytest.approx(8.0)
    assert worst_arrivals(PIECES, VARYING, 2.0) == pytest.approx(8.0 + 4.0)  # the peak and a second after it
    assert worst_arrivals([0.0], [[3.0]], 2.0) == pytest.approx(6.0)
    assert worst_survival(PIECES, VARYING) == pytest.approx([0.5])


@settings(deadline=None)
@given(st.integers(1, 5), st.floats(0.05, 4), st.data())
def test_worst_window_by_sliding(count, window, data):
    gaps = data.draw(st.lists(st.floats(0.1, 2), min_size=count, max_size=count))
    rates = np.array(data.draw(st.lists(st.floats(0, 9), min_size=count, max_size=count)))
    times = np.cumsum(gaps)
    begins = np.linspace(times[0], times[-1] + 1, 300)
    edges = np.append(times, np.inf)
    overlap = np.minimum(edges[1:], begins[:, None] + window) - np.maximum(edges[:-1], begins[:, None])
    seen = (np.maximum(0, overlap) @ rates).max()
    worst = worst_arrivals(times, rates[None], window)
    step = (begins[1] - begins[0]) * max(rates)
    assert seen - 1e-9 <= worst <= seen + step + 1e-9


def test_time_varying_condition_is_strict_and_sees_short_peaks():
    assert time_varying_condition([9, 5], PIECES, VARYING, 1.0)
    assert not time_varying_condition([8, 5], PIECES, VARYING, 1.0)
    assert not time_varying_condition([10, 5], PIECES, VARYING, 1.0)  # 5 = p* n_1
    assert not time_varying_condition([13, 7], PIECES, VARYING, 2.5)
    assert time_varying_condition([15, 8], PIECES, VARYING, 2.5)


@settings(deadline=None, max_examples=40)
@given(systems(), st.floats(0.05, 0.5), st.floats(0, 0.6))
def test_constant_rates_are_the_special_case(system, d0, load):
    rates, prompt_len, ends = system
    d1 = load / (rates.sum() * tokens_by_stage([1] * len(ends), prompt_len, ends))
    model = AffineBatchTime.from_wait(d0, d1)
    constant = nested_thresholds(rates, prompt_len, ends, model)
    pieces = np.stack([rates, rates], axis=1)
    assert np.array_equal(time_varying_thresholds([0.0, 7.0], pieces, prompt_len, ends, model), constant)


def test_time_varying_thresholds_are_the_least():
    model = AffineBatchTime.from_wait(0.6, 0.002)
    found = time_varying_thresholds(PIECES, VARYING, 2, [1, 3], model)
    box = itertools.product(range(1, int(found[0]) + 3), repeat=2)
    satisfying = [
        n
        for n in box
        if time_varying_condition(n, PIECES, VARYING, 0.6 + 0.002 * tokens_by_stage(n, 2, [1, 3]))
    ]
    assert tuple(found) in satisfying
    assert np.array_equal(np.min(satisfying, axis=0), found)
    mean = VARYING @ [2, 1, 7] / 10
    assert np.all(found >= nested_thresholds(mean, 2, [1, 3], model))
    bound = memory_bound(found, 2, [1, 3], mean, 100, 0.1, survival=worst_survival(PIECES, VARYING))
    assert bound.buffer >= memory_bound(found, 2, [1, 3], mean, 100, 0.1).buffer


def test_a_piece_without_completions_needs_larger_thresholds():
    rates = [[1.0, 0.0], [1.0, 1.0]]
    assert worst_survival([0.0, 1.0], rates) == pytest.approx([1.0])
    n = time_varying_thresholds([0.0, 1.0], rates, 2, [1, 3], AffineBatchTime.from_wait(0.6, 0.001))
    assert n[1] == n[0] + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: survival_probabilities([]),
        lambda: survival_probabilities([1.0, 0.0]),
        lambda: segment_memory([1, 1], 5, [3, 3]),
        lambda: segment_memory([1], 5, [3, 4]),
        lambda: segment_memory([1, 1], 5, [3, 4], "exactly"),
        lambda: segment_memory([-1, 1], 5, [3, 4]),
        lambda: segment_memory([1, 1], 5, [2.5, 4]),
        lambda: nested_thresholds([1.0], 5, [3, 4], UnitBatchTime()),
        lambda: nested_thresholds([1.0, 1.0], 5, [3, 4], UnitBatchTime(), slack=-1),
        lambda: practical_nested_thresholds([1, 1], [3, 4], 0),
        lambda: theta(0, 1, 0.5),
        lambda: theta(5, 3, 1.5),
        lambda: memory_bound([2, 1], 5, [3, 4], [1, 1], 0, 0.1),
        lambda: memory_bound([2, 1], 5, [3, 4], [1, 1], 10, 1.0),
        lambda: segment_design([1.0, 1.0], 5, 3, UnitBatchTime()),
        lambda: segment_design([1.0, -1.0], 5, 1, UnitBatchTime()),
        lambda: worst_arrivals([0.0, 0.0], [[1, 1]], 1.0),
        lambda: worst_arrivals([0.0, 1.0], [[1]], 1.0),
        lambda: worst_survival([0.0], [[-1.0]]),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ConfigError):
        call()
