"""Fits of operator tables: isotonic regression, surfaces on a grid, prefill attention as a sum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import nnls
from scipy.sparse.linalg import spsolve

from kvgym.batch_time.hardware.interpolation import (
    Floats,
    bilinear,
    bilinear_weights,
    isotonic,
    surface_values,
)

SMOOTHING = 0.05
"""Weight of the steps between neighbouring grid nodes, relative to a fitted row."""

LEAST_RATIO = 0.02
"""Smallest ratio of a node to the first guess."""

FAST_RATIO = 0.5
"""Ratio to the first guess below which a faster node gets no more weight."""

NO_DATA = 1e-6
"""Weight of a node without measurements when a surface is made monotone; a node with one measurement has 1."""

LONG_CONTEXT = 4096.0
"""Context of each decode beyond which the weight of a batch in pooling falls with the square of the context."""


TOWARDS_GUESS = 0.01
"""Weight of the first guess of prefill attention at each node, relative to a fitted row."""


class Change(NamedTuple):
    """Relative change of a table's entries when it was made monotone."""

    median: float
    largest: float


def isotonic_surface(values: Floats, weights: Floats, sweeps: int = 80) -> Floats:
    """Return the surface nearest in weighted least squares that is non-decreasing along both axes (Dykstra).

    Args:
        values: shape (n, m).
        weights: positive, shape (n, m).
        sweeps: projections on either axis; a running maximum removes the remaining violations.
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
    result: Floats = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    return result


class Surface(NamedTuple):
    """A fitted surface.

    Attributes:
        rows: first quantity, ascending, shape (n,).
        columns: second quantity, ascending, shape (m,).
        ms: milliseconds, non-decreasing along both axes, shape (n, m).
        support: number of measurements that determine each node, shape (n, m).
        change: change by making it monotone, at nodes with measurements.
    """

    rows: Floats
    columns: Floats
    ms: Floats
    support: Floats
    change: Change


DECODE_TERMS = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Powers of (decodes, context) in the first guess of decode attention."""

PREFILL_TERMS = ((0, 0), (1, 0), (2, 0), (1, 1))
"""Powers of (chunk, cached tokens) in the first guess of prefill attention."""


def fit_surface(
    rows: Floats,
    columns: Floats,
    points: tuple[Floats, Floats, Floats],
    powers: tuple[tuple[int, int], ...],
) -> Surface:
    """Fit a monotone surface, so that its bilinear interpolation is nearest to scattered measurements.

    The unknowns are the ratios of the nodes to a first guess, a non-negative combination of simple terms. Errors are
    relative, and differences of the ratio between neighbouring nodes are penalised, so nodes without measurements
    get their neighbours' ratio. Then the surface is made monotone with each node weighted by its measurements, so
    that mainly nodes without measurements change.

    Args:
        rows: grid of the first quantity, ascending, shape (n,).
        columns: grid of the second quantity, ascending, shape (m,).
        points: first quantity, second quantity, measured time, each of shape (k,).
        powers: powers of the two quantities in each term of the first guess.
    """
    x, y, value = points
    terms = _terms(powers, x, y)
    scale = terms.max(axis=0)
    guess, _ = nnls(terms / scale / value[:, None], np.ones(len(value)))
    mesh_x, mesh_y = np.meshgrid(rows, columns, indexing="ij")
    prior = _terms(powers, mesh_x.ravel(), mesh_y.ravel()) @ (guess / scale)
    prior = np.maximum(prior, 1e-3 * value.min())
    n, m = len(rows), len(columns)
    inside = (x >= rows[0]) & (x <= rows[-1]) & (y >= columns[0]) & (y <= columns[-1])
    x, y, value = x[inside], y[inside], value[inside]
    i, u = bilinear_weights(rows, x)
    j, v = bilinear_weights(columns, y)
    k = np.arange(len(value))
    shares = sum(
        sparse.coo_matrix((wi * wj, (k, (i + di) * m + j + dj)), shape=(len(k), n * m)).tocsr()
        for di, wi in ((0, 1 - u), (1, u))
        for dj, wj in ((0, 1 - v), (1, v))
    )
    data = sparse.diags(1 / value) @ shares @ sparse.diags(prior)
    steps_i = sparse.kron(sparse.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n)), sparse.eye(m))
    steps_j = sparse.kron(sparse.eye(n), sparse.diags([-1.0, 1.0], [0, 1], shape=(m - 1, m)))
    normal = data.T @ data + SMOOTHING**2 * (steps_i.T @ steps_i + steps_j.T @ steps_j)
    ratio = spsolve(normal.tocsc(), data.T @ np.ones(len(k)))
    # Noise can move a node with hardly any measurements far away, even below zero; with relative errors it would then
    # have more weight than all others.
    support = np.asarray(shares.sum(axis=0)).ravel()
    table = prior * np.maximum(ratio, LEAST_RATIO)
    weights = np.maximum(support, NO_DATA) / (prior * np.maximum(ratio, FAST_RATIO)) ** 2
    shape = (n, m)
    fitted = isotonic_surface(table.reshape(shape), weights.reshape(shape))
    change = _change(fitted, table.reshape(shape), support.reshape(shape) > 0.5)
    return Surface(rows, columns, fitted, support.reshape(shape), change)


