"""Heat maps of a sweep: a metric over two numeric fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize

from kvgym.experiments.statistics import Estimate
from kvgym.report.chart import Chart, Quantity
from kvgym.report.names import title
from kvgym.report.numbers import figures
from kvgym.report.plots import axis_label, metric_quantity
from kvgym.report.style import log_ticks, styled, text_of
from kvgym.report.sweep.plots import name_ticks
from kvgym.report.sweep.runs import Point, SweepRuns, spans_decades, written
from kvgym.report.sweep.slices import Slice

MAX_COLUMNS = 9
"""Maximum number of columns of a map with numbers in its cells."""
COLOURS = colormaps["cividis"].resampled(64)
_ENDS = {"": "value", "_low": "low", "_high": "high"}
Cell = tuple[int, int, Point]
"""Column, row, and the point drawn there."""


def heat_maps(runs: SweepRuns, piece: Slice, metric: str, *, width: float) -> list[tuple[Chart, str | None]]:
    """Draw a map per policy, and their common colour scale.

    Args:
        runs: the sweep.
        piece: the points, with two fields on the axes and one panel.
        metric: metric shown by colour.
        width: width of each map in inches.

    Returns:
        The maps with their policies, and last the scale without a policy; empty if no policy has a value.
    """
    cells = {p: found for p in runs.policies if (found := _cells(runs, p, piece))}
    means = [runs.estimate(policy, cell[2], metric).value for policy in cells for cell in cells[policy]]
    finite = [mean for mean in means if np.isfinite(mean)]
    if not finite:
        return []
    norm = (LogNorm if spans_decades(finite) else Normalize)(min(finite), max(finite))
    made: list[tuple[Chart, str | None]] = [
        (_map(runs, policy, piece, cells[policy], metric, norm, width), policy) for policy in cells
    ]
    return [*made, (_scale(runs, metric, norm, width), None)]


def _cells(runs: SweepRuns, policy: str, piece: Slice) -> list[Cell]:
    across, up = (runs.fields[i].known for i in piece.axes)
    a, b = piece.axes
    return [(across.index(p[a]), up.index(p[b]), p) for p in piece.panels[0][1] if runs.has(policy, p)]


@styled
def _map(
    runs: SweepRuns, policy: str, piece: Slice, cells: list[Cell], metric: str, norm: Normalize, width: float
) -> Chart:
    across, up = (runs.fields[i] for i in piece.axes)
    names = [tuple(written(v) for v in field.known) for field in (across, up)]
    columns, rows = map(len, names)
    chart = Chart(runs.policies, figsize=(width, 1.0 + min(0.3 * rows, 4.5)), layout="constrained")
    ax = chart.add_subplot()
    chart.panel(
        ax,
        Quantity(title(across.title), names=names[0]),
        Quantity(title(up.title), names=names[1]),
        metric_quantity(metric),
        policy,
    )
    estimates = [runs.estimate(policy, point, metric) for _, _, point in cells]
    means = np.full((rows, columns), np.nan)
    for (i, j, _), estimate in zip(cells, estimates, strict=True):
        means[j, i] = estimate.value
    edges = (np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5)
    drawn = [ax.pcolormesh(*edges, np.ma.masked_invalid(means), cmap=COLOURS, norm=norm)]
    for (i, j, point), estimate in zip(cells, estimates, strict=True):
        note = _note(runs, policy, point, estimate, columns)
        if note:
            dark = np.isfinite(estimate.value) and norm(estimate.value) < 0.5
            color: dict[str, Any] = (
                {"color": "#ffffff" if dark else "#000000"} if np.isfinite(estimate.value) else {}
            )
            ax.text(i, j, note, ha="center", va="center", fontsize=8, **color)
    values = {"x": [c[0] for c in cells], "y": [c[1] for c in cells]}
    values |= {f"z{end}": [getattr(e, name) for e in estimates] for end, name in _ENDS.items()}
    text = [runs.remark(policy, point) for _, _, point in cells]
    chart.record(ax, policy, "cells", values, artists=drawn, text=text)
    name_ticks(ax, names[0], width - 1.0)
    ax.set_yticks(range(rows), names[1])
    if rows > 15:
        ax.set_yticks(range(0, rows, -(-rows // 15)), names[1][:: -(-rows // 15)])
    ax.grid(visible=False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xlabel(text_of(axis_label(across.quantity)))
    ax.set_ylabel(text_of(axis_label(up.quantity)))
    ax.set_title(text_of(policy))
    return chart


def _note(runs: SweepRuns, policy: str, point: Point, estimate: Estimate, columns: int) -> str:
    """Return the text of a cell."""
    if runs.failed(policy, point):
        return "failed" if columns <= MAX_COLUMNS else "×"
    return figures(estimate.value) if columns <= MAX_COLUMNS else ""


@styled
def _scale(runs: SweepRuns, metric: str, norm: Normalize, width: float) -> Chart:
    chart = Chart(runs.policies, figsize=(width, 0.8), layout="constrained")
    ax = chart.add_subplot()
    label = axis_label(metric_quantity(metric))
    bar = chart.colorbar(ScalarMappable(norm, COLOURS), cax=ax, orientation="horizontal", label=label)
    assert bar.solids is not None
    bar.solids.set(rasterized=False, edgecolor="face")  # vector graphics without seams
    for spine in ax.spines.values():
        spine.set_visible(False)
    if isinstance(norm, LogNorm):
        log_ticks(ax.xaxis)
    return chart
