"""Scores of runs, and means over tasks with bootstrap intervals.

The score of an entry is the mean over tasks of its mean over runs: every task counts as much. Runs of one training, and
runs on one seed, are not independent, so the bootstrap draws trainings and seeds, both with replacement, and takes the
runs where they meet. Two entries are compared on the same drawn seeds, because they play the same requests.
Performance profiles follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
NeurIPS 2021; their interquartile mean would leave out whole tasks where there are as few as here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.experiments.statistics import CONFIDENCE, Estimate

Scores = Mapping[str, NDArray[np.float64]]
"""Scores of an entry: the runs (trainings, seeds) of each task."""

RESAMPLES = 2000
WORST = -1.0
"""Lowest score, and the score of a failed run: as far below the plain rule as the reference is above it."""


def scores_of(values: ArrayLike, plain: ArrayLike, reference: ArrayLike) -> NDArray[np.float64]:
    """Return scores: 0 = the plain rule on the same requests, 1 = the mean distance of the reference from it.

    Args:
        values: of the entry by seed, (n,) or (runs, n); NaN = a failed run.
        plain: of the plain rule by seed, (n,).
        reference: of the reference in hindsight by seed, (n,).

    Returns:
        Scores, of the shape of ``values``, at least :data:`WORST`.
    """
    plain = np.asarray(plain, np.float64)
    distance = float(np.mean(plain - np.asarray(reference, np.float64)))
    scores = (plain - np.asarray(values, np.float64)) / distance
    return np.asarray(np.maximum(np.nan_to_num(scores, nan=WORST), WORST), np.float64)


def profile(scores: Scores, levels: Sequence[float]) -> NDArray[np.float64]:
    """Return the performance profile: the share of runs of all tasks that score more than each level."""
    found = np.concatenate([runs.ravel() for runs in scores.values()])
    return np.asarray([(found > level).mean() for level in levels], np.float64)


def pooled(scores: Scores) -> float:
    """Return the mean over tasks of the mean over their runs."""
    return float(np.mean([runs.mean() for runs in scores.values()]))


def interval_of(scores: Scores, generator: np.random.Generator) -> Estimate:
    """Return the mean score with a bootstrap interval.

    A resample has seeds drawn within each task, the same for all trainings, and trainings, the same on all tasks, as a
    training plays them all.

    Args:
        scores: of an entry.
        generator: draws the resamples; equal states give equal output.
    """
    seeds = _drawn_seeds(scores, generator)
    found = _resampled(scores, seeds, generator)
    return _estimate(pooled(scores), found, sum(runs.size for runs in scores.values()))


def difference_of(scores: Scores, others: Scores, generator: np.random.Generator) -> Estimate:
    """Return the difference of the mean scores on the tasks that two entries share, with a bootstrap interval.

    A resample has the same seeds for both entries, and trainings of each.

    Args:
        scores: of an entry.
        others: of another one.
        generator: draws the resamples; equal states give equal output.

    Raises:
        ValueError: they have no task in common.
    """
    common = [name for name in scores if name in others]
    if not common:
        raise ValueError("the entries have no task in common")
    first, second = ({name: each[name] for name in common} for each in (scores, others))
    seeds = _drawn_seeds(first, generator)
    found = _resampled(first, seeds, generator) - _resampled(second, seeds, generator)
    return _estimate(pooled(first) - pooled(second), found, sum(runs.size for runs in first.values()))


Drawn = Mapping[str, NDArray[np.int64]]
"""Seeds of each task by resample, (RESAMPLES, seeds)."""


def _drawn_seeds(scores: Scores, generator: np.random.Generator) -> Drawn:
    return {
        name: generator.integers(0, runs.shape[1], (RESAMPLES, runs.shape[1]))
        for name, runs in scores.items()
    }


def _resampled(scores: Scores, seeds: Drawn, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return the mean score of each resample, (RESAMPLES,)."""
    (trainings,) = {len(runs) for runs in scores.values()}
    rows = generator.integers(0, trainings, (RESAMPLES, trainings))[:, :, None]
    means = [runs[rows, seeds[name][:, None, :]].mean(axis=(1, 2)) for name, runs in scores.items()]
    return np.asarray(np.mean(means, axis=0), np.float64)


def _estimate(value: float, found: NDArray[np.float64], runs: int) -> Estimate:
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high), runs)
