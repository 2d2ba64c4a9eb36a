"""Batch time from tiles of matrix products: a staircase in the tokens, attention of chunks and decodes.

Source: Bari, Hegde and de Veciana, "Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
equations (2)-(7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.kv_capacity import check_tensor_parallel
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, ModelShape, require_plain
from kvgym.batch_time.models._checks import non_negative, number, preset, share
from kvgym.batch_time.models.plain import PlainBatchTime
from kvgym.compiling.kernel import jit
from kvgym.compiling.named import named_numbers, named_values
from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import batch_time_kernel
from kvgym.utils.arguments import explained


@dataclass(frozen=True)
class TiledNode:
    """The figures of (2)-(7): tiles, their rates, and the model's operators in tiles.

    Attributes:
        t_row: rows of an output tile of a matrix product.
        t_col: columns of it, one per token.
        t_red: reduction size of a tile.
        gemv_row: rows of a tile of a matrix-vector product.
        gemv_col: columns of it.
        num_layers: N.
        width: d of (6), all query heads.
        kv_width: d of (5), all KV heads.
        linear_pairs: tile-pairs of all weight matrices, for one column of tiles.
        num_sms: s.
        gemm_rate: mu(t_row, t_col, t_red), tile-pairs per second and SM.
        gemv_rate: mu(t_row, t_col), tiles of a matrix-vector product per second and SM.
        nonlinear_rate: mu_nLin, tokens per second.
    """

    t_row: int
    t_col: int
    t_red: int
    gemv_row: int
    gemv_col: int
    num_layers: int
    width: int
    kv_width: int
    linear_pairs: int
    num_sms: int
    gemm_rate: float
    gemv_rate: float
    nonlinear_rate: float

    @property
    def linear_rate(self) -> float:
        """mu_Lin of (4): columns of tiles per second through all weight matrices."""
        return self.num_sms * self.gemm_rate / self.linear_pairs

    def gemm_time(self, rows: int, columns: int, reduction: int) -> float:
        """Return seconds of a (rows, reduction) by (reduction, columns) product, (2)."""
        tiles = _up(rows, self.t_row) * _up(columns, self.t_col) * _up(reduction, self.t_red)
        return tiles / (self.num_sms * self.gemm_rate)

    def gemv_time(self, rows: int, columns: int) -> float:
        """Return seconds of a (rows, columns) matrix times a vector, (3)."""
        return _up(rows, self.gemv_row) * _up(columns, self.gemv_col) / (self.num_sms * self.gemv_rate)

    def decode_attention(self, position: int) -> float:
        """Return seconds of one layer's attention of a decode over ``position`` tokens, (5) with its 1/s."""
        return self.gemv_time(position, self.kv_width) + self.gemv_time(self.kv_width, position)

    def prefill_attention(self, start: int, chunk: int) -> float:
        """Return seconds of one layer's attention of ``chunk`` tokens from token ``start`` (1 = first), (6)."""
        length = start + chunk - 1
        return self.gemm_time(length, chunk, self.width) + self.gemm_time(self.width, chunk, length)


def weight_pairs(model: ModelShape, t_row: int, t_red: int) -> int:
    """Return the tile-pairs of a model's weight matrices for one column of tiles: the bracket before (4).

    Each (outputs, inputs) matrix counts ceil(outputs / t_row) * ceil(inputs / t_red).
    """
    hidden, queries, kv, ffn = model.hidden, model.query_width, model.kv_width, model.ffn
    layer = [(queries, hidden), (kv, hidden), (kv, hidden), (hidden, queries)]
    layer += [(ffn, hidden), (ffn, hidden), (hidden, ffn)]
    pairs = sum(_up(outputs, t_row) * _up(inputs, t_red) for outputs, inputs in layer)
    return model.num_layers * pairs + _up(model.vocab, t_row) * _up(hidden, t_red)


