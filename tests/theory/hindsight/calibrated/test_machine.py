"""The relaxed machine: by hand, and against all orders."""

import itertools

import numpy as np
import pytest

from kvgym.theory.hindsight.calibrated.machine import last_completion, least_completions, least_mean_times


def test_shortest_remaining_work_first_by_hand():
    # 0-1 the long one; 1-2 the short one; 2-5 the long one.
    assert least_completions(np.array([0.0, 1.0]), np.array([4.0, 1.0])) == pytest.approx(5 + 2)
    assert least_completions(np.array([0.0, 10.0]), np.array([4.0, 1.0])) == pytest.approx(4 + 11)


def test_mean_times_by_hand():
    # The long one (4 s, weight 1/4) works 0-1 and 2-5, the short one 1-2: means (0.5 + 3 * 3.5) / 4 and 1.5.
    found = least_mean_times(
        np.array([0.0, 1.0]), np.array([4.0, 1.0]), np.array([0, 1]), np.array([1, 0]), np.array([0.25, 1.0])
    )
    assert found == pytest.approx(11 / 4 + 1.5)


def test_against_every_order_of_small_steps():
    rng = np.random.default_rng(0)
    for _ in range(20):
        release = np.sort(rng.integers(0, 4, 3)).astype(float)
        work = rng.integers(1, 4, 3)
        total = int(release.max() + work.sum())
        best_ends, best_means = np.inf, np.inf
        steps = [i for i in range(3) for _ in range(work[i])]
        for order in set(itertools.permutations(steps)):
            now, done, ends, means = 0.0, np.zeros(3), np.zeros(3), np.zeros(3)
            for i in order:
                now = max(now, release[i])
                means[i] += (now + 0.5) / work[i]
                now, done[i], ends[i] = now + 1, done[i] + 1, now + 1
            best_ends, best_means = min(best_ends, ends.sum()), min(best_means, means.sum())
        assert best_ends <= 3 * total
        assert least_completions(release, work.astype(float)) == pytest.approx(best_ends)
        rank = np.empty(3, np.int64)
        rank[np.argsort(work, kind="stable")] = np.arange(3)
        found = least_mean_times(release, work.astype(float), np.arange(3), rank, 1 / work)
        assert found == pytest.approx(best_means)


def test_last_completion_comes_from_the_busiest_interval():
    assert last_completion(np.array([0.0, 10.0, 11.0]), np.array([1.0, 2.0, 2.0])) == pytest.approx(14)
    assert last_completion(np.array([0.0, 1.0]), np.array([5.0, 2.0])) == pytest.approx(7)
