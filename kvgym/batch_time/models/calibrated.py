"""Batch time from calibrated operator tables, summed over the layers, in two compositions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.interpolation import (
    FAR,
    Floats,
    curve,
    locate,
    pack_curve,
    pack_surface,
    surface,
)
from kvgym.batch_time.hardware.operator_tables import AllReduceTable, ProfileTables
from kvgym.batch_time.hardware.overhead import NONE, EngineOverhead
from kvgym.compiling.kernel import Kernel, jit
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.simulator.batch_time import BatchTimeModel, Device, batch_time_kernel
from kvgym.utils.arguments import explained

_HEADER = 16
# Header of the "kvgym" composition: overhead, LM head (weights, per row), prefill launch, then places.
# Header of the "vidur" composition: overhead, factor for several, then places. In both the last entry is the
# overhead per request.
_PER_REQUEST = _HEADER - 1


@jit
def _star(params: Any, start: int, count: int, amount: float, weighted: float) -> Any:
    """Return ``amount * f(weighted / amount)`` for a piecewise linear f, also defined for amount 0.

    The parameters are ``count`` nodes, then intercepts and slopes of the ``count - 1`` segments.
    """
    x = weighted / amount if amount > 0.0 else 1.0e12
    i = start + count + locate(params, start, count, x)
    return params[i] * amount + params[i + count - 1] * weighted


@batch_time_kernel
def _kvgym(load: Any, params: Any) -> Any:
    seconds = params[0]
    tokens = float(load.prefill_tokens + load.num_decodes)
    if tokens > 0.0:
        seconds += curve(params, int(params[4]), int(params[5]), tokens)
    rows = float(load.num_prefills + load.num_decodes)
    if rows > 0.0:
        seconds += max(params[1], params[2] * rows) + params[_PER_REQUEST] * rows
    if load.num_decodes > 0:
        number, context = float(load.num_decodes), float(load.decode_context)
        if params[12] > 0.0:
            context /= number
        seconds += surface(params, int(params[6]), int(params[7]), int(params[8]), number, context)
    if load.num_prefills > 0:
        n = int(params[10])
        chunks, squares = float(load.prefill_tokens), float(load.prefill_squares)
        cached, products = float(load.prefill_context), float(load.prefill_products)
        seconds += params[3]
        seconds += _star(params, int(params[9]), n, chunks, squares)
        seconds += _star(params, int(params[11]), n, cached, products)
    return seconds


@jit
def _round_up(value: float, step: float) -> Any:
    return np.ceil(value / step) * step


@batch_time_kernel
def _vidur(load: Any, params: Any) -> Any:
    seconds = params[0] + params[_PER_REQUEST] * float(load.num_prefills + load.num_decodes)
    tokens = float(load.prefill_tokens + load.num_decodes)
    if tokens > 0.0:
        seconds += curve(params, int(params[4]), int(params[5]), _round_up(tokens, 8.0))
    if load.num_decodes > 0:
        number = float(load.num_decodes)
        mean = _round_up(float(load.decode_context) / number, 64.0)
        decode = surface(params, int(params[6]), int(params[7]), int(params[8]), number, mean)
        seconds += decode * (params[1] if load.num_decodes > 1 else 1.0)
    if load.num_prefills > 0:
        chunk, cached = np.sqrt(float(load.prefill_squares)), float(load.prefill_context)
        prefill = surface(params, int(params[9]), int(params[10]), int(params[11]), chunk, cached)
        seconds += prefill * (params[1] if load.num_prefills > 1 else 1.0)
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
        self.engine = engine
        self.source = source
        self.valid_range = dict(valid_range or {})
        self.hardware = hardware
        self.device = device
        self._params = self._pack_vidur() if composition == "vidur" else self._pack_kvgym()
        self._params[0] = overhead.base_ms * 1e-3
        self._params[_PER_REQUEST] = overhead.per_request_ms * 1e-3

    def params(self) -> NDArray[np.float64]:
        """Return a copy of the header and the tables, in seconds and summed over the layers."""
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
        middle = int(np.searchsorted(tokens, tokens[-1] / 2))
        middle = min(middle, len(tokens) - 2)
        return pack_curve(tokens, total, (total[-1] - total[middle]) / (tokens[-1] - tokens[middle]))

    def _pack_kvgym(self) -> Floats:
        tables = self.tables
        layers = tables.num_layers * 1e-3
        linear = self._linear(full=True)
        pooled = tables.decode_pooled if self.composition == "kvgym" else tables.decode
        decode = pack_surface(pooled.rows, pooled.columns, np.array(pooled.ms) * layers)
        prefill = tables.prefill_pooled
        own = _pack_star(prefill.chunk, np.array(prefill.own_ns) * layers * 1e-6)
        cached = _pack_star(prefill.chunk, np.array(prefill.cached_ns) * layers * 1e-6)
        places = np.cumsum([_HEADER, len(linear), len(decode), len(own)])
        header = np.zeros(_HEADER)
        header[1:4] = (
            tables.lm_head.weights_ms * 1e-3,
            tables.lm_head.row_ms * 1e-3,
            (prefill.launch_ms * layers),
        )
        header[4:9] = places[0], len(linear) // 2, places[1], len(pooled.rows) + 1, len(pooled.columns) + 1
        header[9:12] = places[2], len(prefill.chunk), places[3]
        header[12] = self.composition == "homogeneous"
        return np.concatenate([header, linear, decode, own, cached])

    def _pack_vidur(self) -> Floats:
        tables = self.tables
        layers = tables.num_layers * 1e-3
        linear = self._linear(full=False)
        surfaces = [
            pack_surface(t.rows, t.columns, np.array(t.ms) * layers) for t in (tables.decode, tables.prefill)
        ]
        places = np.cumsum([_HEADER, len(linear), len(surfaces[0])])
        header = np.zeros(_HEADER)
        header[1] = _SEVERAL
        header[4:6] = places[0], len(linear) // 2
        for i, table in enumerate((tables.decode, tables.prefill)):
            header[6 + 3 * i : 9 + 3 * i] = places[i + 1], len(table.rows) + 1, len(table.columns) + 1
        return np.concatenate([header, linear, *surfaces])

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
    middle = min(int(np.searchsorted(x, x[-1] / 2)), len(x) - 2)
    slope = max((y[-1] - y[middle]) / (x[-1] - x[middle]), 0.0)
    result: NDArray[np.float64] = np.interp(size, x, y) + slope * np.maximum(size - x[-1], 0.0)
    return result


def _pack_star(x: tuple[float, ...], y: Floats) -> Floats:
    """Return nodes (with a far one), intercepts and slopes; the last segment has no end."""
    nodes, y = np.array(x), y.copy()
    for i in range(1, len(y)):  # rounding in the file may have violated these bounds
        most = y[i - 1] * nodes[i] / nodes[i - 1] if i > 1 else y[i]
        y[i] = min(max(y[i], y[i - 1]), most)
    slopes = np.maximum(np.diff(y) / np.diff(nodes), 0.0)
    intercepts = np.maximum(y[:-1] - slopes * nodes[:-1], 0.0)
    return np.concatenate([[*nodes[:-1], FAR], intercepts, slopes])
