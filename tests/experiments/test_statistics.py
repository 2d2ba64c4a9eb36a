"""Intervals over seeds."""

import warnings

import numpy as np
import pytest
from scipy.stats import bootstrap

from kvgym.experiments import statistics
from kvgym.experiments.statistics import (
    block_ratio_intervals,
    improvement_interval,
    mean_interval,
    mean_intervals,
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


def test_improvement_is_positive_if_better():
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


def theirs(data, statistic):
    """The interval of ``scipy.stats.bootstrap``: BCa, or percentiles if that does not exist."""
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = bootstrap(
                data, statistic, paired=len(data) > 1, vectorized=True, n_resamples=4000, method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval  # fmt: skip
        if np.isfinite(found).all():
            break
    return tuple(found)


@pytest.mark.parametrize("n", [2, 3, 5, 11])
@pytest.mark.parametrize("kind", ["normal", "few values", "heavy tail", "one that differs", "far from 0"])
def test_intervals_are_those_of_scipy(n: int, kind: str):
    rng = np.random.default_rng(n)
    x = {
        "normal": rng.normal(size=n),
        "few values": np.arange(n) % 3.0,
        "heavy tail": rng.exponential(size=n) ** 4,
        "one that differs": np.where(np.arange(n) == 0, 1.0, 0.0),
        "far from 0": 1e9 + rng.normal(size=n),
    }[kind]
    y = rng.uniform(1, 2, size=n)
    ours = mean_interval(x)
    assert (ours.low, ours.high) == pytest.approx(theirs((x,), np.mean), rel=1e-12, abs=1e-12)
    pairs = ratio_interval(x, y)
    expected = theirs((x, y), lambda a, b, axis=-1: a.mean(axis=axis) / b.mean(axis=axis))
    assert (pairs.low, pairs.high) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("n", [2, 5, 7, 8, 11, 16, 128, 130, 300])
def test_means_of_resamples_have_the_bits_of_numpy(n: int):
    rng = np.random.default_rng(n)
    data = np.vstack([rng.lognormal(0, 1, (2, n)), np.full(n, -0.0)])
    drawn = rng.integers(n, size=(20, n))
    found = statistics._resampled_means(data, drawn.T)
    assert found.tobytes() == np.take(data, drawn, axis=-1).mean(axis=-1).tobytes()


def test_intervals_are_open_if_some_resamples_have_no_ratio():
    estimate = ratio_interval([2.0, 2.0, 2.0, 1.0, 2.0], [0.0, 1.0, 0.0, 0.0, 1.0])
    assert (estimate.value, estimate.low, estimate.high) == (4.5, 2.25, np.inf)


def test_rows_are_independent():
    rows = np.random.default_rng(4).normal(size=(300, 5))
    rows[3], rows[7, 2] = 1.5, np.nan
    together = mean_intervals(rows)
    assert [str(e) for e in together] == [str(mean_interval(row)) for row in rows]
    assert (together[3].low, together[3].high, together[3].n) == (1.5, 1.5, 5)
    assert np.isnan(together[7].low)


def mean(x):
    return np.array([x.mean()])


def test_block_intervals_of_independent_pairs_have_the_width_of_the_sample():
    rng = np.random.default_rng(2)
    values = rng.normal(10.0, 1.0, 4000)
    (estimate,) = block_ratio_intervals(values, np.full(4000, 5.0), mean)
    half = 1.96 * values.std() / np.sqrt(4000) / 5
    assert estimate.value == pytest.approx(values.mean() / 5)
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half, rel=0.3)


def test_block_intervals_widen_if_neighbours_share_errors():
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