def tile_batch_time(
    node: TiledNode, *, prefills: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = ()
) -> float:
    """Return the time of a batch from its single requests, seconds: equation (7), without any overhead.

    Args:
        node: the figures.
        prefills: (i, c) of each chunk: its first token (1 = first of the prompt) and its number of tokens, so
            that i - 1 tokens were cached before.
        decodes: i of each decode: the tokens it attends to, its own included, so that i - 1 were cached.
    """
    tokens = len(decodes) + sum(chunk for _, chunk in prefills)
    attention = sum(node.decode_attention(i) for i in decodes)
    attention += sum(node.prefill_attention(i, c) for i, c in prefills)
    linear = _up(tokens, node.t_col) / node.linear_rate
    return linear + tokens / node.nonlinear_rate + node.num_layers * attention


def _up(length: int, tile: int) -> int:
    return -(-length // tile)


@jit
def _blocks(length: Any, tile: Any) -> Any:
    return (length + tile - 1) // tile


@jit
def _prefill_blocks(load: Any, rows: Any, columns: Any) -> Any:
    # Tiles of all chunks, ceil(a / rows) ceil(c / columns) each, with a = tokens cached before + chunk c.
    length = load.prefill_context + load.prefill_tokens
    area = load.prefill_products + load.prefill_squares
    padding = (rows - 1) * load.prefill_tokens + (columns - 1) * length
    corners = load.num_prefills * (rows - 1) * (columns - 1)
    most = float(area + padding + corners) / float(rows * columns)
    if load.num_prefills == 1:
        # The bound matters for sums that no single chunk can have; there it prevents the time from falling.
        return min(float(_blocks(length, rows) * _blocks(load.prefill_tokens, columns)), most)
    return most


@jit
def _decode_blocks(load: Any, tile: Any) -> Any:
    # Tiles of all decodes, ceil(i / tile) each, with i = tokens cached before + 1.
    length = load.decode_context + load.num_decodes
    if load.num_decodes == 1:
        return float(_blocks(length, tile))
    half = load.num_decodes * (tile - 1)
    return max(float(load.num_decodes), float(2 * length + half) / float(2 * tile))


class TileParameters(NamedTuple):
    """Parameters of the tile model: sizes of tiles as in :class:`TiledNode`, and seconds over all layers.

    Attributes:
        overhead: per batch.
        column: per column of weight tiles, ``t_col`` tokens.
        token: non-linear operators per token.
        scores: per tile of a chunk's first product, ``t_row`` x ``t_col``.
        values: per tile of a chunk's second product, ``t_red`` x ``t_col``.
        decode_scores: per ``gemv_row`` tokens of a decode's first product.
        decode_values: per ``gemv_col`` tokens of a decode's second product.
    """

    t_row: float
    t_col: float
    t_red: float
    gemv_row: float
    gemv_col: float
    overhead: float
    column: float
    token: float
    scores: float
    values: float
    decode_scores: float
    decode_values: float


_tile_parameters = named_numbers(TileParameters)


@batch_time_kernel
def _tile(load: Any, params: Any) -> Any:
    p = _tile_parameters(params)
    columns = int(p.t_col)
    tokens = load.prefill_tokens + load.num_decodes + load.draft_tokens
    total = p.overhead + p.column * float(_blocks(tokens, columns)) + p.token * float(tokens)
    if load.num_prefills > 0:
        total += p.scores * _prefill_blocks(load, int(p.t_row), columns)
        total += p.values * _prefill_blocks(load, int(p.t_red), columns)
    if load.num_decodes > 0:
        total += p.decode_scores * _decode_blocks(load, int(p.gemv_row))
        total += p.decode_values * _decode_blocks(load, int(p.gemv_col))
    return total


class TileBatchTime(PlainBatchTime):
    """Equation (7): ``ceil(tokens / t_col)`` columns of weight tiles, per-token work, and attention by tiles.

    The terms, which :func:`tile_batch_time` computes from single requests:

    - linear operators and LM head, (4): all weight matrices tiled once per ``t_col`` tokens of the batch;
    - non-linear operators: seconds per token, with a separate rate (the text and (7) print the name of the linear
      rate; Theorem 1 is right);
    - attention of a prefill chunk, (6): matrix products in tiles of ``t_row`` x ``t_col`` x ``t_red``;
    - attention of a decode, (5): two matrix-vector products in tiles of ``gemv_row`` x ``gemv_col``. Equation (5) as
      printed lacks the 1/s of (3), from which it follows; here all SMs share the work.

    Deviations from the paper:

    - The load has sums over the batch, not single chunks and contexts. The linear and the per-token term are exact,
      and so is attention in a batch with at most one chunk and at most one decode, which covers all prefills of the
      paper's RAD scheduler. With several chunks every tile that rounding up can add is counted (an upper bound, at
      most one more row and column of tiles per chunk); with less, adding a chunk could make the batch faster. With
      several decodes, with contexts that end anywhere in a tile, rounding up counts its mean, half a tile less half a
      token each, and a decode counts at least one tile.
    - The paper's transformer has one head, no output projection and an MLP of two matrices. Here the matrices
      are those of the model's shape (Q, K, V, O, the gated MLP, LM head). Heads are stacked: attention of
      chunks has the width of all query heads, attention of decodes the width of the KV heads, which is what must
      be read from memory.
    - A node of several GPUs counts as one with all their SMs, as in the paper; transfers between them are
      not modelled. With fewer KV heads than GPUs heads are copied.
    - ``overhead`` is added; 0 gives (7).

    Rates that are not given follow from the data sheet: tiles of products at the attainable FLOP/s, tiles of
    matrix-vector products and non-linear operators at the attainable bandwidth. The number of SMs then cancels.
    As in (2) and (3), nothing is rounded to whole waves of SMs.

    Args:
        gpu: figures of the GPU, a preset name or a file.
        model: shape of a dense model, a preset name or a file.
        tensor_parallel: GPUs that the model is split over.
        t_row: rows of an output tile. (256, 128, 32) is one of the two best tilings of an A100 according to
            Section 2.3, the one with at most 128 columns (Section 4.3: "typically as small as 64 or 128").
        t_col: columns (tokens) of an output tile: the width of a step of the staircase.
        t_red: reduction size of a tile.
        gemv_row: rows of a tile of a matrix-vector product; not given in the paper.
        gemv_col: columns of that tile.
        num_sms: SMs of one GPU; None = those of ``gpu``.
        tile_rate: tile-pairs per second and SM in matrix products, mu(t_row, t_col, t_red).
        gemv_rate: tiles per second and SM in matrix-vector products, mu(t_row, t_col).
        nonlinear_rate: tokens per second in non-linear operators, mu_nLin.
        compute_efficiency: attainable share of the peak FLOP/s, in (0, 1].
        memory_efficiency: attainable share of the memory bandwidth, in (0, 1].
        overhead: seconds per batch outside the GPU, including empty batches.

    Raises:
        ConfigError: an argument is out of range.
        UnknownNameError: an unknown preset.

    Attributes:
        node: the figures of (2)-(7), for the exact formula and for theory.
    """

    kind = "tile"
    kernel = _tile

    @explained
    def __init__(
        self,
        gpu: GPU | str | Mapping[str, Any],
        model: ModelShape | str | Mapping[str, Any],
        *,
        tensor_parallel: int = 1,
        t_row: int = 256,
        t_col: int = 128,
        t_red: int = 32,
        gemv_row: int = 64,
        gemv_col: int = 64,
        num_sms: int | None = None,
        tile_rate: float | None = None,
        gemv_rate: float | None = None,
        nonlinear_rate: float | None = None,
        compute_efficiency: float = 0.6,
        memory_efficiency: float = 0.8,
        overhead: float = 0.003,
    ) -> None:
        self.gpu, self.model = preset(GPUS, gpu), preset(MODELS, model)
        self.device = self.gpu.device
        require_plain(self.model, "batch time 'tile'")
        check_tensor_parallel(self.model, tensor_parallel)
        sms = self.gpu.num_sms if num_sms is None else num_sms
        if sms is None:
            raise ConfigError(f"batch time 'tile': GPU {self.gpu.name} has no num_sms; set it there or here")
        self.tensor_parallel = int(tensor_parallel)
        self.t_row, self.t_col = _whole("t_row", t_row), _whole("t_col", t_col)
        self.t_red = _whole("t_red", t_red)
        self.gemv_row, self.gemv_col = _whole("gemv_row", gemv_row), _whole("gemv_col", gemv_col)
        self.num_sms = _whole("num_sms", sms)
        self.tile_rate, self.gemv_rate = _rate("tile_rate", tile_rate), _rate("gemv_rate", gemv_rate)
        self.nonlinear_rate = _rate("nonlinear_rate", nonlinear_rate)
        self.compute_efficiency = share("tile", "compute_efficiency", compute_efficiency)
        self.memory_efficiency = share("tile", "memory_efficiency", memory_efficiency)
        self.overhead = non_negative("tile", "overhead", overhead)
        self.node = self._node()
        self.source = f"tiles of {self.model.name} on {tensor_parallel} x {self.gpu.name}"

    def _node(self) -> TiledNode:
        """Return the figures of (2)-(7), with missing rates from the data sheet."""
        model, parts = self.model, self.tensor_parallel
        tile_rate, gemv_rate, nonlinear_rate = self.tile_rate, self.gemv_rate, self.nonlinear_rate
        bandwidth = self.gpu.memory_bandwidth * self.memory_efficiency
        if tile_rate is None:
            flops = self.gpu.peak_flops * self.compute_efficiency
            tile_rate = flops / (self.num_sms * 2 * self.t_row * self.t_col * self.t_red)
        if gemv_rate is None:
            gemv_rate = bandwidth / (self.num_sms * self.gemv_row * self.gemv_col * model.dtype_bytes)
        if nonlinear_rate is None:
            # Read and written per token and layer: two norms and two residuals; SiLU times the gate.
            entries = model.num_layers * (10 * model.hidden + 3 * model.ffn)
            nonlinear_rate = bandwidth * parts / (entries * model.dtype_bytes)
        return TiledNode(
            t_row=self.t_row,
            t_col=self.t_col,
            t_red=self.t_red,
            gemv_row=self.gemv_row,
            gemv_col=self.gemv_col,
            num_layers=model.num_layers,
            width=model.query_width,
            kv_width=model.head_dim * max(parts, model.num_kv_heads),
            linear_pairs=weight_pairs(model, self.t_row, self.t_red),
            num_sms=self.num_sms * parts,
            gemm_rate=tile_rate,
            gemv_rate=gemv_rate,
            nonlinear_rate=nonlinear_rate,
        )

    def params(self) -> NDArray[np.float64]:
        """Return :class:`TileParameters`."""
        node = self.node
        pair = node.num_layers / (node.num_sms * node.gemm_rate)
        vector = node.num_layers / (node.num_sms * node.gemv_rate)
        return np.array(
            TileParameters(
                node.t_row,
                node.t_col,
                node.t_red,
                node.gemv_row,
                node.gemv_col,
                overhead=self.overhead,
                column=1 / node.linear_rate,
                token=1 / node.nonlinear_rate,
                scores=pair * _up(node.width, node.t_red),
                values=pair * _up(node.width, node.t_row),
                decode_scores=vector * _up(node.kv_width, node.gemv_col),
                decode_values=vector * _up(node.kv_width, node.gemv_row),
            )
        )

    @property
    def figures(self) -> TileParameters:
        """The parameters by name."""
        return named_values(TileParameters, self.params())


def _whole(name: str, value: object) -> int:
    result = number("tile", name, value)
    if result != int(result) or result < 1:
        raise ConfigError(f"batch time 'tile': {name} must be a whole number >= 1, got {shown(value)}")
    return int(result)


def _rate(name: str, value: object) -> float | None:
    if value is None:
        return None
    result = number("tile", name, value)
    if result <= 0:
        raise ConfigError(f"batch time 'tile': {name} must be > 0, got {shown(value)}")
    return result
