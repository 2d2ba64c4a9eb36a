"""Paired statistics, over seeds or along a run: means and ratios to a reference, with bootstrap intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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


def improvement_interval(values: ArrayLike, reference: ArrayLike, *, lower_is_better: bool) -> Estimate:
    """Return by what share values are better than a reference's on the same seeds; below 0: worse.

    Args:
        values: one value per seed, shape (n,).
        reference: on the same seeds, shape (n,).
        lower_is_better: 1 − the ratio of means, else the ratio − 1.
    """
    r = ratio_interval(values, reference)
    if lower_is_better:
        return Estimate(1 - r.value, 1 - r.high, 1 - r.low, r.n)
    return Estimate(r.value - 1, r.low - 1, r.high - 1, r.n)


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


def block_ratio_intervals(
    values: ArrayLike,
    reference: ArrayLike,
    statistics: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    confidence: float = CONFIDENCE,
    blocks: int = 40,
    resamples: int = 1000,
) -> list[Estimate]:
    """Return ratios of statistics of two series that share their order, resampled in blocks of pairs.

    Neighbours in a queue wait for the same things. Blocks of consecutive pairs keep that together, where pairs
    resampled one by one would promise intervals that are too narrow.

    Args:
        values: float64 (n,), in order, n ≥ 1.
        reference: float64 (n,), what belongs to the same places.
        statistics: from an array of shape (m,) to k figures, shape (k,).
        confidence: level of the percentile intervals.
        blocks: number of blocks; with fewer pairs each is a block.
        resamples: drawn from a fixed seed: equal input gives equal output.

    Returns:
        k ratios; NaN where the reference's figure is 0, no interval with fewer than two pairs.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"paired values need equal shapes, got {x.shape} and {y.shape}")
    n = len(x)

    def ratios(rows: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        below = statistics(y[rows])
        return np.where(below == 0, np.nan, statistics(x[rows]) / np.where(below == 0, 1.0, below))

    whole = ratios(slice(None))
    if n < 2:
        return [Estimate(float(value), float("nan"), float("nan"), n) for value in whole]
    parts = np.array_split(np.arange(n), min(blocks, n))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(parts), size=(resamples, len(parts)))
    many = np.array([ratios(np.concatenate([parts[k] for k in row])) for row in drawn])
    tail = (1 - confidence) / 2
    found = []
    for value, column in zip(whole, many.T, strict=True):
        known = column[np.isfinite(column)]
        ends = np.quantile(known, (tail, 1 - tail)) if len(known) and np.isfinite(value) else (np.nan, np.nan)
        found.append(Estimate(float(value), float(ends[0]), float(ends[1]), n))
    return found
