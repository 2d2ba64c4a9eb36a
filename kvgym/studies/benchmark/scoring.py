"""Scores of runs, and aggregates over tasks with stratified bootstrap intervals.

Definitions follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS
2021, and their library rliable: the interquartile mean over all runs of all tasks, performance profiles over runs,
the probability that a run of one entry is better than a run of another averaged over tasks, and percentile intervals
of a bootstrap within each task. Runs of one training, and runs on one seed, are not independent, so the bootstrap draws
trainings and seeds, both with replacement, and takes the runs where they meet.
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


def interquartile_mean(scores: ArrayLike) -> float:
    """Return the mean of the middle half: a quarter of the values, rounded down, is cut off at either end."""
    ordered = np.sort(np.asarray(scores, np.float64).ravel())
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def profile(scores: Scores, levels: Sequence[float]) -> NDArray[np.float64]:
    """Return the performance profile: the share of runs of all tasks that score more than each level."""
    found = _all_runs(scores)
    return np.asarray([(found > level).mean() for level in levels], np.float64)


def probability_of_improvement(scores: Scores, others: Scores) -> float:
    """Return P(X > Y) + P(X = Y) / 2 for runs X and Y of a task, averaged over the tasks that both entries have.

    Raises:
        ValueError: they have no task in common.
    """
    common = [name for name in scores if name in others]
    if not common:
        raise ValueError("the entries have no task in common")
    found = []
    for name in common:
        difference = scores[name].ravel()[:, None] - others[name].ravel()
        found.append(float((difference > 0).mean() + 0.5 * (difference == 0).mean()))
    return float(np.mean(found))


def pooled(scores: Scores) -> float:
    """Return the interquartile mean over all runs of all tasks."""
    return interquartile_mean(_all_runs(scores))


def _all_runs(scores: Scores) -> NDArray[np.float64]:
    return np.concatenate([runs.ravel() for runs in scores.values()])


def interval_of(scores: Scores, generator: np.random.Generator) -> Estimate:
    """Return the interquartile mean with a bootstrap interval.

    A resample has seeds drawn within each task, the same for all trainings, and trainings, the same on all tasks, as a
    training plays them all.

    Args:
        scores: of an entry.
        generator: draws the resamples; equal states give equal output.
    """
    (trainings,) = {len(runs) for runs in scores.values()}
    seeds = [generator.integers(0, runs.shape[1], (RESAMPLES, runs.shape[1])) for runs in scores.values()]
    rows = generator.integers(0, trainings, (RESAMPLES, trainings))[:, :, None]
    drawn = [
        runs[rows, columns[:, None, :]].reshape(RESAMPLES, runs.size)
        for runs, columns in zip(scores.values(), seeds, strict=True)
    ]
    ordered = np.sort(np.concatenate(drawn, axis=1), axis=1)
    count = ordered.shape[1]
    cut = count // 4
    found = ordered[:, cut : count - cut].mean(axis=1)
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(pooled(scores), float(low), float(high), count)
