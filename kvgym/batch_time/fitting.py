"""Fits of operator tables: isotonic regression, surfaces on a grid, prefill attention as a sum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import nnls
from scipy.sparse.linalg import spsolve

from kvgym.batch_time.interpolation import Floats

SMOOTHING = 0.05
"""Weight of the steps between neighbouring grid nodes, relative to a fitted row."""


class Change(NamedTuple):
    """What making a table monotone did to it: relative change of its entries."""

    median: float
    largest: float


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


def isotonic_surface(values: Floats, weights: Floats, sweeps: int = 80) -> tuple[Floats, Change]:
    """Return the surface nearest in weighted least squares that falls along neither axis (Dykstra).

    Args:
        values: shape (n, m).
        weights: positive, shape (n, m).
        sweeps: projections on either axis; a running maximum removes what is left.
    """
    table = values.copy()
    down, across = np.zeros_like(table), np.zeros_like(table)
    for _ in range(sweeps):
        shifted = table + down
        table = np.column_stack([isotonic(c, w) for c, w in zip(shifted.T, weights.T, strict=True)])
        down = shifted - table
        shifted = table + across
        table = np.vstack([isotonic(r, w) for r, w in zip(shifted, weights, strict=True)])
        across = shifted - table
    table = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    change = np.abs(table / values - 1)
    return table, Change(float(np.median(change)), float(change.max()))


def _weights_of(nodes: Floats, x: Floats) -> tuple[np.ndarray, Floats]:
    """Return the lower node of each x and the share of the upper one, clipped to the grid."""
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
    i, u = _weights_of(rows, x)
    j, v = _weights_of(columns, y)
    low = table[i, j] * (1 - v) + table[i, j + 1] * v
    high = table[i + 1, j] * (1 - v) + table[i + 1, j + 1] * v
    result: Floats = low * (1 - u) + high * u
    return result


def fit_surface(
    rows: Floats, columns: Floats, points: tuple[Floats, Floats, Floats], features: int
) -> tuple[Floats, Change]:
    """Fit a monotone surface whose bilinear interpolation is nearest to scattered measurements.

    Unknown is the ratio of each node to a first guess, a non-negative combination of simple terms; errors are
    relative, and the steps of the ratio between neighbouring nodes are penalised, so nodes without
    measurements take their neighbours' ratio.

    Args:
        rows: grid of the first quantity, ascending, shape (n,).
        columns: grid of the second quantity, ascending, shape (m,).
        points: first quantity, second quantity, measured time, each of shape (k,).
        features: 2 for the guess a + b x y, 4 for a + b x + c x² + d x y.

    Returns:
        The table, shape (n, m), and what making it monotone changed.
    """
    x, y, value = points
    terms = _terms(features, x, y)
    guess, _ = nnls(terms / value[:, None], np.ones(len(value)))
    mesh_x, mesh_y = np.meshgrid(rows, columns, indexing="ij")
    prior = np.maximum((_terms(features, mesh_x.ravel(), mesh_y.ravel()) @ guess), 1e-6)
    n, m = len(rows), len(columns)
    i, u = _weights_of(rows, x)
    j, v = _weights_of(columns, y)
    inside = (x >= rows[0]) & (x <= rows[-1]) & (y >= columns[0]) & (y <= columns[-1])
    i, u, j, v, value = i[inside], u[inside], j[inside], v[inside], value[inside]
    k = np.arange(len(value))
    entries = []
    for di, wi in ((0, 1 - u), (1, u)):
        for dj, wj in ((0, 1 - v), (1, v)):
            node = (i + di) * m + j + dj
            entries.append(
                sparse.coo_matrix((wi * wj * prior[node] / value, (k, node)), shape=(len(k), n * m))
            )
    data = sum(entries[1:], entries[0]).tocsr()
    steps_i = sparse.kron(sparse.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n)), sparse.eye(m))
    steps_j = sparse.kron(sparse.eye(n), sparse.diags([-1.0, 1.0], [0, 1], shape=(m - 1, m)))
    normal = data.T @ data + SMOOTHING**2 * (steps_i.T @ steps_i + steps_j.T @ steps_j)
    ratio = spsolve(normal.tocsc(), data.T @ np.ones(len(k)))
    table = np.maximum(prior * ratio, 1e-4).reshape(n, m)
    return isotonic_surface(table, 1 / table**2)


def _terms(features: int, x: Floats, y: Floats) -> Floats:
    one = np.ones_like(x)
    return np.column_stack([one, x * y] if features == 2 else [one, x, x * x, x * y])


def pool_decodes(rows: Floats, columns: Floats, table: Floats, totals: Floats) -> tuple[Floats, Change]:
    """Turn decode attention by (decodes, context) into one by (decodes, KV tokens) that never falls.

    Args:
        rows: decodes, shape (n,).
        columns: context of each, shape (m,).
        table: shape (n, m).
        totals: KV tokens of all decodes, ascending from 0, shape (t,).

    Returns:
        Table of shape (n, t); and what the projection changed inside the measured range.
    """
    mean = totals[None, :] / rows[:, None]
    x = np.broadcast_to(rows[:, None], mean.shape).ravel()
    target = bilinear(rows, columns, table, x, mean.ravel()).reshape(mean.shape)
    middle = min(int(np.searchsorted(columns, columns[-1] / 2)), len(columns) - 2)
    slope = (table[:, -1] - table[:, middle]) / (columns[-1] - columns[middle])
    target += slope[:, None] * np.maximum(mean - columns[-1], 0.0)
    inside = (mean >= columns[0]) & (mean <= columns[-1])
    weights = np.where(inside, 1.0, 0.02) / target**2
    pooled, _ = isotonic_surface(target, weights)
    for _ in range(3):  # towards least absolute error: the small batches of a split kernel are outliers
        pooled, _ = isotonic_surface(target, weights / np.maximum(np.abs(pooled / target - 1), 0.02))
    change = np.abs(pooled / target - 1)[inside]
    return pooled, Change(float(np.median(change)), float(change.max()))


class PooledPrefill(NamedTuple):
    """Prefill attention as ``launch + c own(c) + k cached(c)``; milliseconds and milliseconds per token."""

    launch: float
    chunk: Floats
    own: Floats
    cached: Floats

    def predict(self, chunk: Floats, cached: Floats) -> Floats:
        """Return milliseconds of one request's chunk after cached tokens, each of shape (k,)."""

        def line(values: Floats) -> Floats:
            slope = (values[-1] - values[-2]) / (self.chunk[-1] - self.chunk[-2])
            beyond = np.maximum(chunk - self.chunk[-1], 0.0)
            result: Floats = np.interp(chunk, self.chunk, values) + slope * beyond
            return result

        return self.launch + chunk * line(self.own) + cached * line(self.cached)


def fit_prefill(nodes: Floats, points: tuple[Floats, Floats, Floats]) -> PooledPrefill:
    """Fit prefill attention with ``own`` and ``cached`` concave and non-decreasing in the chunk.

    Args:
        nodes: chunk lengths at which the slopes may change, ascending from 0, shape (n,).
        points: chunk, cached tokens, measured milliseconds, each of shape (k,).
    """
    chunk, cached, value = points

    def basis(x: Floats) -> Floats:
        return np.column_stack([np.ones_like(x), *(np.minimum(x, c) for c in nodes[1:-1]), x])

    shape = basis(chunk)
    design = np.column_stack([np.ones_like(value), chunk[:, None] * shape, cached[:, None] * shape])
    scale = np.maximum(np.abs(design).max(axis=0), 1e-30)
    weights, _ = nnls(design / scale / value[:, None], np.ones(len(value)), maxiter=20000)
    weights = weights / scale
    width = shape.shape[1]
    at_nodes = basis(nodes)
    return PooledPrefill(
        float(weights[0]), nodes, at_nodes @ weights[1 : 1 + width], at_nodes @ weights[1 + width :]
    )
