"""Floors of calibrated tables, read from the parameters that their kernels read.

:mod:`kvgym.theory.hindsight.calibrated.floors` explains why they hold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog

from kvgym.batch_time import KernelBatchTime, ProfileBatchTime
from kvgym.batch_time.hardware.interpolation import bilinear, unpack_curve, unpack_star, unpack_surface
from kvgym.batch_time.models.calibrated import ProfileParameters, VidurParameters
from kvgym.batch_time.models.kernels import KernelParameters
from kvgym.compiling.named import named_values
from kvgym.theory.hindsight.calibrated.lines import (
    BatchFloor,
    Composition,
    Floats,
    hull,
    line_below,
    no_attention,
)

ROUNDING = 8
"""Tokens to a multiple of which composition "vidur" rounds a batch up."""


def profile_floor(model: ProfileBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    """Return a floor of a calibrated model; arguments as of ``batch_floor``."""
    params, vidur = model.params(), model.composition == "vidur"
    p = named_values(VidurParameters, params) if vidur else named_values(ProfileParameters, params)
    weights, token = line_below(*_curve(params, p.linear, capacity), at.tokens)
    head, row, launch, by_mean = 0.0, 0.0, 0.0, True
    attention: Callable[[Floats], Floats] = no_attention
    if isinstance(p, ProfileParameters):
        ends = np.array([1.0, float(capacity)])
        head, row = _head(p.head_weights, p.head_row, ends, at.requests)
        launch, by_mean = p.launch, p.by_mean > 0
        attention = PrefillAttention(params, p, longest)
    surface = unpack_surface(params, p.decode)
    decode_batch, decode, context = _decode_plane(*surface, capacity, at, by_mean=by_mean)
    return BatchFloor(
        batch=p.base + weights + head,
        prefill_batch=launch,
        decode_batch=decode_batch,
        request=row + p.per_request,
        prefill_token=token,
        decode=token + decode,
        context=context,
        attention=attention,
    )


def kernels_floor(model: KernelBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    """Return a floor of measured kernels; arguments as of ``batch_floor``."""
    params = model.params()
    p = named_values(KernelParameters, params)
    x, y = _curve(params, p.prefill, capacity)  # all prefills of a batch are one chunk
    y += p.pair * (1 - p.windowed) * np.maximum(x * (x + 1) / 2 - p.measured_pairs, 0.0)
    square, pair = float((y / x**2).min()), p.pair * (1 - p.windowed) / 2

    def attention(lengths: Floats) -> Floats:
        one = square * lengths**2
        return np.asarray(np.minimum(one, square * lengths + pair * (lengths**2 - lengths)))

    weights, token = line_below(*_curve(params, p.linear, capacity), at.tokens)
    head, row = line_below(*_curve(params, p.head, capacity), at.requests)
    surface = unpack_surface(params, p.decode)
    decode_batch, decode, context = _decode_plane(*surface, capacity, at, by_mean=False)
    return BatchFloor(
        batch=p.base + p.per_batch + weights + head,
        decode_batch=decode_batch,
        request=row + p.per_request,
        prefill_token=token,
        decode=token + decode,
        context=context,
        attention=attention,
    )


def _curve(params: Floats, place: float, capacity: int) -> tuple[Floats, Floats]:
    """Return the nodes of a curve over the tokens or requests of a batch, from 1 to all that fit."""
    x, y = unpack_curve(params, place)
    last = float(capacity + ROUNDING)
    nodes = np.concatenate([[1.0], x[(x > 1) & (x < last)], [last]])
    return nodes, np.interp(nodes, x, y)


def _head(weights: float, row: float, ends: Floats, at: float) -> tuple[float, float]:
    crossing = [weights / row] if row > 0 and ends[0] < weights / row < ends[1] else []
    x = np.array([ends[0], *crossing, ends[1]])
    return line_below(x, np.maximum(weights, row * x), at)


def _decode_plane(
    x: Floats, y: Floats, table: Floats, capacity: int, at: Composition, *, by_mean: bool
) -> tuple[float, float, float]:
    """Return constant, seconds per decode and per cached token of a plane below the table of decode attention."""
    if at.decodes <= 0:
        return 0.0, 0.0, 0.0
    n = _inside(x, 1.0, float(capacity))
    context = _inside(y, 0.0, float(capacity))
    number, other = (grid.ravel() for grid in np.meshgrid(n, context, indexing="ij"))
    # Up to the first node the table is constant, as bilinear does; the far nodes are beyond the capacity.
    values = bilinear(x, y, table, number, other)
    tokens = number * other if by_mean else other
    if by_mean:  # a cell matters if its lowest corner fits into the memory
        lower = np.repeat(np.concatenate([n[:1], n[:-1]]), len(context))
        left = np.tile(np.concatenate([context[:1], context[:-1]]), len(n))
        matters = lower * left <= capacity
        number, tokens, values = number[matters], tokens[matters], values[matters]
    sides = np.column_stack([np.ones_like(number), number, tokens])
    place = [1.0, max(at.decodes, 1.0), at.context]
    # In units of the whole table, so that the solver's tolerance is relative to all three coefficients.
    scale = np.array([1.0, float(n[-1]), float(capacity)])
    top = float(values.max()) or 1.0
    found = linprog(-np.array(place) / scale, A_ub=sides / scale, b_ub=values / top, bounds=[(0, None)] * 3)
    coefficients = np.maximum(found.x, 0.0) * top / scale
    made = sides @ coefficients
    over = made > values  # by the solver's tolerance
    share = float((values[over] / made[over]).min()) if over.any() else 1.0
    constant, decode, token = (float(c) for c in coefficients * share)
    return constant, decode, token


def _inside(nodes: Floats, low: float, high: float) -> Floats:
    return np.concatenate([[low], nodes[(nodes > low) & (nodes < high)], [high]])


class PrefillAttention:
    """Least seconds of prefill attention by the length of the prefill, over all ways to cut it into chunks.

    Args:
        params: parameters of a profile model, not of composition "vidur".
        p: the same by name.
        longest: most tokens that a prefill may have.
    """

    def __init__(self, params: Floats, p: ProfileParameters, longest: int) -> None:
        self._own, own = _envelope(*unpack_star(params, p.own), longest)
        self._cached, cached = _envelope(*unpack_star(params, p.cached), longest)
        self._share = min(own, cached)

    def __call__(self, lengths: Floats) -> Floats:
        """Return seconds for lengths of 1 token and more, float64 (n,); 0 for none."""
        length = np.maximum(lengths, 1.0)
        own, cached = (np.interp(length, *curve) for curve in (self._own, self._cached))
        whole = own * length
        per_pair = np.minimum(self._cached[1][0], cached / length)
        single = self._own[1][0] * length + per_pair * (length**2 - length) / 2
        return np.asarray(np.where(lengths > 0, self._share * np.minimum(whole, single), 0.0))


def _envelope(
    nodes: Floats, intercepts: Floats, slopes: Floats, longest: int
) -> tuple[tuple[Floats, Floats], float]:
    """Return the least concave function above a curve from 1 to ``longest``, and the curve's least share of it."""
    x = _inside(nodes, 1.0, float(max(longest, 2)))
    after = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(slopes) - 1)
    before = np.clip(np.searchsorted(nodes, x, side="left") - 1, 0, len(slopes) - 1)
    sides = np.array([intercepts[i] + slopes[i] * x for i in (before, after)])
    high, low = sides.max(axis=0), sides.min(axis=0)
    corners = hull(x, -high)
    found = x[corners], high[corners]
    above = np.interp(x, *found)
    return found, float(np.divide(low, above, out=np.ones_like(above), where=above > 0).min())
