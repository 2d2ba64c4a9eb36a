"""Curves that look the same: they are drawn as one line, or a sentence names the one that hides another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvgym.report.chart import Axis, Chart, Panel, Series

APART = 0.012
"""Distance of two curves that can be seen, as a share of the height of their axes; a line is 0.008 wide."""
PLACES = 800
"""Number of places at which curves are compared."""


def join_alike(chart: Chart) -> Chart:
    """Return a chart in which policies with steps that look the same in every panel share one line."""
    lines = [
        [s for s in panel.series if s.policy is not None and s.kind == "steps"] for panel in chart.panels
    ]
    policies = list(dict.fromkeys(str(s.policy) for own in lines for s in own))
    seen = {
        policy: np.concatenate(
            [
                _heights(s, panel)
                for panel, own in zip(chart.panels, lines, strict=True)
                for s in own
                if s.policy == policy
            ]
        )
        for policy in policies
    }
    groups: list[list[str]] = []
    for policy in policies:
        for group in groups:
            first = seen[group[0]]
            if len(first) == len(seen[policy]) and np.allclose(
                first, seen[policy], rtol=0, atol=APART, equal_nan=True
            ):
                group.append(policy)
                break
        else:
            groups.append([policy])
    joint = {group[0]: group for group in groups if len(group) > 1}
    hidden = {policy for group in joint.values() for policy in group[1:]}

    def shown(series: Series) -> Series:
        group = joint.get(series.policy or "", [])
        return replace(series, name=", ".join(group), also=tuple(group[1:])) if group else series

    panels = [
        replace(panel, series=[shown(s) for s in panel.series if s.policy not in hidden])
        for panel in chart.panels
    ]
    return replace(chart, panels=panels)


def joint_policies(charts: Iterable[Chart]) -> list[tuple[str, ...]]:
    """Return the policies of every joint line."""
    series = (s for chart in charts for panel in chart.panels for s in panel.series)
    return list(dict.fromkeys((str(s.policy), *s.also) for s in series if s.also))


def hidden_curves(panel: Panel) -> list[tuple[str, str]]:
    """Return pairs of policies: the first one's curve lies below the curve of the second, which is drawn later."""
    curves = [s for s in panel.series if s.policy is not None and s.look.get("line")]
    heights = [_heights(s, panel) for s in curves]
    found = []
    for i, own in enumerate(heights):
        there = np.isfinite(own) & (own > 0) & (own < 1)
        for k in range(len(curves) - 1, i, -1):
            if there.any() and (np.abs(own - heights[k])[there] < APART).mean() > 0.95:  # NaN is apart
                found.append((str(curves[i].policy), str(curves[k].policy)))
                break
    return found


def _heights(series: Series, panel: Panel) -> NDArray[np.float64]:
    """Return the height of a curve at places along the axes, as a share of the panel; NaN where it is not drawn."""
    x, y = (np.asarray(series.values[name], np.float64) for name in ("x", "y"))
    ends = [(panel.x.low, panel.x.high), *([panel.x.start] if panel.x.start else [])]
    places = np.concatenate(
        [np.linspace(low, high, PLACES) for low, high in (_scaled(panel.x, end) for end in ends)]
    )
    at, height = _scaled(panel.x, x), _scaled(panel.y, y)
    low, high = _scaled(panel.y, (panel.y.low, panel.y.high))
    height = np.clip((height - low) / (high - low), -0.5, 1.5)
    if not len(at):
        return np.full(len(places), np.nan)
    if series.kind == "steps":
        index = np.searchsorted(at, places, side="right") - 1
        return np.where(index < 0, np.nan, height[np.maximum(index, 0)])
    return np.asarray(np.interp(places, at, height, np.nan, np.nan), np.float64)


def _scaled(axis: Axis, values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    return np.log(np.maximum(found, 1e-300)) if axis.log else found
