"""Results by policy as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness import print_table
from kvgym.experiments.statistics import mean_interval
from papers.flow.runs import EXTRA, METRICS, Values


def print_results(results: dict[str, Values], unit: str) -> None:
    """Print one row per policy: the four metrics with their intervals, and what became of the requests."""
    per = "s" if unit == "s" else "slot"
    heads = (f"E2E mean, {unit}", f"E2E p95, {unit}", f"requests/{per}", f"tokens/{per}")
    rows = []
    for policy, values in results.items():
        extra = [number(float(np.mean(values[name]))) for name in EXTRA]
        lost = int(np.isnan(values["unfinished"]).sum())
        figures = (*(interval(values[name]) for name in METRICS), *extra)
        rows.append((f"`{policy}`", *figures, f"{lost} of {len(values['unfinished'])}"))
    print_table(("policy", *heads, "unfinished", "evictions", "KV use", "Jain", "livelocks"), rows)


def print_leaders(by_horizon: dict[int, dict[str, Values]]) -> None:
    """Print at how many horizons each policy comes first in each metric, by its mean over seeds."""
    policies = list(next(iter(by_horizon.values())))
    rows = []
    for policy in policies:
        counts = []
        for name in METRICS:
            sign = 1 if name.startswith("e2e") else -1
            first = [
                min(r, key=lambda p: np.nan_to_num(sign * np.mean(r[p][name]), nan=np.inf))
                for r in by_horizon.values()
            ]
            counts.append(f"{first.count(policy)} of {len(first)}")
        rows.append((f"`{policy}`", *counts))
    print_table(("policy", "E2E mean", "E2E p95", "requests", "tokens"), rows)


def interval(values: Sequence[float]) -> str:
    """Return a mean with its 95 % bootstrap interval."""
    e = mean_interval(values)
    return number(e.value) if np.isnan(e.low) else f"{number(e.value)} ({number(e.low)} – {number(e.high)})"


def number(value: object) -> str:
    """Return four significant digits, thousands apart; – for what could not be measured."""
    if isinstance(value, tuple):
        return "(" + ", ".join(map(str, value)) + ")"
    x = float(value)  # type: ignore[arg-type]
    if np.isnan(x):
        return "–"
    return f"{x:,.0f}" if abs(x) >= 1000 or x == round(x) else f"{x:.4g}"
