"""Rows held out from a calibration, and the errors of the written tables on them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from kvgym.batch_time.hardware.interpolation import Floats, surface_values
from kvgym.batch_time.hardware.operator_tables import PrefillTable, ProfileTables, SurfaceTable
from kvgym.utils.reading import Description

WAITING_BYTES = 7e6
"""Size below which a measured all-reduce may have waited for another GPU to start, so that medians scatter, bytes."""


class _Rows(Description):
    """Columns of equal length; the last one, ``ms``, is the measured time."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ms: tuple[float, ...]

    @model_validator(mode="after")
    def _equal_lengths(self) -> _Rows:
        lengths = {name: len(getattr(self, name)) for name in type(self).model_fields}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns must be equally long, got {lengths}")
        if not self.ms or min(self.ms) <= 0:
            raise ValueError("ms must hold at least one value, all > 0")
        return self


class LinearRows(_Rows):
    """Token operators of one layer, including two residual additions.

    Attributes:
        tokens: tokens in the batch, shape (n,).
        ms: shape (n,).
    """

    tokens: tuple[float, ...]


class DecodeRows(_Rows):
    """Decode attention of one layer.

    Attributes:
        decodes: decodes in the batch, shape (n,).
        context: tokens cached before each, shape (n,).
        ms: shape (n,).
    """

    decodes: tuple[float, ...]
    context: tuple[float, ...]


class PrefillRows(_Rows):
    """Prefill attention of one layer.

    Attributes:
        chunk: tokens of the chunk, shape (n,).
        cached: tokens cached before it, shape (n,).
        ms: shape (n,).
    """

    chunk: tuple[float, ...]
    cached: tuple[float, ...]


class AllReduceRows(_Rows):
    """One all-reduce.

    Attributes:
        size: bytes, shape (n,).
        ms: medians, shape (n,).
    """

    size: tuple[float, ...]


class HeldOut(Description):
    """Measurements that were not used to fit tables, by operator group."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    linear: LinearRows
    decode: DecodeRows
    prefill: PrefillRows
    all_reduce: AllReduceRows | None = None


class FitError(Description):
    """Relative error of one operator group on held-out rows.

    Attributes:
        median: median of |predicted / measured - 1|.
        p95: 95th percentile of the same.
        rows: number of rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    median: float = Field(ge=0)
    p95: float = Field(ge=0)
    rows: int = Field(gt=0)


class Comparison(NamedTuple):
    """Predicted and measured milliseconds of one operator group, each of shape (n,)."""

    predicted: Floats
    measured: Floats


def prefill_ms(table: PrefillTable, chunk: Floats, cached: Floats) -> Floats:
    """Return milliseconds of prefill attention in one layer for single chunks.

    Args:
        table: prefill attention as a sum over requests.
        chunk: tokens of each chunk, shape (n,).
        cached: tokens cached before it, shape (n,).
    """
    x = np.array(table.chunk)

    def line(values: tuple[float, ...]) -> Floats:
        y = np.array(values)
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        result: Floats = np.interp(chunk, x, y) + slope * np.maximum(chunk - x[-1], 0.0)
        return result

    return table.launch_ms + 1e-6 * (chunk * line(table.own_ns) + cached * line(table.cached_ns))


def _surface_ms(table: SurfaceTable, x: Floats, y: Floats) -> Floats:
    return surface_values(table.rows, table.columns, table.ms, x, y)


def compare_held_out(tables: ProfileTables, held_out: HeldOut) -> dict[str, Comparison]:
    """Predict the held-out rows from the tables, by operator group.

    ``attention_decode`` and ``attention_prefill`` are used by composition "kvgym", ``attention_decode_homogeneous``
    and ``attention_prefill_table`` by the others. ``all_reduce`` compares the envelope with the medians from
    :data:`WAITING_BYTES` on, ``all_reduce_small`` below that size, and ``all_reduce_small_median`` compares the table
    of medians there.

    Args:
        tables: operator tables.
        held_out: measurements.
    """
    linear, layer = held_out.linear, tables.linear
    block = np.array(layer.block_ms) + 2 * np.array(layer.add_ms)
    n, k, decode_ms = (
        np.array(v) for v in (held_out.decode.decodes, held_out.decode.context, held_out.decode.ms)
    )
    c, past, chunk_ms = (
        np.array(v) for v in (held_out.prefill.chunk, held_out.prefill.cached, held_out.prefill.ms)
    )
    result = {
        "linear": Comparison(np.interp(linear.tokens, layer.tokens, block), np.array(linear.ms)),
        "attention_decode": Comparison(_surface_ms(tables.decode_pooled, n, n * k), decode_ms),
        "attention_decode_homogeneous": Comparison(_surface_ms(tables.decode, n, k), decode_ms),
        "attention_prefill": Comparison(prefill_ms(tables.prefill_pooled, c, past), chunk_ms),
        "attention_prefill_table": Comparison(_surface_ms(tables.prefill, c, past), chunk_ms),
    }
    if held_out.all_reduce is not None and tables.all_reduce is not None:
        size, ms = np.array(held_out.all_reduce.size), np.array(held_out.all_reduce.ms)
        nodes, reduce = tables.all_reduce.size, tables.all_reduce
        small = size < WAITING_BYTES
        for name, chosen, values in (
            ("all_reduce", ~small, reduce.kernel_ms),
            ("all_reduce_small", small, reduce.kernel_ms),
            ("all_reduce_small_median", small, reduce.median_ms),
        ):
            if chosen.any():
                result[name] = Comparison(np.interp(size[chosen], nodes, values), ms[chosen])
    return result


def fit_errors(tables: ProfileTables, held_out: HeldOut) -> dict[str, FitError]:
    """Return the errors of the tables on held-out rows, by operator group (see :func:`compare_held_out`)."""
    result = {}
    for name, (predicted, measured) in compare_held_out(tables, held_out).items():
        error = np.abs(predicted / measured - 1)
        result[name] = FitError(
            median=round(float(np.median(error)), 4),
            p95=round(float(np.percentile(error, 95)), 4),
            rows=len(measured),
        )
    return result
