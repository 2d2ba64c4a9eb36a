import numpy as np
import pytest

from kvgym.benchmark.scoring import (
    interquartile_mean,
    interval_of,
    pooled,
    probability_of_improvement,
    profile,
    scores_of,
)

SCORES = {"a": np.array([0.0, 1.0, 2.0, 3.0]), "b": np.array([10.0, 10.0, 10.0, 10.0])}


def test_scores_by_hand():
    # mean distance of the reference: ((10 - 6) + (20 - 14)) / 2 = 5
    np.testing.assert_allclose(scores_of([10, 20], [10, 20], [6, 14]), [0, 0])
    np.testing.assert_allclose(scores_of([6, 14], [10, 20], [6, 14]), [0.8, 1.2])
    np.testing.assert_allclose(scores_of([[np.nan, 20], [5, 99]], [10, 20], [6, 14]), [-1, 0, 1, -1])
    np.testing.assert_allclose(scores_of([-0.5], [-0.2], [-0.8]), [0.5])  # attainments are negative


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 3, 100], 2.5), ([7], 7), ([1, 2, 3], 2), (range(8), 3.5), ([0, 0, 0, 1, 1, 9, 9, 9], 2.75)],
)
def test_interquartile_mean_by_hand(values, expected: float):
    assert interquartile_mean(values) == expected


def test_profile_counts_runs_above_a_level():
    np.testing.assert_allclose(profile(SCORES, [-1, 0, 2, 10]), [1, 7 / 8, 5 / 8, 0])


def test_probability_of_improvement_by_hand():
    others = {"a": np.array([1.0, 1.0]), "c": np.array([5.0])}
    # of 8 pairs of task a, 4 are better, 2 equal: (4 + 1) / 8; b and c are not in common
    assert probability_of_improvement(SCORES, others) == 5 / 8
    assert probability_of_improvement(others, SCORES) == 3 / 8
    assert probability_of_improvement(SCORES, SCORES) == 0.5
    with pytest.raises(ValueError, match="no task in common"):
        probability_of_improvement(SCORES, {"c": np.ones(2)})


def test_intervals_resample_runs_within_each_task():
    estimate = interval_of(SCORES)
    assert (estimate.value, estimate.n) == (pooled(SCORES), 8)
    assert pooled(SCORES) == (2 + 3 + 10 + 10) / 4
    assert estimate.low < estimate.value < estimate.high <= 10
    constant = {"a": np.full(4, 0.3), "b": np.full(4, 0.7)}  # tasks are never resampled
    found = interval_of(constant)
    assert (found.low, found.high) == (found.value, found.value) == (pytest.approx(0.5),) * 2
    assert interval_of(SCORES) == estimate
