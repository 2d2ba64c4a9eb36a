"""Batch time from measured kernels of a GPU, assembled for one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import Floats, curve, pack_curve, pack_surface, surface
from kvgym.batch_time.hardware.overhead import NONE, EngineOverhead
from kvgym.simulator.batch_time import BatchTimeModel, Device, batch_time_kernel
from kvgym.utils.arguments import explained

_HEADER = 16
# Per batch, per batch with tokens, per request; places and sizes of linear, head, decode, prefill; pair, least chunk.


@batch_time_kernel
def _kernels(load: Any, params: Any) -> Any:
    seconds = params[0]
    tokens = float(load.prefill_tokens + load.num_decodes)
    if tokens > 0.0:
        seconds += params[1] + curve(params, int(params[3]), int(params[4]), tokens)
    rows = float(load.num_prefills + load.num_decodes)
    if rows > 0.0:
        seconds += params[2] * rows + curve(params, int(params[5]), int(params[6]), rows)
    if load.num_decodes > 0:
        number, context = float(load.num_decodes), float(load.decode_context)
        seconds += surface(params, int(params[7]), int(params[8]), int(params[9]), number, context)
    if load.num_prefills > 0:
        chunk = np.sqrt(float(load.prefill_squares))
        seconds += curve(params, int(params[10]), int(params[11]), chunk)
        pairs = max(float(load.prefill_products), params[13] * float(load.prefill_context))
        seconds += params[12] * pairs
    return seconds


@dataclass(frozen=True)
class KernelTables:
    """Kernels of one model on one worker, in seconds summed over the layers.

    Attributes:
        linear: tokens of the batch, shape (n,), and seconds of everything that depends only on them, shape (n,).
        head: requests of the batch and seconds of the LM head, shapes (h,).
        decode: decodes (a,), KV tokens of all of them (b,) and seconds of their attention, (a, b).
        prefill: tokens of a chunk without cached tokens and seconds of its attention, shapes (t,).
        pair: seconds per pair of a token of a chunk and a cached token.
        least_chunk: tokens of a chunk below which a cached token costs as much as with that many.
        per_batch: seconds of small kernels in a batch with tokens.
    """

    linear: tuple[Floats, Floats]
    head: tuple[Floats, Floats]
    decode: tuple[Floats, Floats, Floats]
    prefill: tuple[Floats, Floats]
    pair: float
    least_chunk: float
    per_batch: float


class KernelBatchTime(BatchTimeModel):
    """Sum of measured kernels: matrix products, attention, all-reduces, experts, small kernels, engine.

    - Everything that depends on the tokens of the batch is one curve, linear between measured numbers of tokens; the
      steps of tiles stay. The LM head is a curve over requests.
    - Decode attention is a table over (decodes, KV tokens of all), since a load does not have the single contexts; it
      is non-decreasing in both. In a batch with prefills it is added to theirs.
    - Prefill attention of several chunks is that of one chunk with as many pairs of query and key: sqrt(sum c²) tokens.
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
        self.hardware = hardware
        self.engine = engine
        self.device = device
        self.source = source
        self.valid_range = dict(valid_range or {})
        self._params = self._pack()

    def params(self) -> NDArray[np.float64]:
        """Return a copy of the header and the tables, in seconds."""
        return self._params.copy()

    def _pack(self) -> Floats:
        tables = self.tables
        header = np.zeros(_HEADER)
        header[:3] = self.overhead.base_ms * 1e-3, tables.per_batch, self.overhead.per_request_ms * 1e-3
        header[12:14] = tables.pair, tables.least_chunk
        parts, place, numbers = [header], _HEADER, []
        rows, columns, values = tables.decode
        for part, sizes in (
            (_packed(tables.linear), [len(tables.linear[0]) + 1]),
            (_packed(tables.head), [len(tables.head[0]) + 1]),
            (pack_surface(rows, columns, values), [len(rows) + 1, len(columns) + 1]),
            (_packed(tables.prefill), [len(tables.prefill[0]) + 1]),
        ):
            numbers += [place, *sizes]
            parts.append(part)
            place += len(part)
        header[3 : 3 + len(numbers)] = numbers
        return np.concatenate(parts)

    def spec(self) -> dict[str, Any]:
        """Return a dict of plain values that :func:`make_batch_time` accepts: hardware and engine by name."""
        engine = self.engine or self.overhead.model_dump(mode="json")
        return {"kind": "kernels", "hardware": self.hardware, "engine": engine}


def _packed(table: tuple[Floats, Floats]) -> Floats:
    """Return a curve that continues with the slope of its outer half, or with that of its last segment if larger.

    The second is for attention, which grows with the square of the chunk.
    """
    x, y = table
    middle = min(int(np.searchsorted(x, x[-1] / 2)), len(x) - 2)
    slopes = ((y[-1] - y[i]) / (x[-1] - x[i]) for i in (middle, len(x) - 2))
    return pack_curve(x, y, max(*slopes, 0.0))
