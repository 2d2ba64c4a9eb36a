"""Intervals over seeds."""

import numpy as np
import pytest

from kvgym.experiments.statistics import (
    block_ratio_intervals,
    improvement_interval,
    mean_interval,
    ratio_interval,
)


def test_interval_of_a_normal_mean_has_the_right_width():
    values = np.random.default_rng(3).normal(10.0, 2.0, size=200)
    estimate = mean_interval(values)
    half = 1.96 * values.std(ddof=1) / np.sqrt(200)
    assert estimate.value == values.mean()
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_coverage_is_near_the_level():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        e = mean_interval(rng.exponential(1.0, size=30), resamples=500)
        inside += e.low <= 1.0 <= e.high
    assert 0.88 <= inside / 200 <= 0.99


def test_pairing_removes_what_the_seeds_share():
    rng = np.random.default_rng(1)
    load = rng.uniform(1, 10, size=40)
    ours, theirs = 0.9 * load + rng.normal(0, 0.01, 40), load
    paired = ratio_interval(ours, theirs)
    assert paired.low < 0.9 < paired.high
    assert paired.high - paired.low < 0.01
    assert mean_interval(ours).high > mean_interval(theirs).low  # unpaired intervals overlap


def test_improvement_is_positive_where_it_is_better():
    values, reference = [8.0, 9.0, 7.0], [10.0, 10.0, 10.0]
    ratio = ratio_interval(values, reference)
    less = improvement_interval(values, reference, lower_is_better=True)
    more = improvement_interval(values, reference, lower_is_better=False)
    assert (less.value, less.low, less.high) == pytest.approx((0.2, 1 - ratio.high, 1 - ratio.low))
    assert (more.value, more.low, more.high) == pytest.approx((-0.2, ratio.low - 1, ratio.high - 1))
    assert less.low <= less.value <= less.high


def test_degenerate_samples():
    one = mean_interval([2.0])
    assert one.value == 2.0
    assert np.isnan(one.low)
    assert vars(mean_interval([3.0, 3.0, 3.0])) == {"value": 3.0, "low": 3.0, "high": 3.0, "n": 3}
    self_ratio = ratio_interval([1.0, 2.0], [1.0, 2.0])
    assert (self_ratio.low, self_ratio.high) == (1.0, 1.0)
    assert np.isnan(mean_interval([1.0, np.nan]).value)
    with pytest.raises(ValueError, match="equal shapes"):
        ratio_interval([1.0], [1.0, 2.0])


def test_equal_input_gives_equal_output():
    values = np.random.default_rng(5).normal(size=20)
    assert mean_interval(values) == mean_interval(values)


def mean(x):
    return np.array([x.mean()])


def test_block_intervals_of_independent_pairs_are_as_wide_as_the_sample_says():
    rng = np.random.default_rng(2)
    values = rng.normal(10.0, 1.0, 4000)
    (estimate,) = block_ratio_intervals(values, np.full(4000, 5.0), mean)
    half = 1.96 * values.std() / np.sqrt(4000) / 5
    assert estimate.value == pytest.approx(values.mean() / 5)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half, rel=0.3)


def test_block_intervals_widen_where_neighbours_share_their_error():
    rng = np.random.default_rng(4)
    shared = np.repeat(rng.normal(0, 1.0, 40), 100) + 10.0
    alone = rng.permutation(shared)
    wide, narrow = (block_ratio_intervals(x, np.ones(4000), mean)[0] for x in (shared, alone))
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_block_intervals_at_their_limits():
    (same,) = block_ratio_intervals([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], mean)
    assert (same.value, same.low, same.high, same.n) == (1, 1, 1, 3)
    (single,) = block_ratio_intervals([2.0], [1.0], mean)
    assert single.value == 2
    assert np.isnan(single.low)
    (nothing,) = block_ratio_intervals([1.0, 2.0], [0.0, 0.0], mean)
    assert np.isnan([nothing.value, nothing.low]).all()
    with pytest.raises(ValueError, match="equal shapes"):
        block_ratio_intervals([1.0], [1.0, 2.0], mean)
