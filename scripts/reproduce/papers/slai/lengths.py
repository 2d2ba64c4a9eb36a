"""Table 1, the lengths: what can be fitted, and what no distribution satisfies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict, new_figure, palette
from kvgym.experiments.scenario import load_scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = {"prompt": (1730, 5696, 2088), "output": (415, 834, 101)}  # median, P90, standard deviation


def least_deviation(median: float, p90: float) -> float:
    """Return the least standard deviation of any distribution with a median and a 90th percentile.

    At least half of it lies at the median or below and a tenth at the 90th percentile or above. Nearest to its mean m
    it has just these there and the rest at m itself, where that is between the two: m = (5 median + P90) / 6.
    """
    mean = (5 * median + p90) / 6
    return math.sqrt(0.5 * (median - mean) ** 2 + 0.1 * (p90 - mean) ** 2)


def run(scale: Scale) -> Outcome:
    """Compare the workload's medians, P90s and deviations with the printed ones.

    Refuted is a printed deviation below the least one that its median and P90 allow.
    """
    scenario = load_scenario("slai-5")
    seeds = scale.pick(40, 2)
    made, capacity = scenario.make_workload(), scenario.make_system().kv_capacity
    tables = [scenario.sample(made, seed, capacity) for seed in range(seeds)]
    findings, rows, data = list[Finding](), list[list[str]](), dict[str, Any]()
    for name, (median, p90, deviation) in PUBLISHED.items():
        values = np.concatenate([getattr(table, f"{name}_len") for table in tables])
        ours = np.median(values), np.quantile(values, 0.9), values.std()
        least = least_deviation(median, p90)
        rows.append(
            [name, f"{median} / {p90} / {deviation}", " / ".join(f"{x:.0f}" for x in ours), f"{least:.0f}"]
        )
        data[name] = np.quantile(values, np.linspace(0.01, 0.99, 99)).tolist()
        possible = deviation >= least
        findings.append(
            Finding(
                f"{name} lengths: median, P90, standard deviation",
                f"{median}, {p90}, {deviation}",
                ", ".join(f"{x:.0f}" for x in ours),
                Verdict.CONSTRUCTION if possible else Verdict.REFUTED,
                "lognormal, fitted to median and P90, capped at 8,192 tokens together with the other length: only the "
                "deviation is a result"
                if possible
                else f"no distribution with this median and P90 has a deviation below {least:.0f}: half of it at the "
                "median, a tenth at P90, the rest at the mean; median and P90 are used",
            )
        )
    head = ["lengths", "published: median / P90 / std", "here", "least std with this median and P90"]
    return Outcome(findings, [Table(head, rows)], data)


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw both distributions, with the published medians and P90s."""
    from harness import published

    figure, (axes,) = new_figure()
    for (name, (median, p90, _)), colour in zip(PUBLISHED.items(), palette(2), strict=True):
        axes.plot(data[name], np.linspace(1, 99, 99), color=colour, label=name)
        published(axes, [median, p90], [50, 90], "published" if name == "prompt" else "_")
    axes.set(xscale="log", xlabel="tokens", ylabel="percent of requests, at most")
    axes.legend()
    return figure


LENGTHS = Experiment(
    "table-1", "Lengths of the requests", "Table 1", run, draw, covers=("Table 1",), cheap=True
)
