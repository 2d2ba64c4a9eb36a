"""Paired statistics, over seeds or along a run: means and ratios to a reference, with bootstrap intervals."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError
from kvgym.metrics.catalogue import metric_info
from kvgym.utils.arguments import explained
from kvgym.utils.checks import real_number, whole_number

CONFIDENCE = 0.95

_OfMeans = Callable[..., NDArray[np.float64]]
"""Maps the means of one or two tables to the statistic, element by element."""

_NORMAL = NormalDist()
_MOST = 130_000  # resampled means that are computed at a time: they stay in the cache of the processor


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


@explained
def mean_interval(values: ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = 4000) -> Estimate:
    """Return the mean of per-seed values with a bootstrap interval (BCa).

    Args:
        values: one value per seed, shape (n,).
        confidence: level of the interval.
        resamples: bootstrap resamples, drawn from a fixed seed: equal input gives equal output.
    """
    (found,) = mean_intervals(np.atleast_1d(values)[None], confidence=confidence, resamples=resamples)
    return found


def mean_intervals(
    values: ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = 4000
) -> list[Estimate]:
    """Return the mean and the interval of each row of ``values``, shape (rows, n); all rows use the same resamples."""
    data = np.asarray(values, dtype=np.float64)
    return _bootstrap((data,), lambda mean: mean, confidence, resamples)


@explained
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
    if x.shape != y.shape or not x.ndim:
        raise ConfigError(f"paired values need equal shapes, got {x.shape} and {y.shape}")
    (found,) = _bootstrap((x[None], y[None]), np.divide, confidence, resamples)
    return found


@explained
def improvement_interval(values: ArrayLike, reference: ArrayLike, *, lower_is_better: bool) -> Estimate:
    """Return how much better values are than a reference on the same seeds, as a share; negative: worse.

    Args:
        values: one value per seed, shape (n,).
        reference: values of the reference on the same seeds, shape (n,).
        lower_is_better: True: 1 − the ratio of means; False: the ratio − 1.
    """
    r = ratio_interval(values, reference)
    if lower_is_better:
        return Estimate(1 - r.value, 1 - r.high, 1 - r.low, r.n)
    return Estimate(r.value - 1, r.low - 1, r.high - 1, r.n)


def _bootstrap(
    data: tuple[NDArray[np.float64], ...], statistic: _OfMeans, confidence: float, resamples: int
) -> list[Estimate]:
    """Return a statistic of each row of ``data``, one or two tables (rows, n), with its interval."""
    confidence = real_number(confidence, "confidence", "a share between 0 and 1", lambda x: 0 < x < 1)
    resamples = whole_number(resamples, "resamples", "a whole number ≥ 1")
    if data[0].ndim != 2:
        raise ConfigError(f"values of shape {data[0].shape[1:]}; expected one for each seed, shape (n,)")
    rows, n = data[0].shape
    low, high = np.full((2, rows), np.nan)
    with np.errstate(all="ignore"):
        value = statistic(*(d.mean(axis=-1) for d in data)) if n else np.full(rows, np.nan)
        if n > 1:
            same = np.logical_and.reduce([(d == d[:, :1]).all(axis=-1) for d in data])
            same |= (data[0] == data[-1]).all(axis=-1) if len(data) > 1 else False
            low[same] = high[same] = value[same]
            (open_ones,) = np.nonzero(~same)
            size = max(1, _MOST // max(n * n, resamples))
            for k in range(0, len(open_ones), size):
                part = open_ones[k : k + size]
                chosen = tuple(d[part] for d in data)
                low[part], high[part] = _bca(chosen, statistic, value[part], confidence, resamples)
    low[~np.isfinite(value)] = high[~np.isfinite(value)] = np.nan
    ends = zip(value.tolist(), low.tolist(), high.tolist(), strict=True)
    return [Estimate(*each, n) for each in ends]


def _bca(
    data: tuple[NDArray[np.float64], ...],
    statistic: _OfMeans,
    value: NDArray[np.float64],
    confidence: float,
    resamples: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the BCa intervals of rows, or of percentile intervals if these do not exist.

    Bias-corrected and accelerated: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 14.3. The
    draws are those of ``scipy.stats.bootstrap`` with the generator 0.
    """
    n = data[0].shape[-1]
    drawn = _draws(n, resamples)
    found = statistic(*(_resampled_means(d, drawn) for d in data))
    others = np.array([[i for i in range(n) if i != j] for j in range(n)])
    left_out = statistic(*(np.take(d, others, axis=-1).mean(axis=-1) for d in data))
    influence = (n - 1) * (left_out.mean(axis=-1, keepdims=True) - left_out)
    skewness = (influence**3).sum(axis=-1) / n**3 / ((influence**2).sum(axis=-1) / n**2) ** 1.5 / 6
    below = ((found < value[:, None]).sum(axis=-1) + (found <= value[:, None]).sum(axis=-1)) / (2 * resamples)
    tail = (1 - confidence) / 2
    levels = np.array([_levels(*row, tail) for row in zip(below, skewness, strict=True)])
    ordered = np.sort(found, axis=-1)
    ends = _quantiles(ordered, levels)
    unknown = ~np.isfinite(ends).all(axis=-1)
    ends[unknown] = _quantiles(ordered[unknown], np.array([[tail, 1 - tail]]))
    return ends[:, 0], ends[:, 1]


