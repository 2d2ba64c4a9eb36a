"""Shared setting of the experiments on calibrated batch times: eight policies, two demands, formatting."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from harness import Scale
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import Comparison, compare
from kvgym.experiments.statistics import Estimate, mean_interval

LATENCY = "e2e_latency_mean"

POLICIES = {
    "mc_sf": "MC-SF",
    "mc_benchmark": "MC-Benchmark",
    "alpha_greedy:alpha=0.3": "α = 0.3",
    "alpha_greedy:alpha=0.25": "α = 0.25",
    "alpha_beta:alpha=0.2,beta=0.2": "α = 0.2, β = 0.2",
    "alpha_beta:alpha=0.2,beta=0.1": "α = 0.2, β = 0.1",
    "alpha_beta:alpha=0.1,beta=0.2": "α = 0.1, β = 0.2",
    "alpha_beta:alpha=0.1,beta=0.1": "α = 0.1, β = 0.1",
}
"""The policies of Section 5.2 and their names there."""

MC_SF, MC_BENCHMARK = "mc_sf", "mc_benchmark"
DEMANDS = {"high": ("mc-sf-high", "50/s"), "low": ("mc-sf-low", "10/s")}
"""Scenario and rate of each demand."""

Lines = dict[str, list[float]]
"""A series of figures by name of its line."""


def play(
    demand: str,
    policies: Sequence[str],
    num_requests: int,
    seeds: int,
    scale: Scale,
    *,
    predictions: str | None = None,
) -> Comparison:
    """Return the comparison of policies on the same requests.

    Args:
        demand: ``"high"`` or ``"low"``.
        policies: their specs.
        num_requests: requests; those of a smaller number are the first of a larger one.
        seeds: number of seeds.
        scale: where runs are done.
        predictions: what schedulers know of output lengths; None = the truth.
    """
    scenario = build_scenario(DEMANDS[demand][0], num_requests=num_requests, predictions=predictions)
    return compare(scenario, policies, seeds=seeds, jobs=scale.jobs, ray=scale.ray)


def slope(numbers: Sequence[int], latencies: ArrayLike) -> Estimate:
    """Return the least-squares slope of latency over the number of requests, with its interval over seeds.

    Args:
        numbers: numbers of requests, k of them.
        latencies: mean latencies in seconds, shape (k, seeds).
    """
    return mean_interval(np.polyfit(numbers, np.asarray(latencies), 1)[0])


def number(value: float, digits: int = 2) -> str:
    """Return a figure as text; a dash where there is none."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–"


def interval(estimate: Estimate, digits: int = 2) -> str:
    """Return an estimate with its interval as text."""
    ends = f"{number(estimate.low, digits)} – {number(estimate.high, digits)}"
    return f"{number(estimate.value, digits)} ({ends})"


def fraction(estimate: Estimate) -> str:
    """Return a small slope as the paper writes it, 1/x, with its interval; a dash where there is none."""
    value, *ends = (
        f"1/{1 / x:,.0f}" if x > 0 else number(x, 5) for x in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({' – '.join(ends)})"
