"""Bounds on the queues of WAIT against exact laws and simulated random walks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.formulas.queues import (
    expected_walk_maximum,
    kingman_bound,
    poisson_excess,
    poisson_queue_law,
    queue_bound,
    segment_queue_bound,
    segment_queue_law,
    segment_queue_tail,
    throughput_gap,
    zero_drift_bound,
)

from kvgym.errors import ConfigError


def mean_of(law: np.ndarray) -> float:
    return float(law @ np.arange(len(law)))


@given(mean=st.floats(0.1, 60), level=st.floats(-5, 90))
def test_poisson_excess_by_summing(mean: float, level: float) -> None:
    k = np.arange(400)
    log_p = k * math.log(mean) - mean - np.array([math.lgamma(x + 1) for x in k])
    assert poisson_excess(mean, level) == pytest.approx(
        float(np.exp(log_p) @ np.maximum(0, k - level)), abs=1e-9
    )


def test_lemma_4_against_simulated_walks() -> None:
    rng = np.random.default_rng(0)
    for mean, threshold, batches in ((4.0, 4.0, 50), (3.0, 4.0, 80), (7.5, 8.0, 30)):
        steps = rng.poisson(mean, (40_000, batches)) - threshold
        walked = np.maximum(0, np.cumsum(steps, axis=1)).max(axis=1)
        error = walked.std() / 200
        assert abs(expected_walk_maximum(mean, threshold, batches) - walked.mean()) < 4 * error


@pytest.mark.parametrize(("mean", "threshold"), [(4.0, 4), (3.0, 4), (9.0, 10), (1.0, 1)])
@pytest.mark.parametrize("batches", [1, 10, 200])
def test_bounds_hold_for_the_queue_of_lemma_1(mean: float, threshold: int, batches: int) -> None:
    law = poisson_queue_law(mean, threshold, batches, 150)
    assert law.sum() == pytest.approx(1.0)
    found = mean_of(law)
    assert found <= queue_bound(mean, threshold, batches)
    assert throughput_gap(mean, threshold, batches) == queue_bound(mean, threshold, batches) / batches
    if mean < threshold:
        # Kingman's estimate of the walk's maximum is above the exact one.
        assert queue_bound(mean, threshold, batches) <= kingman_bound(mean, threshold)
        assert throughput_gap(mean, threshold, batches, "printed") == kingman_bound(mean, threshold) / batches
    else:
        assert found <= zero_drift_bound(threshold, batches)


def test_lemma_1_stuck_batches() -> None:
    """E[W_B] = n E[batches that found too few] at mean = n, by the law of every batch."""
    n, batches = 3, 40
    stuck = 0.0
    arrivals = np.exp(-n) * np.array([n**k / math.factorial(k) for k in range(n)])
    for b in range(batches):
        law = poisson_queue_law(n, n, b, 120)
        stuck += sum(law[w] * arrivals[: n - w].sum() for w in range(n))
    assert mean_of(poisson_queue_law(n, n, batches, 120)) == pytest.approx(n * stuck, rel=1e-6)


def test_growth() -> None:
    # sqrt(2 n B / pi) at zero drift, by the central limit theorem; bounded with drift.
    assert expected_walk_maximum(5.0, 5.0, 40_000) == pytest.approx(
        math.sqrt(2 * 5 * 40_000 / math.pi), rel=0.01
    )
    drift = [expected_walk_maximum(4.0, 5.0, b) for b in (1_000, 10_000)]
    assert drift[1] == pytest.approx(drift[0], rel=1e-6)
    gaps = [throughput_gap(5.0, 5.0, b) for b in (2_500, 10_000)]
    assert gaps[0] / gaps[1] == pytest.approx(2.0, rel=0.1)
    gaps = [throughput_gap(4.0, 5.0, b) for b in (2_500, 10_000)]
    assert gaps[0] / gaps[1] == pytest.approx(4.0, rel=1e-6)


def test_the_paper_loses_a_factor_of_two() -> None:
    """sum k^(-1/2) is close to 2 sqrt(B), not sqrt(B): the bound as it is printed in Case 1 does not follow."""
    n, batches = 5.0, 10_000
    assert zero_drift_bound(n, batches) - n == pytest.approx(2 * math.sqrt(n * batches), rel=0.02)


@settings(max_examples=30, deadline=None)
@given(
    n_prev=st.integers(2, 14), n_k=st.integers(1, 13), p=st.floats(0.05, 0.95), batches=st.integers(1, 120)
)
def test_segment_bounds_hold(n_prev: int, n_k: int, p: float, batches: int) -> None:
    if n_k <= n_prev * p * 1.02:
        with pytest.raises(ConfigError, match="must exceed"):
            segment_queue_bound(n_prev, min(n_k, n_prev * p), p)
        return
    law = segment_queue_law(n_prev, n_k, p, batches, 250)
    assert law.sum() == pytest.approx(1.0)
    assert mean_of(law) <= segment_queue_bound(n_prev, n_k, p) + 1e-9
    tail = law[::-1].cumsum()[::-1]
    bound = [segment_queue_tail(n_prev, n_k, p, level) for level in range(251)]
    assert (tail <= np.array(bound) + 1e-9).all()


def test_segment_law_against_simulated_walks() -> None:
    rng, queue = np.random.default_rng(1), np.zeros(50_000, int)
    for arrived in rng.binomial(6, 0.5, (30, 50_000)):
        queue += arrived
        queue -= np.where(queue >= 4, 4, 0)
    law = segment_queue_law(6, 4, 0.5, 30, 60)
    found = np.bincount(queue, minlength=61)[:61] / 50_000
    assert np.abs(found - law).max() < 0.01


def test_bad_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="above the arrivals"):
        kingman_bound(4.0, 4.0)
    with pytest.raises(ConfigError, match="no bound"):
        throughput_gap(4.1, 4.0, 10)
    with pytest.raises(ConfigError, match="exact, printed"):
        throughput_gap(4.0, 4.0, 10, "rough")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="most"):
        segment_queue_law(6, 4, 0.5, 30, 4)