def _terms(powers: tuple[tuple[int, int], ...], x: Floats, y: Floats) -> Floats:
    return np.column_stack([x**a * y**b for a, b in powers])


def _change(fitted: Floats, table: Floats, where: NDArray[np.bool_]) -> Change:
    change = np.abs(fitted / table - 1)[where]
    return Change(float(np.median(change)), float(change.max())) if len(change) else Change(0.0, 0.0)


def pool_decodes(grid: Surface, totals: Floats) -> Surface:
    """Convert decode attention by (decodes, context) to a non-decreasing surface by (decodes, KV tokens).

    Args:
        grid: decode attention, n decodes by m contexts.
        totals: KV tokens of all decodes, ascending from 0, shape (t,).

    Returns:
        Surface of shape (n, t); its ``change`` is the projection's inside the measured range.
    """
    rows, columns = grid.rows, grid.columns
    mean = totals[None, :] / rows[:, None]
    x, y = np.broadcast_to(rows[:, None], mean.shape).ravel(), mean.ravel()
    target = surface_values(rows, columns, grid.ms, x, y).reshape(mean.shape)
    measured = np.minimum(bilinear(rows, columns, np.minimum(grid.support, 1.0), x, y), 1.0)
    inside = (mean >= columns[0]) & (mean <= columns[-1])
    support = np.where(inside, measured.reshape(mean.shape), 0.0)
    usual = np.minimum(LONG_CONTEXT / np.maximum(mean, 1.0), 1.0) ** 2
    weights = np.maximum(support, 0.02) * usual / target**2
    pooled = isotonic_surface(target, weights)
    for _ in range(3):  # towards least absolute errors, as the small batches of a split kernel are outliers
        pooled = isotonic_surface(target, weights / np.maximum(np.abs(pooled / target - 1), 0.02))
    return Surface(rows, totals, pooled, support, _change(pooled, target, support > 0.5))


class PooledPrefill(NamedTuple):
    """Prefill attention as ``launch + c own(c) + k cached(c)``; milliseconds and milliseconds per token."""

    launch: float
    chunk: Floats
    own: Floats
    cached: Floats

    def continued(self, peak_ms: float, estimate_ms: float) -> PooledPrefill:
        """Return the fit, extended beyond the measured chunks so that it stays physically possible.

        Short chunks leave a GPU partly idle, so longer ones seem to cost nothing more per token. If the last measured
        slope is faster than the GPU's peak allows, the estimated slope continues from there.

        Args:
            peak_ms: milliseconds per pair of query and key at the GPU's peak.
            estimate_ms: estimated milliseconds per pair.
        """
        last, far = float(self.chunk[-1]), 4.0 * float(self.chunk[-1])
        beyond, estimated = [], False
        for values, pairs in ((self.own, 0.5), (self.cached, 1.0)):
            slope = float(values[-1] - values[-2]) / (last - float(self.chunk[-2]))
            if slope < pairs * peak_ms:
                # At most proportional to the chunk, so that the total time never falls.
                slope, estimated = min(pairs * estimate_ms, float(values[-1]) / last), True
            beyond.append(float(values[-1]) + slope * (far - last))
        if not estimated:
            return self
        own, cached = np.append(self.own, beyond[0]), np.append(self.cached, beyond[1])
        return PooledPrefill(self.launch, np.append(self.chunk, far), own, cached)


