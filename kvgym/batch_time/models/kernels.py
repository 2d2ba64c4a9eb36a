"""Batch time from measured kernels of a GPU, assembled for one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import (
    Floats,
    curve,
    lay_out,
    outer_slope,
    pack_curve,
    pack_surface,
    surface,
)
from kvgym.batch_time.hardware.overhead import NONE, EngineOverhead
from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.named import named_numbers
from kvgym.simulator.batch_time import BatchTimeModel, Device, batch_time_kernel
from kvgym.utils.arguments import explained


class KernelParameters(NamedTuple):
    """Parameters of measured kernels: seconds, and the places of :class:`KernelTables`.

    Attributes:
        base: overhead of the engine per batch.
        per_request: overhead of the engine per request; a draft counts as one.
        per_batch: small kernels of all layers, in a batch with tokens.
        pair: see :class:`KernelTables`.
        least_chunk: see :class:`KernelTables`.
        measured_pairs: pairs of query and key in the longest measured chunk.
        windowed: see :class:`KernelTables`.
        window: see :class:`KernelTables`.
        linear: place of the curve over tokens.
        head: place of the curve over requests.
        decode: place of the surface over decodes and their KV tokens.
        prefill: place of the curve over the tokens of a chunk.
    """

    base: float
    per_request: float
    per_batch: float
    pair: float
    least_chunk: float
    measured_pairs: float
    windowed: float
    window: float
    linear: float
    head: float
    decode: float
    prefill: float


_kernel_parameters = named_numbers(KernelParameters)


@jit_inline
def seconds_of_kernels(
    params: Any, prefills: float, decodes: float, prefill: Any, decode_context: float, drafts: float
) -> Any:
    """Return the seconds of a batch.

    Args:
        params: :class:`KernelParameters` and tables.
        prefills: requests with a chunk; a share of them, like all other quantities, if several workers share a load.
        decodes: requests that decode a token.
        prefill: tokens of the chunks, cached tokens before them, squares of the chunks, products of both.
        decode_context: KV tokens of the decodes.
        drafts: tokens that they verify besides their own; attention reads the KV of a request once for all of them.
    """
    p = _kernel_parameters(params)
    prefill_tokens, context, squares, products = prefill
    seconds = p.base
    tokens = prefill_tokens + decodes + drafts
    if tokens > 0.0:
        seconds += p.per_batch + curve(params, p.linear, tokens)
    rows = prefills + decodes + drafts
    if rows > 0.0:
        seconds += p.per_request * rows + curve(params, p.head, rows)
    if decodes > 0.0:
        seconds += surface(params, p.decode, decodes, decode_context)
    if prefills > 0.0:
        chunk = np.sqrt(squares)
        seconds += curve(params, p.prefill, chunk)
        pairs = max(products, p.least_chunk * context)
        # With a window, w (w - 1) / 2 cached keys are in reach of the tokens of a chunk.
        queries = min(prefill_tokens, 0.5 * p.window * prefills)
        reach = p.window * max(queries, p.least_chunk * prefills)
        beyond = max(chunk * (chunk + 1.0) / 2 - p.measured_pairs, 0.0)
        seconds += p.pair * (
            (1.0 - p.windowed) * (pairs + beyond)
            + p.windowed * (min(pairs, reach) + min(beyond, p.window * chunk))
        )
    return seconds


@batch_time_kernel
def _kernels(load: Any, params: Any) -> Any:
    prefill = (
        float(load.prefill_tokens),
        float(load.prefill_context),
        float(load.prefill_squares),
        float(load.prefill_products),
    )
    return seconds_of_kernels(
        params,
        float(load.num_prefills),
        float(load.num_decodes),
        prefill,
        float(load.decode_context),
        float(load.draft_tokens),
    )


@dataclass(frozen=True)
class KernelTables:
    """Kernels of one model on one worker, in seconds summed over the layers.

    Attributes:
        linear: tokens of the batch, shape (n,), and seconds of everything that depends only on them, shape (n,).
        head: requests of the batch and seconds of the LM head, shapes (h,).
        decode: decodes (a,), KV tokens of all of them (b,) and seconds of their attention, (a, b).
        prefill: tokens of a chunk without cached tokens and seconds of its attention, shapes (t,).
        pair: seconds per pair of a token of a chunk and a cached token, or one of the chunk beyond the longest in
            ``prefill``.
        least_chunk: tokens of a chunk below which a cached token costs as much as with that many.
        layers: layers with small kernels that were not measured.
        windowed: share of the layers with a sliding window, where tokens of a chunk reach few of the cached ones.
        window: tokens of that window; the other tables are limited to it already.
        shared: with attention in data parallel, tokens of all ranks and seconds of the experts, shapes (n,). All other
            fields are those of a rank then.
    """

    linear: tuple[Floats, Floats]
    head: tuple[Floats, Floats]
    decode: tuple[Floats, Floats, Floats]
    prefill: tuple[Floats, Floats]
    pair: float
    least_chunk: float
    layers: int
    windowed: float = 0.0
    window: float = 0.0
    shared: tuple[Floats, Floats] | None = None


class KernelBatchTime(BatchTimeModel):
    """Sum of measured kernels: matrix products, attention, all-reduces, experts, small kernels, engine.

    - Everything that depends on the tokens of the batch is one curve, linear between measured numbers of tokens; the
      steps of tiles stay. The LM head is a curve over requests.
    - Decode attention is a table over (decodes, KV tokens of all), since a load does not have the single contexts; it
      is non-decreasing in both. In a batch with prefills it is added to theirs.
    - Prefill attention of several chunks equals one chunk with as many pairs of query and key: sqrt(sum c²) tokens.
      Beyond the longest measured chunk each further pair takes the time of a pair with a cached token, so that a prompt
      takes about as long whole as in chunks.
    - A cached token costs a time per token of the chunk, but no less than with the fewest that fill the GPU.

    It is non-decreasing in every field of the load.

    Args:
        tables: the kernels.
        overhead: time of a batch outside the GPU.
        hardware: name of the hardware, for :meth:`spec`.
        engine: name of the engine there.
        device: the GPU, for defaults of policies that depend on it.
        source: source of the tables.
        valid_range: measured range by quantity.
    """

    kernel = _kernels

    @explained
    def __init__(
        self,
        tables: KernelTables,
        *,
        overhead: EngineOverhead = NONE,
        hardware: str = "",
        engine: str | None = None,
        device: Device | None = None,
        source: str = "",
        valid_range: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.tables = tables
        self.overhead = overhead
        self.asynchronous, self.api_time = overhead.asynchronous, overhead.api_ms / 1e3
        self.hardware = hardware
        self.engine = engine
        self.device = device
        self.source = source
        self.valid_range = dict(valid_range or {})
        self._params = self._pack()

    def params(self) -> NDArray[np.float64]:
        """Return a copy of :class:`KernelParameters` and the tables, in seconds."""
        return self._params.copy()

    def _pack(self) -> Floats:
        tables = self.tables
        chunks, attention = tables.prefill
        packed = {
            "linear": packed_curve(tables.linear),
            "head": packed_curve(tables.head),
            "decode": pack_surface(*tables.decode),
            "prefill": pack_curve(chunks, attention, 0.0),
        }
        return lay_out(
            KernelParameters,
            packed,
            base=self.overhead.base_ms * 1e-3,
            per_request=self.overhead.per_request_ms * 1e-3,
            per_batch=tables.layers * self.overhead.per_layer_ms * 1e-3,
            pair=tables.pair,
            least_chunk=tables.least_chunk,
            measured_pairs=chunks[-1] * (chunks[-1] + 1.0) / 2,
            windowed=tables.windowed,
            window=tables.window,
        )

    def spec(self) -> dict[str, Any]:
        """Return a dict of plain values that :func:`make_batch_time` accepts: hardware and engine by name."""
        engine = self.engine or self.overhead.model_dump(mode="json")
        return {"kind": "kernels", "hardware": self.hardware, "engine": engine}


def packed_curve(table: tuple[Floats, Floats]) -> Floats:
    """Return a curve that continues with the slope of its outer half, or of its last segment if larger."""
    x, y = table
    last = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return pack_curve(x, y, max(outer_slope(x, y), last, 0.0))
