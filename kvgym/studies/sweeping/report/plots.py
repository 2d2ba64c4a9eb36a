"""Curves of a sweep: a metric against a swept field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.plots import metric_quantity
from kvgym.studies.sweeping.report.runs import Point, SweepRuns, SweptField, spans_decades, written
from kvgym.studies.sweeping.report.slices import Slice

LETTERS = 30
"""Letters that fit side by side below half the width of a figure."""
MAX_TICKS = 7


def curves(runs: SweepRuns, piece: Slice, metric: str) -> Chart:
    """Means over seeds with 95 % intervals against a swept field, a line per policy; no lines between categories.

    Args:
        runs: the sweep.
        piece: the points, with one field on the axis.
        metric: metric of the vertical axis.
    """
    field = runs.fields[piece.axes[0]]
    numbers = range(len(runs.policies))
    panels = [
        (heading, [s for k in numbers for s in _line(runs, k, points, piece.axes[0], metric)])
        for heading, points in piece.panels
    ]
    shown = [
        np.asarray(s.values[name]) for _, lines in panels for s in lines for name in ("y", "y_low", "y_high")
    ]
    y = value_axis(metric_quantity(metric), [v for column in shown for v in column.tolist()])
    count = len(panels)
    wide = not field.numeric and sum(len(written(v)) + 2 for v in field.known) > LETTERS
    columns = 1 if wide else 2 if count == 4 else count
    height = 185.0 if count == 1 else 85.0 if wide else 120.0
    return Chart([Panel(_field_axis(field), y, lines, height, title) for title, lines in panels], columns)


def _line(runs: SweepRuns, number: int, points: Sequence[Point], place: int, metric: str) -> list[Series]:
    """Return the line of a policy, if it has any value."""
    field, policy = runs.fields[place], runs.policies[number]
    mine = sorted((p for p in points if runs.has(policy, p)), key=lambda p: field.values.index(p[place]))
    estimates = [runs.estimate(policy, p, metric) for p in mine]
    if not any(np.isfinite(e.value) for e in estimates):
        return []
    if field.numeric:
        x = np.array([p[place] for p in mine], dtype=np.float64)
    else:  # side by side
        offset = 0.6 * ((number + 0.5) / len(runs.policies) - 0.5)
        x = np.array([field.values.index(p[place]) + offset for p in mine])
    ends = {"y": "value", "y_low": "low", "y_high": "high"}
    values = {name: [getattr(e, end) for e in estimates] for name, end in ends.items()}
    text = [runs.remark(policy, p) for p in mine]
    return [Series(policy, policy, "points", {"x": x, **values}, text, {"line": field.numeric})]


def value_axis(quantity: Quantity, values: Sequence[float]) -> Axis:
    """Return the axis of a metric that shows all values; those that are not finite are ignored."""
    return Axis.over(quantity, values, log=spans_decades(values))


def _field_axis(field: SweptField) -> Axis:
    """Return the horizontal axis of a swept field."""
    if not field.numeric:
        return Axis.named(field.quantity._replace(names=tuple(written(v) for v in field.known)))
    values = [float(v) for v in field.known]
    steps = np.diff(np.log(values) if field.log else values)
    even = len(steps) == 0 or np.allclose(steps, steps[0], rtol=0.05)
    ticks = tuple(values) if even and len(values) <= MAX_TICKS else ()
    low, high = values[0], values[-1]
    if field.log:
        room = (high / low) ** 0.05
        return Axis(field.quantity, low / room, high * room, log=True, ticks=ticks)
    room = 0.05 * (high - low) or 0.5
    return Axis(field.quantity, low - room, high + room, ticks=ticks)
