"""Pareto fronts of a sweep: two metrics against each other, and the runs that are not dominated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.metrics import metric_info
from kvgym.report.chart import Chart
from kvgym.report.plots import axis_label, metric_quantity
from kvgym.report.style import INK, policy_styles, styled, text_of
from kvgym.report.sweep.plots import value_axis
from kvgym.report.sweep.runs import Point, SweepRuns

Member = tuple[str, Point]
"""A policy and a point."""


def pareto_front(x: Sequence[float], y: Sequence[float], *, lower_x: bool, lower_y: bool) -> list[int]:
    """Return the indices of the pairs that no other pair dominates, by being as good in both and better in one.

    Args:
        x: numbers; pairs with a number that is not finite are excluded.
        y: numbers, of the same length.
        lower_x: whether lower is better in x.
        lower_y: whether lower is better in y.

    Returns:
        Indices in the order of x, including all equal pairs.
    """
    a, b = (np.asarray(v, dtype=np.float64) * (1 if low else -1) for v, low in ((x, lower_x), (y, lower_y)))
    known = np.flatnonzero(np.isfinite(a) & np.isfinite(b))
    front, best, last = [], np.inf, (np.nan, np.nan)
    for i in known[np.lexsort((b[known], a[known]))]:
        if b[i] < best or (a[i], b[i]) == last:
            front.append(int(i))
            best, last = b[i], (a[i], b[i])
    return sorted(front, key=lambda i: (x[i], y[i]))


def front_of(runs: SweepRuns, x: str, y: str) -> list[Member]:
    """Return the members of the front of two metrics, in the order of x; clairvoyant policies are excluded."""
    members = [
        (policy, point)
        for policy in runs.policies
        for point in runs.points
        if policy not in runs.clairvoyant and runs.has(policy, point)
    ]
    means = [[runs.estimate(*member, metric).value for member in members] for metric in (x, y)]
    lower = [metric_info(metric).lower_is_better is not False for metric in (x, y)]
    return [members[i] for i in pareto_front(*means, lower_x=lower[0], lower_y=lower[1])]


@styled
def front_figure(runs: SweepRuns, x: str, y: str, front: Sequence[Member], *, width: float) -> Chart:
    """Draw every policy at every point, mean against mean, with 95 % intervals, and the front.

    Args:
        runs: the sweep.
        x: metric of the horizontal axis.
        y: metric of the vertical axis.
        front: see :func:`front_of`.
        width: width in inches.
    """
    chart = Chart(runs.policies, figsize=(width, 3.8), layout="constrained")
    ax = chart.add_subplot()
    quantities = (metric_quantity(x), metric_quantity(y))
    chart.panel(ax, *quantities)
    styles = policy_styles(runs.policies)
    seen: dict[str, list[float]] = {"x": [], "y": []}
    for policy in runs.policies:
        points = [p for p in runs.points if runs.has(policy, p)]
        values: dict[str, NDArray[np.float64]] = {}
        for axis, metric in (("x", x), ("y", y)):
            estimates = [runs.estimate(policy, p, metric) for p in points]
            for end, name in (("", "value"), ("_low", "low"), ("_high", "high")):
                values[axis + end] = np.array([getattr(e, name) for e in estimates])
                seen[axis] += values[axis + end].tolist()
        style = styles[policy]
        drawn = ax.errorbar(
            values["x"], values["y"], xerr=_whiskers(values, "x"), yerr=_whiskers(values, "y"), linestyle="none",
            marker=style.marker.name, ms=5, color=style.color, elinewidth=0.7, alpha=0.85,
            label=text_of(policy + runs.star(policy)),
        )  # fmt: skip
        text = [runs.remark(policy, p) + ("; on the front" if (policy, p) in front else "") for p in points]
        chart.record(ax, policy, "points", values, artists=drawn.get_children(), text=text)
    means = np.array([[runs.estimate(*member, metric).value for metric in (x, y)] for member in front])
    if len(means):
        ax.plot(*means.T, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1.5)
        ax.plot(*means.T, "o", ms=10, mfc="none", mec=INK, mew=0.9)
    value_axis(ax, "x", seen["x"])
    value_axis(ax, "y", seen["y"])
    ax.set_xlabel(axis_label(quantities[0]))
    ax.set_ylabel(axis_label(quantities[1]))
    return chart


def _whiskers(values: Mapping[str, NDArray[np.float64]], axis: str) -> NDArray[np.float64]:
    """Return the lengths of the intervals below and above, 0 if there is none, shape (2, n)."""
    ends = (values[axis] - values[f"{axis}_low"], values[f"{axis}_high"] - values[axis])
    return np.nan_to_num(np.abs(ends))
