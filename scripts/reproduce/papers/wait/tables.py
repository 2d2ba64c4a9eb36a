"""Comparisons as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvgym import make_policy
from kvgym.experiments.comparison import Comparison, label_of
from kvgym.experiments.statistics import Estimate

METRICS = ("token_throughput", "e2e_latency_mean", "e2e_latency_p95", "ttft_mean", "evictions", "unfinished")
HEADS = ("output tokens/s", "E2E mean, s", "E2E p95, s", "TTFT mean, s", "evictions", "unfinished")


def result_rows(outcome: Comparison, names: dict[str, str], reference: str) -> list[list[str]]:
    """Return a row for each policy: the metrics, and the ratio of throughput to the reference policy's."""
    rows = []
    for name, spec in names.items():
        label = label_of(make_policy(spec))
        cells = [interval(outcome.estimate(label, m)) for m in METRICS]
        ratio = outcome.ratio(label, label_of(make_policy(names[reference])), "token_throughput")
        error = outcome.errors().get(label, "")
        rows.append([name, *cells, interval(ratio)] if not error else [name, error[:140], *[""] * 6])
    return rows


def fluid_shares(outcome: Comparison, names: dict[str, str], fluid: float) -> dict[str, float]:
    """Return the throughput of each policy as a share of the fluid equilibrium's."""
    labels = {name: label_of(make_policy(spec)) for name, spec in names.items()}
    return {name: outcome.estimate(label, "token_throughput").value / fluid for name, label in labels.items()}


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Return policy specs under readable names."""
    return {(s if s.startswith(("wait", "nested")) else s.partition(":")[0]): s for s in specs}


def interval(e: Estimate, digits: int = 3) -> str:
    """Return a mean with its 95% interval."""
    if not np.isfinite(e.value):
        return "–"
    mean = number(e.value, digits)
    if not np.isfinite(e.low) or e.low == e.high:
        return mean
    return f"{mean} [{number(e.low, digits)}, {number(e.high, digits)}]"


def number(x: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant ones, and all those before the decimal point."""
    if not np.isfinite(x):
        return "∞" if x > 0 else "–"
    return f"{x:,.0f}" if abs(x) >= 10 ** (digits - 1) else f"{x:#.{digits}g}".rstrip("0").rstrip(".")
