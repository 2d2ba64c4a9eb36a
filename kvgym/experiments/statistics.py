"""Paired statistics over seeds: means with bootstrap intervals, and ratios to a reference."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with a confidence interval.

    Attributes:
        value: the mean.
        low: lower end of the interval; NaN with fewer than two seeds.
        high: upper end.
        n: number of seeds.
    """

    value: float
    low: float
    high: float
    n: int


def mean_interval(values: ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = 4000) -> Estimate:
    """Return the mean of per-seed values with a bootstrap interval (BCa).

    Args:
        values: one value per seed, shape (n,).
        confidence: level of the interval.
        resamples: bootstrap resamples, drawn from a fixed seed: equal input gives equal output.
    """
    data = np.asarray(values, dtype=np.float64)
    return _bootstrap((data,), lambda x, axis=-1: x.mean(axis=axis), confidence, resamples)


def ratio_interval(
    values: ArrayLike, reference: ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = 4000
) -> Estimate:
    """Return the ratio of means of two policies on the same seeds, resampled in pairs.

    Args:
        values: one value per seed, shape (n,).
        reference: the reference policy's values on the same seeds, shape (n,).
        confidence: level of the interval.
        resamples: bootstrap resamples, drawn from a fixed seed.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"paired values need equal shapes, got {x.shape} and {y.shape}")

    def ratio(a: NDArray[np.float64], b: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return np.asarray(a.mean(axis=axis) / b.mean(axis=axis))

    return _bootstrap((x, y), ratio, confidence, resamples)


def _bootstrap(
    data: tuple[NDArray[np.float64], ...], statistic: object, confidence: float, resamples: int
) -> Estimate:
    n = len(data[0])
    with np.errstate(all="ignore"):
        value = float(statistic(*data)) if n else float("nan")  # type: ignore[operator]
    nan = float("nan")
    if n < 2 or not np.isfinite(value):
        return Estimate(value, nan, nan, n)
    if all((d == d[0]).all() for d in data) or (len(data) == 2 and np.array_equal(*data)):
        return Estimate(value, value, value, n)
    from scipy.stats import bootstrap

    low = high = nan
    for method in ("BCa", "percentile"):  # BCa does not exist for some degenerate samples
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = bootstrap(
                data,
                statistic,
                paired=len(data) > 1,
                vectorized=True,
                confidence_level=confidence,
                n_resamples=resamples,
                method=method,
                rng=np.random.default_rng(0),
            )
        low, high = (float(x) for x in result.confidence_interval)
        if np.isfinite(low) and np.isfinite(high):
            break
    return Estimate(value, low, high, n)
