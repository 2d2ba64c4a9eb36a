"""Figures and tables as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compare_agents.store import Entry
from kvgym.experiments.statistics import Estimate
from kvgym.report.numbers import NO_VALUE, figures

DIGITS = 4


def number(value: float) -> str:
    """Return a figure with four significant digits."""
    return figures(value, DIGITS)


def percent(share: float) -> str:
    """Return a signed percentage."""
    return NO_VALUE if math.isnan(share) else f"{100 * share:+.1f} %"


def change(estimate: Estimate) -> str:
    """Return a share with its interval, as percentages."""
    if math.isnan(estimate.low):
        return percent(estimate.value)
    return f"{percent(estimate.value)} ({100 * estimate.low:+.1f} – {100 * estimate.high:+.1f})"


def failure(entry: Entry, length: int = 160) -> str:
    """Return why an entry has no value, in short."""
    return entry.outcome.error.replace("|", "/").replace("\n", " ")[:length]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]
