import json
from pathlib import Path

import numpy as np
import pytest

from kvgym.studies.benchmark.running import BenchmarkResult
from kvgym.studies.benchmark.scoring import (
    difference_of,
    interval_of,
    pooled,
    profile,
    scores_of,
)

SCORES = {"a": np.array([[0.0, 1.0, 2.0, 3.0]]), "b": np.array([[10.0, 10.0, 10.0, 10.0]])}


def test_scores_by_hand():
    # mean distance of the reference: ((10 - 6) + (20 - 14)) / 2 = 5
    np.testing.assert_allclose(scores_of([10, 20], [10, 20], [6, 14]), [0, 0])
    np.testing.assert_allclose(scores_of([6, 14], [10, 20], [6, 14]), [0.8, 1.2])
    np.testing.assert_allclose(scores_of([[np.nan, 20], [5, 99]], [10, 20], [6, 14]), [[-1, 0], [1, -1]])
    np.testing.assert_allclose(scores_of([-0.5], [-0.2], [-0.8]), [0.5])  # attainments are negative


def test_profile_counts_runs_above_a_level():
    np.testing.assert_allclose(profile(SCORES, [-1, 0, 2, 10]), [1, 7 / 8, 5 / 8, 0])


def test_differences_are_paired():
    # On every seed the first entry is better by 0.1; the seeds differ by much more, which a pair does not show.
    better = {"a": np.array([[0.1, 1.1, 2.1, 3.1]])}
    found = difference_of(better, {"a": SCORES["a"], "c": np.ones((1, 2))}, np.random.default_rng(0))
    np.testing.assert_allclose([found.value, found.low, found.high], 0.1)
    # Trainings of both are drawn: the first is always 0 or 1, so that the difference from 0.5 goes from -0.5 to 0.5.
    trained = {"a": np.repeat([[0.0], [1.0]], 4, axis=1)}
    found = difference_of(trained, {"a": np.full((1, 4), 0.5)}, np.random.default_rng(0))
    assert (found.value, found.low, found.high) == (0, -0.5, 0.5)
    with pytest.raises(ValueError, match="no task in common"):
        difference_of(SCORES, {"c": np.ones((1, 2))}, np.random.default_rng(0))


def seeded(scores, seed: int = 0):
    return interval_of(scores, np.random.default_rng(seed))


def test_intervals_resample_runs_within_each_task():
    estimate = seeded(SCORES)
    assert (estimate.value, estimate.n) == (pooled(SCORES), 8)
    assert pooled(SCORES) == (1.5 + 10) / 2
    assert estimate.low < estimate.value < estimate.high <= 10
    constant = {"a": np.full((1, 4), 0.3), "b": np.full((1, 4), 0.7)}  # tasks are never resampled
    found = seeded(constant)
    assert (found.low, found.high) == (found.value, found.value) == (pytest.approx(0.5),) * 2
    assert seeded(SCORES) == estimate


def test_trainings_are_resampled_too():
    # Two trainings, one always 0 and one always 1: a quarter of the resamples has one of them twice, so the interval
    # goes from 0 to 1. Sixteen independent runs of which half are 0 would give about 0.2 to 0.8.
    scores = {"a": np.repeat([[0.0], [1.0]], 8, axis=1), "b": np.repeat([[0.0], [1.0]], 8, axis=1)}
    found = seeded(scores)
    assert (found.value, found.low, found.high, found.n) == (0.5, 0, 1, 32)
    # The same trainings on both tasks: had each task its own, a resample with 0 everywhere would be one in sixteen.
    assert seeded({"a": scores["a"], "b": 1 - scores["b"]}).low == 0.5


def test_seeds_are_shared_by_trainings():
    # All trainings have 0 on one seed and 1 on the other: a quarter of the resamples has one seed twice.
    found = seeded({"a": np.repeat([[0.0, 1.0]], 8, axis=0)})
    assert (found.low, found.high) == (0, 1)


@pytest.mark.parametrize("name", ["ranked_slo", "lmetric", "hpa"])
def test_stored_intervals_are_those_of_the_stored_values(name: str):
    path = Path(__file__).parents[3] / "docs" / "benchmark" / f"{name}.json"
    result, stored = BenchmarkResult.load(path), json.loads(path.read_text())["scores"]
    assert set(stored) == set(result.sections)
    for section, interval in stored.items():
        found = seeded(result.scores(section))
        assert (found.value, found.low, found.high) == (interval["value"], interval["low"], interval["high"])
