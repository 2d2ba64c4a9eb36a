"""Number formats of reports."""

from __future__ import annotations

import math
from collections.abc import Collection

from kvgym.experiments.statistics import Estimate

NO_VALUE = "–"


def figures(value: float, digits: int = 3) -> str:
    """Return a number with at least ``digits`` significant digits, ``–`` for none.

    Integers have no decimals, and numbers from 0.0001 on have no exponent.
    """
    if math.isnan(value):
        return NO_VALUE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if value == int(value):
        return f"{value:,.0f}"
    if 0 < size < 1e-4:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}"


def interval(estimate: Estimate, scale: float = 1.0) -> str:
    """Return ``low – high`` of an estimate times ``scale``, "" if there is no interval or it is a point."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)) or estimate.low == estimate.high:
        return ""
    return f"{figures(estimate.low * scale)}\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}{figures(estimate.high * scale)}"


def count_range(counts: Collection[int]) -> str:
    """Return whole numbers as the smallest and the largest of them, or as one if all are equal."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