def fit_prefill(
    nodes: Floats, points: tuple[Floats, Floats, Floats], *, concave: bool = False
) -> PooledPrefill:
    """Fit prefill attention with ``own`` and ``cached`` non-decreasing, and rising at most in proportion to the chunk.

    More is not needed for a sum that is non-decreasing in every field of a load. A concave first guess, which misses
    kernels that fill the GPU better with longer chunks, is refined.

    Args:
        nodes: chunk lengths at which the slopes may change, ascending from 0, shape (n,).
        points: chunk, cached tokens, measured milliseconds, each of shape (k,).
        concave: return the first guess.
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
    own, past = at_nodes @ weights[1 : 1 + width], at_nodes @ weights[1 + width :]
    guess = PooledPrefill(float(weights[0]), nodes, own, past)
    return guess if concave else _refined(guess, points)


def _refined(guess: PooledPrefill, points: tuple[Floats, Floats, Floats]) -> PooledPrefill:
    """Return the nearest fit with values that rise at most in proportion to the chunk.

    The unknowns are ratios to the guess; a small weight on their distance from 1 keeps what was not measured. Least
    squares under linear inequalities are the projection of a point on a cone, found by non-negative least squares
    (Lawson and Hanson, Solving Least Squares Problems, chapter 23).
    """
    chunk, cached, value = points
    nodes, count = guess.chunk, len(guess.chunk)
    i, share = bilinear_weights(nodes, chunk)
    k = np.arange(len(value))
    shape = np.zeros((len(value), count))
    shape[k, i], shape[k, i + 1] = 1 - share, share
    least = 1e-3 * float(value.min())
    prior = np.concatenate(
        [
            [max(guess.launch, least)],
            np.maximum(guess.own, least / nodes[-1]),
            np.maximum(guess.cached, least / max(float(cached.max()), 1.0)),
        ]
    )
    columns = [np.ones((len(value), 1)), chunk[:, None] * shape, cached[:, None] * shape]
    data = np.hstack(columns) * prior / value[:, None]
    keep = TOWARDS_GUESS * np.eye(len(prior))
    q, r = np.linalg.qr(np.vstack([data, keep]))
    point = q.T @ np.concatenate([np.ones(len(value)), TOWARDS_GUESS * np.ones(len(prior))])
    rules = np.zeros((2, 2 * count - 2, count))
    steps = np.arange(count - 1)
    rules[:, steps, steps], rules[:, steps, steps + 1] = -1, 1  # non-decreasing …
    later = steps[1:]
    rules[:, count - 2 + later, later] = nodes[later + 1] / nodes[later]  # … and y / x non-increasing
    rules[:, count - 2 + later, later + 1] = -1
    rules[:, -1, 0] = 1
    cone = np.zeros((2 * rules.shape[1] + 1, len(prior)))
    cone[0, 0] = 1
    cone[1 : 1 + rules.shape[1], 1 : 1 + count] = rules[0]
    cone[1 + rules.shape[1] :, 1 + count :] = rules[1]
    cone = cone * prior
    cone = np.linalg.solve(r.T, (cone / np.linalg.norm(cone, axis=1, keepdims=True)).T)
    forces, _ = nnls(cone, -point, maxiter=20000)
    fitted = prior * np.linalg.solve(r, point + cone @ forces)
    own, past = fitted[1 : 1 + count], fitted[1 + count :]
    return PooledPrefill(max(float(fitted[0]), 0.0), nodes, _within(nodes, own), _within(nodes, past))


def _within(nodes: Floats, values: Floats) -> Floats:
    """Return values without the rounding errors by which they violate their bounds."""
    result = np.maximum(values, 0.0)
    for i in range(1, len(result)):
        most = result[i - 1] * nodes[i] / nodes[i - 1] if i > 1 else np.inf
        result[i] = min(max(result[i], result[i - 1]), most)
    return result
