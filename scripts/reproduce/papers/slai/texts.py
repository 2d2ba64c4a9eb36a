"""Formatting of numbers in tables and findings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from harness import Table
from kvgym.experiments.statistics import Estimate, mean_interval, ratio_interval
from papers.slai.measurements import Measurements
from papers.slai.setting import NAMES

MISSING = "–"


def text(estimate: Estimate, digits: int = 2, percent: bool = False) -> str:
    """Return a mean with its interval; optionally as a change in percent, for ratios."""
    if not np.isfinite(estimate.value):
        return MISSING
    if not np.isfinite(estimate.low):
        return f"{100 * (estimate.value - 1):+.0f} %" if percent else f"{estimate.value:.{digits}f}"
    if percent:
        value, low, high = (
            f"{round(100 * (x - 1)):+}" for x in (estimate.value, estimate.low, estimate.high)
        )
        return f"{value} % ({low} … {high})"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} – {estimate.high:.{digits}f})"


def mean_text(values: ArrayLike, digits: int = 2) -> str:
    """Return the mean of values by seed, with its interval."""
    return text(mean_interval(values), digits)


def change(values: ArrayLike, reference: ArrayLike) -> str:
    """Return the change of means against a reference on the same seeds, in percent, with the interval."""
    return text(ratio_interval(values, reference), percent=True)


def percent(share: float, digits: int = 0) -> str:
    """Return a change in percent, with its sign."""
    return f"{100 * share:+.{digits}f} %" if np.isfinite(share) else MISSING


def short(values: ArrayLike, digits: int = 2) -> str:
    """Return a mean alone."""
    value = float(np.mean(np.asarray(values, np.float64)))
    return f"{value:.{digits}f}" if np.isfinite(value) else MISSING


def by_rate(
    caption: str,
    data: Measurements,
    rates: Iterable[float],
    policies: Iterable[str],
    column: str,
    digits: int,
) -> Table:
    """Return a table of one figure: a row per rate, a column per policy."""
    shown = list(policies)
    rows = [
        [f"{rate:g}", *(mean_text(data.values(p, rate, column), digits) for p in shown)] for rate in rates
    ]
    return Table(["requests/s", *(NAMES[p] for p in shown)], rows, caption)
