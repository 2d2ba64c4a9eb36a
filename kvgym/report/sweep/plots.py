"""Curves of a sweep: a metric against a swept field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from kvgym.report.chart import Chart
from kvgym.report.plots import axis_label, metric_quantity
from kvgym.report.style import PLAIN, LineStyle, log_ticks, policy_styles, styled, text_of
from kvgym.report.sweep.runs import Point, SweepRuns, SweptField, spans_decades, written
from kvgym.report.sweep.slices import Slice

LETTERS_PER_INCH = 11.0
MARGIN = 0.6
"""Margin beside the axes of a panel, inches."""
MAX_TICKS = 7


@styled
def curves(runs: SweepRuns, piece: Slice, metric: str, *, width: float) -> Chart:
    """Means over seeds with 95 % intervals against a swept field, a line per policy; no lines between categories.

    Args:
        runs: the sweep.
        piece: the points, with one field on the axis.
        metric: metric of the vertical axis.
        width: width in inches.
    """
    field, styles, quantity = (
        runs.fields[piece.axes[0]],
        policy_styles(runs.policies),
        metric_quantity(metric),
    )
    count = len(piece.panels)
    wide = not field.numeric and not names_fit(field.known, width / 2 - MARGIN)
    columns = 1 if wide else 2 if count == 4 else count
    rows = -(-count // columns)
    height = 3.3 if count == 1 else 0.5 + (1.4 if wide else 2.0) * rows
    chart = Chart(runs.policies, figsize=(width, height), layout="constrained")
    grid = chart.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    seen: list[float] = []
    for ax, (title, points) in zip(grid, piece.panels, strict=False):
        chart.panel(ax, field.quantity, quantity, title=title)
        if title:
            ax.set_title(text_of(title.partition(" = ")[2]), pad=3)  # the page names the field
        for number, policy in enumerate(runs.policies):
            seen += _line(chart, ax, runs, policy, points, piece.axes[0], metric, number, styles[policy])
    for ax in grid[count:]:
        ax.set_visible(False)
    value_axis(grid[0], "y", seen)
    for i, ax in enumerate(grid[:count]):
        _field_axis(ax, field, width / columns - MARGIN)
        last = i + columns >= count  # no panel below
        ax.tick_params(labelbottom=last)
        if last:
            ax.set_xlabel(text_of(axis_label(field.quantity)))
    chart.supylabel(axis_label(quantity), fontsize="medium")
    return chart


def _line(
    chart: Chart, ax: Axes, runs: SweepRuns, policy: str, points: Sequence[Point], place: int, metric: str,
    number: int, style: LineStyle,
) -> list[float]:  # fmt: skip
    """Draw a policy's line; return its values."""
    field = runs.fields[place]
    mine = sorted((p for p in points if runs.has(policy, p)), key=lambda p: field.values.index(p[place]))
    estimates = [runs.estimate(policy, p, metric) for p in mine]
    if not any(np.isfinite(e.value) for e in estimates):
        return []
    if field.numeric:
        x = np.array([p[place] for p in mine], dtype=np.float64)
    else:  # side by side
        offset = 0.6 * ((number + 0.5) / len(runs.policies) - 0.5)
        x = np.array([field.values.index(p[place]) + offset for p in mine])
    y, low, high = (np.array([getattr(e, name) for e in estimates]) for name in ("value", "low", "high"))
    drawn = ax.errorbar(
        x, y, yerr=np.nan_to_num(np.abs([y - low, high - y])), color=style.color, elinewidth=0.9, ms=4.5,
        linestyle=style.dashes if field.numeric else "none", marker=style.marker.name, label=text_of(policy),
    )  # fmt: skip
    text = [runs.remark(policy, p) for p in mine]
    values = {"x": x, "y": y, "y_low": low, "y_high": high}
    chart.record(ax, policy, "points", values, artists=drawn.get_children(), text=text)
    return [v for v in (*y, *low, *high) if np.isfinite(v)]


def value_axis(ax: Axes, which: str, values: Sequence[float]) -> None:
    """Set up the axis of a metric.

    Args:
        ax: the axes.
        which: ``"x"`` or ``"y"``.
        values: all values to show; those that are not finite are ignored.
    """
    axis = ax.yaxis if which == "y" else ax.xaxis
    known = [v for v in values if np.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if spans_decades(known):
        room = (high / low) ** 0.06
        ax.set(**{f"{which}scale": "log", f"{which}lim": (low / room, high * room)})
        log_ticks(axis)
        return
    low, high = min(low, 0.0), max(high, 0.0)
    ax.set(**{f"{which}lim": (low * 1.06, high * 1.06 if high > low else 1.0)})
    axis.set_major_formatter(PLAIN)


def _field_axis(ax: Axes, field: SweptField, room: float) -> None:
    """Set up the horizontal axis of a swept field.

    Args:
        ax: the axes.
        field: the field.
        room: space for labels, inches.
    """
    if not field.numeric:
        name_ticks(ax, [written(v) for v in field.known], room)
        ax.set_xlim(-0.5, len(field.known) - 0.5)
        return
    values = [float(v) for v in field.known]
    if field.log:
        ax.set_xscale("log")
    labels = [written(v) for v in field.known]
    steps = np.diff(np.log(values) if field.log else values)
    even = len(steps) == 0 or np.allclose(steps, steps[0], rtol=0.05)
    if even and len(values) <= MAX_TICKS and names_fit(labels, room):
        ax.xaxis.set_major_locator(FixedLocator(values))
        ax.xaxis.set_major_formatter(PLAIN)
        ax.xaxis.set_minor_locator(NullLocator())
    elif field.log:
        log_ticks(ax.xaxis)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(max(3, int(1.6 * room))))
        ax.xaxis.set_major_formatter(PLAIN)


def names_fit(names: Sequence[str], room: float) -> bool:
    """Whether names fit side by side below an axis of this length, inches."""
    return len(names) * (max(map(len, names)) + 2) <= room * LETTERS_PER_INCH


def name_ticks(ax: Axes, names: Sequence[str], room: float) -> None:
    """Label the ticks 0, 1, 2, … with names, slanted and shortened if there is little space."""
    places = range(len(names))
    if names_fit(names, room):
        ax.set_xticks(places, [text_of(name) for name in names])
        return
    short = [name if len(name) <= 18 else name[:17] + "…" for name in names]
    ax.set_xticks(places, [text_of(name) for name in short], rotation=35, ha="right", rotation_mode="anchor")
