"""Heat maps of a sweep: a metric over two numeric fields."""

from __future__ import annotations

import numpy as np

from kvgym.experiments.statistics import Estimate
from kvgym.report.chart import Axis, Chart, Panel, Quantity, Series
from kvgym.report.names import title
from kvgym.report.numbers import figures
from kvgym.report.plots import metric_quantity
from kvgym.studies.sweeping.report.runs import Point, SweepRuns, SweptField, spans_decades, written
from kvgym.studies.sweeping.report.slices import Slice

MAX_COLUMNS = 9
"""Maximum number of columns of a map with numbers in its cells."""
_ENDS = {"z": "value", "z_low": "low", "z_high": "high"}
Cell = tuple[int, int, Point]
"""Column, row, and the point drawn there."""


def heat_maps(runs: SweepRuns, piece: Slice, metric: str) -> list[tuple[Chart, str | None]]:
    """Return a map per policy, and their common colour scale.

    Args:
        runs: the sweep.
        piece: the points, with two fields on the axes and one panel.
        metric: metric shown by colour.

    Returns:
        The maps with their policies, and last the scale without a policy; empty if no policy has a value.
    """
    cells = {p: found for p in runs.policies if (found := _cells(runs, p, piece))}
    means = [runs.estimate(policy, cell[2], metric).value for policy in cells for cell in cells[policy]]
    finite = [mean for mean in means if np.isfinite(mean)]
    if not finite:
        return []
    scale = Axis(metric_quantity(metric), min(finite), max(finite), spans_decades(finite))
    made: list[tuple[Chart, str | None]] = [
        (_map(runs, policy, piece, cells[policy], metric, scale), policy) for policy in cells
    ]
    return [*made, (Chart([Panel(scale, Axis(Quantity(""), 0, 1), (), 14.0, z=scale)]), None)]


def _cells(runs: SweepRuns, policy: str, piece: Slice) -> list[Cell]:
    across, up = (runs.fields[i].known for i in piece.axes)
    a, b = piece.axes
    return [(across.index(p[a]), up.index(p[b]), p) for p in piece.panels[0][1] if runs.has(policy, p)]


def _map(runs: SweepRuns, policy: str, piece: Slice, cells: list[Cell], metric: str, scale: Axis) -> Chart:
    x, y = (_axis(runs.fields[i]) for i in piece.axes)
    columns, rows = (len(axis.quantity.names) for axis in (x, y))
    estimates = [runs.estimate(policy, point, metric) for _, _, point in cells]
    values = {"x": [c[0] for c in cells], "y": [c[1] for c in cells]}
    values |= {end: [getattr(e, name) for e in estimates] for end, name in _ENDS.items()}
    text = [runs.remark(policy, point) for _, _, point in cells]
    notes = [
        _note(runs, policy, point, e, columns) for (_, _, point), e in zip(cells, estimates, strict=True)
    ]
    drawn = Series(policy, policy, "cells", values, text, {"notes": notes})
    return Chart([Panel(x, y, [drawn], min(21.6 * rows, 324.0), policy, scale)])


def _axis(field: SweptField) -> Axis:
    """Return the axis of a field, a name for each value."""
    names = tuple(written(v) for v in field.known)
    return Axis.named(field.quantity._replace(label=title(field.title), names=names))


def _note(runs: SweepRuns, policy: str, point: Point, estimate: Estimate, columns: int) -> str:
    """Return the text of a cell."""
    if runs.failed(policy, point):
        return "failed" if columns <= MAX_COLUMNS else "×"
    return figures(estimate.value) if columns <= MAX_COLUMNS else ""