def _levels(below: float, skewness: float, tail: float) -> tuple[float, float]:
    """Return the levels of the quantiles that end an interval, given the share of resamples below the value."""
    if not 0 < below < 1:
        return tail, 1 - tail
    bias, ends = _NORMAL.inv_cdf(below), []
    for side in (_NORMAL.inv_cdf(tail), -_NORMAL.inv_cdf(tail)):
        moved = bias + side
        ends.append(_NORMAL.cdf(bias + moved / (1 - skewness * moved)))
    return (ends[0], ends[1]) if np.isfinite(ends).all() else (tail, 1 - tail)


@functools.lru_cache(maxsize=1)
def _draws(n: int, resamples: int) -> NDArray[np.int64]:
    """Return the draws of all resamples of n values, shape (n, resamples), as ``scipy.stats.bootstrap`` makes them."""
    return np.ascontiguousarray(np.random.default_rng(0).integers(n, size=(resamples, n)).T)


def _resampled_means(data: NDArray[np.float64], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the means of resampled rows, shape (rows, resamples), as ``mean`` of each resampled row would.

    All rows and resamples are added at once, one draw after the other: the mean of a short row takes NumPy ten times
    as long. The order of the additions, and so every bit, is NumPy's. ``drawn`` is of :func:`_draws`.
    """
    columns = np.ascontiguousarray(data.T)

    def total(first: int, n: int) -> NDArray[np.float64]:
        if n > 128:
            half = n // 2 - n // 2 % 8
            return total(first, half) + total(first + half, n - half)
        begin = range(8 if n >= 8 else 1)
        sums: list[NDArray[np.float64]] = [np.take(columns, drawn[first + k], axis=0) for k in begin]
        end = n - n % 8 if n >= 8 else 1
        for k in range(len(sums), end):
            sums[k % 8] += np.take(columns, drawn[first + k], axis=0)
        while len(sums) > 1:
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
        for k in range(end, n):
            sums[0] += np.take(columns, drawn[first + k], axis=0)
        return sums[0]

    means = (total(0, len(drawn)) + 0.0) / len(drawn)  # NumPy begins with 0.0: no mean is -0.0
    return np.ascontiguousarray(means.T)


def _quantiles(ordered: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return quantiles of sorted rows as ``numpy.quantile`` does, also between infinite values; NaN with a NaN.

    Args:
        ordered: float64 (rows, n), each row ascending, NaN last.
        levels: float64 (rows, k), or (1, k) for all rows.
    """
    rank = np.broadcast_to(levels * (ordered.shape[1] - 1), (len(ordered), levels.shape[1]))
    below = rank.astype(np.int64)
    lower = np.take_along_axis(ordered, below, axis=1)
    upper = np.take_along_axis(ordered, np.minimum(below + 1, ordered.shape[1] - 1), axis=1)
    ends = np.where(lower == upper, lower, lower + (upper - lower) * (rank - below))
    ends[np.isnan(ordered[:, -1])] = np.nan
    return ends


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

    Neighbours in a queue wait for the same events. Blocks of consecutive pairs preserve this correlation; resampling
    single pairs would give intervals that are too narrow.

    Args:
        values: float64 (n,), in order, n ≥ 1.
        reference: float64 (n,), values at the same places.
        statistics: maps an array of shape (m,) to k statistics, shape (k,).
        confidence: level of the percentile intervals.
        blocks: number of blocks; with fewer pairs each pair is a block.
        resamples: bootstrap resamples, drawn from a fixed seed: equal input gives equal output.

    Returns:
        k ratios; NaN if the reference's statistic is 0, and no interval with fewer than two pairs.
    """
    x, y = np.asarray(values, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape or not x.ndim:
        raise ConfigError(f"paired values need equal shapes, got {x.shape} and {y.shape}")
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


def less_is_better(name: str) -> bool:
    """Return whether less of a metric is better.

    Raises:
        UnknownNameError: the metric does not exist.
        ConfigError: the metric has no direction.
    """
    lower = metric_info(name).lower_is_better
    if lower is None:
        raise ConfigError(f"neither more nor less of {name} is better; choose another metric")
    return lower
