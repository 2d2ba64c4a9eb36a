"""Interpolation tables in a kernel's parameter array: packing in Python, look-up in compiled code.

A table begins with its numbers of nodes, so that its place is enough to read it: a curve has n, abscissae and
ordinates; a surface the numbers of rows and columns, row abscissae, column abscissae and the values row by row; a star
n, abscissae, and intercepts and slopes of the n - 1 segments. Beyond the last abscissa a table continues with a slope
fixed when it was packed; below the first it is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.compiling.kernel import jit

FAR = float(2**40)
"""Abscissa of the extra node for the extrapolation of a table."""

Floats = NDArray[np.float64]


@jit
def locate(params: Any, start: int, count: int, x: float) -> Any:
    """Return the largest i <= count - 2 with ``params[start + i] <= x``, or 0 if there is none."""
    low = 0
    span = count - 1
    while span > 1:
        half = span >> 1
        if params[start + low + half] <= x:
            low += half
        span -= half
    return low


@jit
def curve(params: Any, place: float, x: float) -> Any:
    """Interpolate linearly in a curve packed at ``place``."""
    start = int(place) + 1
    count = int(params[start - 1])
    i = start + locate(params, start, count, x)
    x0 = params[i]
    if x <= x0:
        return params[i + count]
    y0 = params[i + count]
    return y0 + (params[i + count + 1] - y0) * ((x - x0) / (params[i + 1] - x0))


@jit
def surface(params: Any, place: float, x: float, y: float) -> Any:
    """Interpolate bilinearly in a surface packed at ``place``."""
    start = int(place) + 2
    rows, columns = int(params[start - 2]), int(params[start - 1])
    i = locate(params, start, rows, x)
    j = locate(params, start + rows, columns, y)
    x0 = params[start + i]
    y0 = params[start + rows + j]
    u = (x - x0) / (params[start + i + 1] - x0) if x > x0 else 0.0
    v = (y - y0) / (params[start + rows + j + 1] - y0) if y > y0 else 0.0
    k = start + rows + columns + i * columns + j
    low = params[k] + (params[k + 1] - params[k]) * v
    k += columns
    high = params[k] + (params[k + 1] - params[k]) * v
    return low + (high - low) * u


@jit
def star(params: Any, place: float, amount: float, weighted: float) -> Any:
    """Return ``amount * f(weighted / amount)`` for a piecewise linear f packed at ``place``, also for amount 0."""
    start = int(place) + 1
    count = int(params[start - 1])
    x = weighted / amount if amount > 0.0 else 1.0e12
    i = start + count + locate(params, start, count, x)
    return params[i] * amount + params[i + count - 1] * weighted


def lay_out(kind: Callable[..., tuple[float, ...]], tables: Mapping[str, Floats], **numbers: float) -> Floats:
    """Return the parameters of a kernel with tables.

    Args:
        kind: the named tuple by which the kernel reads them.
        tables: packed tables by field; the field becomes the place of its table.
        **numbers: the other fields.

    Returns:
        float64 array of shape (k,): the fields, then the tables.
    """
    sizes = [len(numbers) + len(tables), *(len(table) for table in tables.values())]
    places = dict(zip(tables, np.cumsum(sizes), strict=False))
    return np.concatenate([kind(**places, **numbers), *tables.values()])


def outer_slope(x: Floats, y: Floats) -> Any:
    """Return the slope of the outer half of curves.

    Args:
        x: ascending abscissae, shape (n,).
        y: ordinates of one curve or of several, shape (..., n).

    Returns:
        Ordinate per abscissa, shape (...).
    """
    middle = min(int(np.searchsorted(x, x[-1] / 2)), len(x) - 2)
    return (y[..., -1] - y[..., middle]) / (x[-1] - x[middle])


def pack_curve(x: ArrayLike, y: ArrayLike, slope: float) -> Floats:
    """Return a curve as parameters.

    Args:
        x: ascending abscissae, shape (n,).
        y: ordinates, shape (n,).
        slope: ordinate per abscissa beyond the last node.

    Returns:
        float64 array of shape (1 + 2 * (n + 1),), with n + 1 nodes.
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.concatenate([[len(xs) + 1], xs, [FAR], ys, [ys[-1] + slope * (FAR - xs[-1])]])


def unpack_curve(params: Floats, place: float) -> tuple[Floats, Floats]:
    """Return abscissae and ordinates of a curve packed at ``place``, the far node included."""
    start = int(place) + 1
    count = int(params[start - 1])
    return params[start : start + count], params[start + count : start + 2 * count]


def pack_surface(x: ArrayLike, y: ArrayLike, values: ArrayLike) -> Floats:
    """Return a surface as parameters, with a far node on either axis.

    Beyond an axis the surface continues with the slope of the outer half of that axis. If slopes differ along the
    other axis, they are raised so that the surface never falls.

    Args:
        x: ascending row abscissae, shape (n,).
        y: ascending column abscissae, shape (m,).
        values: ordinates, shape (n, m).

    Returns:
        float64 array of shape (2 + n + 1 + m + 1 + (n + 1) * (m + 1),).
    """
    rows, columns, table = _with_far_nodes(x, y, values)
    return np.concatenate([table.shape, rows, columns, table.ravel()])


