"""Pareto fronts of a sweep: two metrics against each other, and the runs that are not dominated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvgym.metrics.catalogue import metric_info
from kvgym.report.chart import Chart, Panel, Series
from kvgym.report.plots import metric_quantity
from kvgym.studies.sweeping.report.plots import value_axis
from kvgym.studies.sweeping.report.runs import Point, SweepRuns

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


def front_figure(runs: SweepRuns, x: str, y: str, front: Sequence[Member]) -> Chart:
    """Return every policy at every point, mean against mean, with 95 % intervals, and the front.

    Args:
        runs: the sweep.
        x: metric of the horizontal axis.
        y: metric of the vertical axis.
        front: see :func:`front_of`.
    """
    means = [[runs.estimate(*member, metric).value for member in front] for metric in (x, y)]
    look = {
        "color": "currentColor",
        "line": True,
        "dash": "4 2",
        "width": 0.9,
        "size": 10,
        "ring": True,
        "quiet": True,
    }
    drawn = [Series("front", None, "points", {"x": means[0], "y": means[1]}, look=look)]
    seen: dict[str, list[float]] = {"x": [], "y": []}
    for policy in runs.policies:
        points = [p for p in runs.points if runs.has(policy, p)]
        values: dict[str, list[float]] = {}
        for axis, metric in (("x", x), ("y", y)):
            estimates = [runs.estimate(policy, p, metric) for p in points]
            for end, name in (("", "value"), ("_low", "low"), ("_high", "high")):
                values[axis + end] = [getattr(e, name) for e in estimates]
                seen[axis] += values[axis + end]
        text = [runs.remark(policy, p) + ("; on the front" if (policy, p) in front else "") for p in points]
        drawn.append(
            Series(policy + runs.star(policy), policy, "points", values, text, {"size": 5, "alpha": 0.85})
        )
    across, up = (value_axis(metric_quantity(metric), seen[axis]) for axis, metric in (("x", x), ("y", y)))
    return Chart([Panel(across, up, drawn, 220.0)])
