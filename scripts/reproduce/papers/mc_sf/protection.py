"""The smallest margin α with which the α-protection greedy algorithm does not clear forever (Section 5.2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import Experiment, Finding, Outcome, Scale, Table, Verdict
from harness.figures import new_figure, palette, published
from papers.mc_sf.setting import LATENCY, number, play

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = {"high": 0.21, "low": 0.24}

GRID = tuple(k / 100 for k in range(1, 31))
"""The paper's step of 0.01."""


def run(scale: Scale) -> Outcome:
    """Run every α of the grid and count the seeds that end.

    An α works where it and all larger ones end. The published value is reproduced where it lies within those of the
    seeds.
    """
    grid = scale.pick(GRID, GRID[::10])
    sizes, seeds = scale.pick((1000, 10_000), (500,)), scale.number_of_seeds(10, 1)
    findings, rows = [], []
    shares: dict[str, list[float]] = {}
    for demand, theirs in PUBLISHED.items():
        for num_requests in sizes:
            specs = [f"alpha_greedy:alpha={alpha}" for alpha in grid]
            found = play(demand, specs, num_requests, seeds, scale)
            ends = np.array([np.isfinite(found.values(spec, LATENCY)) for spec in specs])  # (α, seeds)
            each = [_smallest(grid, ends[:, k]) for k in range(seeds)]
            smallest = max(each)
            label = f"{demand}, {num_requests:,} requests"
            shares[label] = ends.mean(axis=1).tolist()
            rows.append(
                (demand, f"{num_requests:,}", f"{theirs}", number(smallest), f"{min(each)} to {max(each)}")
            )
            if num_requests == sizes[-1]:
                findings.append(
                    Finding(
                        f"smallest α that works at {demand} demand",
                        f"{theirs}",
                        f"{smallest} with {num_requests:,} requests ({min(each)} to {max(each)} by seed)",
                        Verdict.REPRODUCED if min(each) <= theirs <= max(each) else Verdict.NOT_REPRODUCED,
                        "Small α livelock as published, but from another α on: it depends on the largest "
                        "remaining growth of the running requests, so on the lengths.",
                    )
                )
    head = ("demand", "requests", "published", "here, all seeds", "by seed")
    return Outcome(findings, [Table(head, rows)], {"alphas": list(grid), "shares": shares})


def _smallest(grid: tuple[float, ...], ends: np.ndarray) -> float:
    """Return the smallest α from which on all end; infinity if the largest does not."""
    failed = np.flatnonzero(~ends)
    first = failed[-1] + 1 if len(failed) else 0
    return grid[first] if first < len(grid) else float("inf")


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the share of seeds that end against α."""
    figure, (axes,) = new_figure(panel=(6.0, 3.2))
    shares = data["shares"]
    for color, (label, share) in zip(palette(len(shares)), shares.items(), strict=True):
        axes.plot(data["alphas"], share, color=color, marker="o", markersize=3, label=label)
    published(axes, list(PUBLISHED.values()), [1] * len(PUBLISHED), "published smallest α: 0.21 and 0.24")
    axes.set(xlabel="α", ylabel="share of seeds that end", ylim=(-0.05, 1.1))
    axes.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="smallest-alpha",
    title="The smallest margin that works",
    source="Section 5.2.1",
    run=run,
    draw=draw,
)
