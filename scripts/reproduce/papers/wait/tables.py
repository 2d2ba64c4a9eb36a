"""Comparisons as rows of tables, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness import Scale
from kvgym import compare, make_policy
from kvgym.experiments.comparison import Comparison, label_of
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import Estimate

METRICS = ("token_throughput", "e2e_latency_mean", "e2e_latency_p95", "ttft_mean", "evictions", "unfinished")
HEADS = ("output tokens/s", "E2E mean, s", "E2E p95, s", "TTFT mean, s", "evictions", "unfinished")


def play(scenario: Scenario, policies: dict[str, str], seeds: int, scale: Scale) -> Comparison:
    """Return the comparison of named policies on a scenario."""
    return compare(scenario, list(policies.values()), seeds=seeds, jobs=scale.jobs, ray=scale.ray)


def label(spec: str) -> str:
    """Return a policy's label in a comparison."""
    return label_of(make_policy(spec))


def result_rows(outcome: Comparison, names: dict[str, str], reference: str) -> list[list[str]]:
    """Return a row for each policy: the metrics, and the ratio of throughput to the reference policy's."""
    rows = []
    for name, spec in names.items():
        cells = [interval(outcome.estimate(label(spec), m)) for m in METRICS]
        ratio = outcome.ratio(label(spec), label(names[reference]), "token_throughput")
        error = outcome.errors().get(label(spec), "")
        rows.append([name, *cells, interval(ratio)] if not error else [name, error[:140], *[""] * 6])
    return rows


def fluid_shares(outcome: Comparison, names: dict[str, str], fluid: float) -> dict[str, float]:
    """Return the throughput of each policy as a share of the fluid equilibrium's."""
    return {
        name: outcome.estimate(label(spec), "token_throughput").value / fluid for name, spec in names.items()
    }


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