def unpack_surface(params: Floats, place: float) -> tuple[Floats, Floats, Floats]:
    """Return row abscissae, column abscissae and values of a surface packed at ``place``, far nodes included."""
    start = int(place) + 2
    rows, columns = int(params[start - 2]), int(params[start - 1])
    table = params[start + rows + columns :][: rows * columns]
    return params[start:][:rows], params[start + rows :][:columns], table.reshape(rows, columns)


def pack_star(x: ArrayLike, y: ArrayLike) -> Floats:
    """Return a concave, non-decreasing curve as parameters of :func:`star`; its last segment has no end.

    Args:
        x: ascending abscissae, the first 0, shape (n,).
        y: ordinates, shape (n,); rounding may have violated both bounds slightly.
    """
    nodes, values = np.asarray(x, np.float64), np.array(y, np.float64)
    for i in range(1, len(values)):
        most = values[i - 1] * nodes[i] / nodes[i - 1] if i > 1 else values[i]
        values[i] = min(max(values[i], values[i - 1]), most)
    slopes = np.maximum(np.diff(values) / np.diff(nodes), 0.0)
    intercepts = np.maximum(values[:-1] - slopes * nodes[:-1], 0.0)
    return np.concatenate([[len(nodes)], nodes[:-1], [FAR], intercepts, slopes])


def unpack_star(params: Floats, place: float) -> tuple[Floats, Floats, Floats]:
    """Return nodes, intercepts and slopes of a curve packed by :func:`pack_star` at ``place``."""
    start = int(place) + 1
    count = int(params[start - 1])
    nodes, intercepts, slopes = np.split(params[start:][: 3 * count - 2], [count, 2 * count - 1])
    return nodes, intercepts, slopes


def surface_values(x: ArrayLike, y: ArrayLike, values: ArrayLike, at_x: Floats, at_y: Floats) -> Floats:
    """Interpolate a surface outside compiled code, equal to :func:`surface` after :func:`pack_surface`.

    Args:
        x: ascending row abscissae, shape (n,).
        y: ascending column abscissae, shape (m,).
        values: ordinates, shape (n, m).
        at_x: row coordinates of the points, shape (k,).
        at_y: column coordinates of the points, shape (k,).

    Returns:
        Ordinates, shape (k,).
    """
    return bilinear(*_with_far_nodes(x, y, values), at_x, at_y)


def bilinear_weights(nodes: Floats, x: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the lower node of each x and the share of the upper one, clipped to the grid.

    Args:
        nodes: ascending, shape (n,).
        x: shape (k,).
    """
    lower = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    share = (x - nodes[lower]) / (nodes[lower + 1] - nodes[lower])
    return lower, np.clip(share, 0.0, 1.0)


def bilinear(rows: Floats, columns: Floats, table: Floats, x: Floats, y: Floats) -> Floats:
    """Interpolate a surface at points inside its grid, clipped to its edges outside.

    Args:
        rows: shape (n,).
        columns: shape (m,).
        table: shape (n, m).
        x: row coordinates, shape (k,).
        y: column coordinates, shape (k,).
    """
    i, u = bilinear_weights(rows, x)
    j, v = bilinear_weights(columns, y)
    low = table[i, j] * (1 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1 - v) + table[i + 1, j + 1] * v
    result: Floats = low * (1 - u) + high * u
    return result


def _with_far_nodes(x: ArrayLike, y: ArrayLike, values: ArrayLike) -> tuple[Floats, Floats, Floats]:
    xs, ys, table = np.asarray(x, np.float64), np.asarray(y, np.float64), np.asarray(values, np.float64)
    table = np.column_stack([table, np.maximum.accumulate(_far(ys, table))])
    table = np.vstack([table, np.maximum.accumulate(_far(xs, table.T))])
    return np.append(xs, FAR), np.append(ys, FAR), table


def _far(x: Floats, rows: Floats) -> Floats:
    """Return the ordinates at FAR of curves given as rows, from the slope of the outer half."""
    result: Floats = rows[:, -1] + np.maximum(outer_slope(x, rows), 0.0) * (FAR - x[-1])
    return result


def isotonic(values: Floats, weights: Floats | None = None) -> Floats:
    """Return the non-decreasing sequence nearest in weighted least squares (pool adjacent violators).

    Args:
        values: shape (n,).
        weights: positive, shape (n,); None = equal.
    """
    heights: list[float] = []
    masses: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values, np.ones(len(values)) if weights is None else weights, strict=True):
        heights.append(float(value))
        masses.append(float(weight))
        counts.append(1)
        while len(heights) > 1 and heights[-2] > heights[-1]:
            mass = masses[-2] + masses[-1]
            height = (heights[-2] * masses[-2] + heights[-1] * masses[-1]) / mass
            heights[-2:], masses[-2:], counts[-2:] = [height], [mass], [counts[-2] + counts[-1]]
    return np.repeat(heights, counts)
