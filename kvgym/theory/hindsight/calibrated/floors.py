"""Lower bounds on batch times: linear functions of the load that no batch is faster than.

A bound on schedules needs the least time of a batch, whatever else is in it. Every batch-time model that comes with
kvgym has **floors** of one form (:class:`BatchFloor`): a batch takes no less than a constant, plus
something for each of its requests that depends on that request alone. One model has many floors, as a curve has many
tangents; :func:`batch_floor` returns the one that is highest where batches have a given composition.

Why they hold, by kind of model:

- ``affine``, ``unit``: the model itself.
- ``piecewise``, the linear operators of ``profile``, those and the LM head of ``kernels``, the maxima of ``roofline``,
  the staircase of ``tile``: a line
  that touches the curve from below at its nodes, and so everywhere, the curve being linear in between
  (:func:`line_below`).
- decode attention of ``profile`` and ``kernels``: a plane below all nodes of the table. Between nodes the table is
  bilinear, in decodes n and KV tokens S or in n and S / n; so is its difference from the plane, and a bilinear function
  has its least value at a corner.
- prefill attention of ``profile``: A f(B / A) with sums A, B over the chunks is superadditive where f is concave, since
  it is then concave and homogeneous; so the batch pays no less than its chunks do alone. Tables are concave up to
  their rounding: with h the least concave function above f, and f ≥ θ h, the batch pays θ times what its chunks would
  with h. Over the chunks c of a prompt of L tokens, h lies above its chords, h(c) ≥ h(1) + σ (c - 1) for what a chunk
  attends to itself and h(c) ≥ γ c for each token cached before it; together h(1) L + σ (Σ c² - L) + γ (L² - Σ c²) / 2
  at least, which is linear in Σ c² and therefore least at L² (one chunk) or at L (a token each).
- prefill attention of ``kernels``: a parabola α C below the curve over sqrt(C), C being the sum of the squared
  chunks in the batch, at most the square of the memory, and at least half of β per pair with cached tokens: over the
  chunks c of a prompt of L tokens α Σ c² + β (L² - Σ c²) / 2, least at one end as above. Between nodes, and beyond the
  longest measured chunk, the curve divided by C is quadratic in 1 / sqrt(C), rising or concave: least at an end.
- layers with a sliding window: no less than nothing, so only the others count, but in the tables of ``kernels``.
- prefill attention of ``roofline``: the larger of two sums, of products and of reads, is no less than either. Reads of
  its experts are concave in the tokens, and so above their chord from one token to as many as the memory holds.
- ``tile``: a product in tiles of a by b takes no less than its area over a b, and that is a sum over the chunks.
- compositions ``homogeneous`` and ``vidur`` of ``profile`` may fall when a batch gets more: their floors hold, but a
  batch with a request need not take as long as that request alone (:func:`alone_is_least`).
- any other model: by the contract of batch-time models it does not fall as the load grows, so no batch is faster than
  one with a single token.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from kvgym.batch_time import (
    AffineBatchTime,
    BatchTimeModel,
    KernelBatchTime,
    PiecewiseBatchTime,
    ProfileBatchTime,
    RooflineBatchTime,
    TileBatchTime,
    UnitBatchTime,
)
from kvgym.batch_time.models.piecewise import QUANTITIES
from kvgym.theory.hindsight.calibrated.lines import BatchFloor, Composition, Floats, line_below
from kvgym.theory.hindsight.calibrated.profile import kernels_floor, profile_floor


def alone_is_least(model: BatchTimeModel) -> bool:
    """Return whether a batch with a request takes no less time than that request alone."""
    return not (isinstance(model, ProfileBatchTime) and model.composition != "kvgym")


@functools.singledispatch
def batch_floor(model: BatchTimeModel, capacity: int, longest: int, at: Composition) -> BatchFloor:
    """Return a floor of a batch-time model.

    Args:
        model: the model.
        capacity: KV memory of the worker, tokens.
        longest: most tokens that a prefill may have.
        at: where the floor should be high.
    """
    prefill = model(num_prefills=1, prefill_tokens=1, prefill_squares=1)
    return BatchFloor(batch=min(prefill, model(num_decodes=1)))


@batch_floor.register
def _(model: UnitBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    return BatchFloor(batch=1.0)


@batch_floor.register
def _(model: AffineBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    new = model.per_context_token if model.include_new else 0.0
    return BatchFloor(
        batch=model.constant,
        prefill_token=model.per_prefill_token + new,
        decode=model.per_decode_token + new,
        context=model.per_context_token,
    )


@batch_floor.register
def _(model: PiecewiseBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    weights = QUANTITIES[model.quantity]
    place = {
        "requests": at.requests,
        "tokens": at.tokens,
        "kv_tokens": at.tokens + at.context,
        "context": at.context,
    }
    least = 0.0 if model.quantity == "context" else 1.0
    breakpoints, times = np.array(model.breakpoints), np.array(model.times)
    inside = (breakpoints > least) & (breakpoints < capacity)
    x = np.array([least, *breakpoints[inside], float(capacity)])
    y = np.interp(x, breakpoints, times) + model.slope * np.maximum(0.0, x - breakpoints[-1])
    constant, slope = line_below(x, y, place[model.quantity])
    by_request = model.quantity == "requests"
    return BatchFloor(
        batch=constant,
        request=slope * weights.num_prefills if by_request else 0.0,
        prefill_token=slope * weights.prefill_tokens,
        decode=0.0 if by_request else slope * weights.num_decodes,
        context=slope * weights.decode_context,
    )


@batch_floor.register
def _(model: RooflineBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    p = model.figures
    ends = np.array([1.0, float(capacity)])
    experts = p.experts * (1.0 - p.left_out**ends)
    rise = (experts[1] - experts[0]) / max(1.0, capacity - 1.0)
    weights, token = _larger(
        ends, (0.0, p.token), (p.weights + experts[0] - rise, p.activations + rise), at.tokens
    )
    head, row = _larger(ends, (0.0, p.head_row), (p.head_weights, 0.0), at.requests)
    full = 1 - p.windowed  # share of the layers that have all pairs and read all tokens
    decode = full * max(p.decode_pair, p.kv_token)
    # The batch takes the larger of two sums over its prompts, which may be less than the sum of the larger terms: so
    # use one of the two sums for all prompts.
    by_pairs = full * p.prefill_pair * at.pairs >= p.kv_token * at.prefill_tokens

    def attention(lengths: Floats) -> Floats:
        # Products with the cache and within chunks are L (L + 1) / 2 in whatever chunks; each token is read once.
        pairs = full * p.prefill_pair * lengths * (lengths + 1) / 2
        return np.asarray(pairs if by_pairs else p.kv_token * lengths)

    return BatchFloor(
        batch=p.overhead + p.launches + weights + head,
        request=row + p.request,
        prefill_token=token + p.all_reduce,
        decode=token + p.all_reduce + decode,
        context=decode,
        attention=attention,
    )


def _larger(
    ends: Floats, one: tuple[float, float], other: tuple[float, float], at: float
) -> tuple[float, float]:
    """Return the line below the larger of two lines, each an intercept and a slope, that is highest at a place."""
    crossing = [(other[0] - one[0]) / (one[1] - other[1])] if one[1] != other[1] else []
    x = np.array([ends[0], *(c for c in crossing if ends[0] < c < ends[1]), ends[1]])
    return line_below(x, np.maximum(one[0] + one[1] * x, other[0] + other[1] * x), at)


@batch_floor.register
def _(model: TileBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    p = model.figures
    steps = np.array([1.0, p.t_col, 2 * p.t_col, float(max(capacity, 3 * p.t_col))])
    columns, per_token = line_below(steps, np.maximum(1.0, steps / p.t_col), at.tokens)
    # Of chunk c after k cached tokens: c (k + c).
    area = p.scores / (p.t_row * p.t_col) + p.values / (p.t_red * p.t_col)
    floor = BatchFloor(
        batch=p.overhead + p.column * columns,
        prefill_token=p.column * per_token + p.token,
        decode=p.column * per_token + p.token,
        attention=lambda lengths: area * lengths * (lengths + 1) / 2,
    )
    for seconds, tile in ((p.decode_scores, p.gemv_row), (p.decode_values, p.gemv_col)):
        floor = _with_decode_tiles(floor, seconds, tile, at)
    return floor


def _with_decode_tiles(floor: BatchFloor, seconds: float, tile: float, at: Composition) -> BatchFloor:
    """Return a floor with the highest of three for the decodes' tiles.

    With several decodes the model counts S / tile + n (tile + 1) / (2 tile) for n of them over S cached tokens, and one
    each at least; a single one rounds up, which is (tile - 1) / (2 tile) less than the former at most.
    """
    half = (tile - 1) / (2 * tile)
    choices = (
        (0.0, 1.0, 0.0),
        (0.0, 1 / tile, 1 / tile),
        (-half, (tile + 1) / (2 * tile), 1 / tile),
    )
    allowed = [c for c in choices if floor.batch + seconds * c[0] >= 0]
    constant, decode, context = max(allowed, key=lambda c: c[0] + c[1] * at.decodes + c[2] * at.context)
    return replace(
        floor,
        batch=floor.batch + seconds * constant,
        decode=floor.decode + seconds * decode,
        context=floor.context + seconds * context,
    )


@batch_floor.register
def _(model: ProfileBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    return profile_floor(model, capacity, longest, at)


@batch_floor.register
def _(model: KernelBatchTime, capacity: int, longest: int, at: Composition) -> BatchFloor:
    return kernels_floor(model, capacity, longest, at)
