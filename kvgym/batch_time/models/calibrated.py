"""Batch time from calibrated operator tables, summed over the layers, in two compositions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import (
    Floats,
    curve,
    lay_out,
    outer_slope,
    pack_curve,
    pack_star,
    pack_surface,
    star,
    surface,
)
from kvgym.batch_time.hardware.operator_tables import AllReduceTable, ProfileTables, SurfaceTable
from kvgym.batch_time.hardware.overhead import NONE, EngineOverhead
from kvgym.compiling.kernel import Kernel, jit
from kvgym.compiling.named import named_numbers
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.simulator.batch_time import BatchTimeModel, Device, batch_time_kernel
from kvgym.utils.arguments import explained


class ProfileParameters(NamedTuple):
    """Parameters of compositions "kvgym" and "homogeneous": seconds over all layers, and places of tables.

    Attributes:
        base: overhead of the engine per batch.
        per_request: overhead of the engine per request.
        head_weights: reading the weights of the LM head.
        head_row: computing a row of the LM head.
        launch: per batch with prefills.
        by_mean: 1 if decode attention is over (decodes, mean context), 0 if over (decodes, KV tokens of all).
        linear: place of the curve over tokens.
        decode: place of the surface of decode attention.
        own: place of prefill attention per token of the chunk, over the length of the chunk.
        cached: the same per cached token.
    """

    base: float
    per_request: float
    head_weights: float
    head_row: float
    launch: float
    by_mean: float
    linear: float
    decode: float
    own: float
    cached: float


_profile_parameters = named_numbers(ProfileParameters)


class VidurParameters(NamedTuple):
    """Parameters of composition "vidur"; names as in :class:`ProfileParameters`.

    Attributes:
        several: factor on attention of several requests.
        prefill: place of the surface over the tokens of a chunk and cached tokens.
    """

    base: float
    per_request: float
    several: float
    linear: float
    decode: float
    prefill: float


_vidur_parameters = named_numbers(VidurParameters)


@batch_time_kernel
def _kvgym(load: Any, params: Any) -> Any:
    p = _profile_parameters(params)
    seconds = p.base
    tokens = float(load.prefill_tokens + load.num_decodes + load.draft_tokens)
    if tokens > 0.0:
        seconds += curve(params, p.linear, tokens)
    rows = float(load.num_prefills + load.num_decodes + load.draft_tokens)
    if rows > 0.0:
        seconds += max(p.head_weights, p.head_row * rows) + p.per_request * rows
    if load.num_decodes > 0:
        number, context = float(load.num_decodes), float(load.decode_context)
        if p.by_mean > 0.0:
            context /= number
        seconds += surface(params, p.decode, number, context)
    if load.num_prefills > 0:
        chunks, squares = float(load.prefill_tokens), float(load.prefill_squares)
        cached, products = float(load.prefill_context), float(load.prefill_products)
        seconds += p.launch
        seconds += star(params, p.own, chunks, squares)
        seconds += star(params, p.cached, cached, products)
    return seconds


@jit
def _round_up(value: float, step: float) -> Any:
    return np.ceil(value / step) * step


@batch_time_kernel
def _vidur(load: Any, params: Any) -> Any:
    p = _vidur_parameters(params)
    seconds = p.base + p.per_request * float(load.num_prefills + load.num_decodes + load.draft_tokens)
    tokens = float(load.prefill_tokens + load.num_decodes + load.draft_tokens)
    if tokens > 0.0:
        seconds += curve(params, p.linear, _round_up(tokens, 8.0))
    if load.num_decodes > 0:
        number = float(load.num_decodes)
        mean = _round_up(float(load.decode_context) / number, 64.0)
        decode = surface(params, p.decode, number, mean)
        seconds += decode * (p.several if load.num_decodes > 1 else 1.0)
    if load.num_prefills > 0:
        chunk, cached = np.sqrt(float(load.prefill_squares)), float(load.prefill_context)
        prefill = surface(params, p.prefill, chunk, cached)
        seconds += prefill * (p.several if load.num_prefills > 1 else 1.0)
    return seconds


COMPOSITIONS: dict[str, str] = {
    "kvgym": "batches of unequal requests: pooled attention, embedding, LM head, engine overhead",
    "homogeneous": "as kvgym, but decode attention as measured, at the mean context",
    "vidur": "as the Vidur simulator composes its predictions, for comparison with its results",
}
"""Compositions by name, with a description each."""

_KERNELS: dict[str, Kernel] = {"kvgym": _kvgym, "homogeneous": _kvgym, "vidur": _vidur}
_SEVERAL, _LAUNCH_MS = 1.1, 0.02  # Vidur: allowance for several requests; launch of an all-reduce


class ProfileBatchTime(BatchTimeModel):
    """Sum over the layers of measured operator times.

    Composition ``"kvgym"``:

    - linear operators, two residual additions and two all-reduces per layer for the batch's T tokens, and the
      embedding once, linear between measured T (8 apart up to 1,024), so the tile staircase stays;
    - decode attention from a table over (decodes n, KV tokens S of all decodes). A load has n and S, not the single
      contexts. The measurements have equal contexts: at the same S, time falls within a wave of the SMs and jumps at
      its end, because all blocks end together. With unequal contexts they do not, and adding a decode never makes a
      batch faster. So the table is the closest one, in relative error, that is non-decreasing in n and S;
    - prefill attention as a sum over requests: a chunk of c tokens after k cached ones costs
      ``c own(c) + k cached(c)``, plus one launch per batch. For several chunks, own and cached are evaluated at the
      mean chunk weighted by chunk tokens (sum c² / sum c) and by cached tokens (sum c k / sum k): exact for equal
      chunks, and for unequal ones if the two functions are linear;
    - the LM head by a roofline, one row per request of the batch;
    - the engine's overhead, per batch (including empty ones) and per request.

    It is non-decreasing in every field of the load.

    Composition ``"homogeneous"``: the same, with decode attention at (n, S / n) from the measured grid. It has the
    steps at the waves of the SMs and is closest to the measurements if all contexts are equal; at fixed S it can fall
    in n.

    Composition ``"vidur"``, for comparison with results of the Vidur simulator: T rounded up to a multiple of
    8; one residual addition; two all-reduces per layer, median time plus 0.02 ms each; decode attention at
    (n, mean context rounded up to 64), prefill attention at (sum of k, root of the sum of c²), each times 1.1
    for several requests; neither embedding nor LM head, and no overhead by default. At a fixed sum of contexts it can
    fall in ``num_decodes``, because the mean context falls; with tensor parallelism it can fall in tokens, because it
    uses the measured medians of all-reduce.

    Beyond the measured range every table continues with its last measured slope: FLOPs for linear operators and
    for prefill (chunk times cached), bandwidth for decodes and all-reduce.

    Args:
        tables: the operator tables.
        composition: one of :data:`COMPOSITIONS`.
        overhead: time of a batch outside the GPU.
        engine: name of that engine in the hardware file, for :meth:`spec`.
        source: source of the tables.
        valid_range: measured range by quantity.
        hardware: name of the hardware file, which :meth:`spec` then returns instead of the tables.
        device: the GPU of that file.

    Raises:
        UnknownNameError: an unknown composition.
    """

    @explained
    def __init__(
        self,
        tables: ProfileTables,
        *,
        composition: str = "kvgym",
        overhead: EngineOverhead = NONE,
        engine: str | None = None,
        source: str = "",
        valid_range: Mapping[str, tuple[float, float]] | None = None,
        hardware: str | None = None,
        device: Device | None = None,
    ) -> None:
        if composition not in COMPOSITIONS:
            raise UnknownNameError("composition", composition, COMPOSITIONS)
        self.kernel = _KERNELS[composition]
        self.tables = tables
        self.composition = composition
        self.overhead = overhead
        self.asynchronous, self.api_time = overhead.asynchronous, overhead.api_ms / 1e3
        self.engine = engine
        self.source = source
        self.valid_range = dict(valid_range or {})
        self.hardware = hardware
        self.device = device
        self._params = self._pack_vidur() if composition == "vidur" else self._pack_kvgym()

    def params(self) -> NDArray[np.float64]:
        """Return a copy of the named parameters and the tables, in seconds and summed over the layers."""
        return self._params.copy()

    def _linear(self, *, full: bool) -> Floats:
        """Return the curve of everything that depends only on tokens; ``full`` is for all compositions but "vidur".

        "vidur" has the measured medians of all-reduce, which may fall, at additional nodes.
        """
        tables, linear = self.tables, self.tables.linear
        tokens = np.array(linear.tokens)
        if tables.all_reduce is not None and not full:
            sizes = np.array(tables.all_reduce.size) / tables.bytes_per_token
            tokens = np.union1d(tokens, sizes[(sizes >= tokens[0]) & (sizes <= tokens[-1])])
        layer = np.interp(tokens, linear.tokens, linear.block_ms)
        add = np.interp(tokens, linear.tokens, linear.add_ms)
        layer += add
        if full:
            layer += add + np.array(linear.save_ms)
        if tables.all_reduce is not None:
            column, launch = ("kernel_ms", 0.0) if full else ("median_ms", _LAUNCH_MS)
            layer += 2 * (all_reduce_ms(tables.all_reduce, column, tokens * tables.bytes_per_token) + launch)
        total = tables.num_layers * layer + (np.array(linear.embedding_ms) if full else 0.0)
        total = (np.maximum.accumulate(total) if full else total) * 1e-3
        return pack_curve(tokens, total, outer_slope(tokens, total))

    def _surface(self, table: SurfaceTable) -> Floats:
        """Return a table of attention in seconds over all layers, packed."""
        return pack_surface(table.rows, table.columns, np.array(table.ms) * (self.tables.num_layers * 1e-3))

    def _pack_kvgym(self) -> Floats:
        tables, prefill = self.tables, self.tables.prefill_pooled
        layers = tables.num_layers * 1e-3
        by_mean = self.composition == "homogeneous"
        packed = {
            "linear": self._linear(full=True),
            "decode": self._surface(tables.decode if by_mean else tables.decode_pooled),
            "own": pack_star(prefill.chunk, np.array(prefill.own_ns) * layers * 1e-6),
            "cached": pack_star(prefill.chunk, np.array(prefill.cached_ns) * layers * 1e-6),
        }
        return lay_out(
            ProfileParameters,
            packed,
            base=self.overhead.base_ms * 1e-3,
            per_request=self.overhead.per_request_ms * 1e-3,
            head_weights=tables.lm_head.weights_ms * 1e-3,
            head_row=tables.lm_head.row_ms * 1e-3,
            launch=prefill.launch_ms * layers,
            by_mean=float(by_mean),
        )

    def _pack_vidur(self) -> Floats:
        packed = {
            "linear": self._linear(full=False),
            "decode": self._surface(self.tables.decode),
            "prefill": self._surface(self.tables.prefill),
        }
        return lay_out(
            VidurParameters,
            packed,
            base=self.overhead.base_ms * 1e-3,
            per_request=self.overhead.per_request_ms * 1e-3,
            several=_SEVERAL,
        )

    def spec(self) -> dict[str, Any]:
        """Return a dict of plain values that :func:`make_batch_time` accepts.

        It names the hardware file if the model came from one, and contains the tables otherwise.
        """
        engine = self.engine or self.overhead.model_dump(mode="json")
        result: dict[str, Any] = {"kind": "profile", "composition": self.composition, "engine": engine}
        if self.hardware is not None:
            return {**result, "hardware": self.hardware}
        return {
            **result,
            "engine": self.overhead.model_dump(mode="json"),
            "tables": self.tables.model_dump(mode="json"),
            "source": self.source,
            "valid_range": {name: list(pair) for name, pair in self.valid_range.items()},
        }


def all_reduce_ms(table: AllReduceTable, column: str, size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return milliseconds of one all-reduce, extrapolated with the bandwidth of the table's outer half.

    Args:
        table: the measurements.
        column: ``"kernel_ms"`` or ``"median_ms"``.
        size: bytes, any shape.

    Raises:
        ConfigError: an unknown column.
    """
    if column not in ("kernel_ms", "median_ms"):
        raise ConfigError(f"all-reduce column must be 'kernel_ms' or 'median_ms', got {shown(column)}")
    x, y = np.array(table.size), np.array(getattr(table, column))
    slope = max(outer_slope(x, y), 0.0)
    result: NDArray[np.float64] = np.interp(size, x, y) + slope * np.maximum(size - x[-1], 0.0)
    return result
