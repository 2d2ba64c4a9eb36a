"""Assemble a GPU's operator tables into the batch time of one model on a number of GPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvgym.batch_time.hardware.interpolation import Floats, isotonic, surface_values
from kvgym.batch_time.hardware.shapes import BYTES, GPU, Latent, ModelShape
from kvgym.batch_time.models.kernels import KernelTables
from kvgym.batch_time.models.roofline import ASSUMED_SHARES, RooflineBatchTime
from kvgym.batch_time.operators.tables import MEASURED_TYPES, Grid, MissingOperatorError, OperatorTables

LATENT_WIDTHS = (512, 128, 64, 128)
"""``kv_rank``, ``nope_dim``, ``rope_dim`` and ``value_dim`` of measured latent attention: DeepSeek V2, V3, Kimi K2."""

LATENT_MODULE = (7168, 1536)
"""Hidden width and ``query_rank`` of the products around measured latent attention: DeepSeek-V3."""

LEAST_ATTENTION = 0.1
"""Least share of a measured module that is attention, as its products were measured apart, with noise."""

QUERY_TILE = 64
"""Query rows per block of the attention kernel.

A chunk takes the time of at least one tile, and one with fewer tiles than multiprocessors does not fill the GPU.
FlashAttention 2 with heads of 128 has tiles of 64 on the cards where chunks with cached tokens were measured (RTX 4090,
RTX PRO 6000).
"""

BALANCE = "power_law_1.01"
"""Usual distribution of tokens over experts: a few experts get most of them, as measured engines found."""

_BANDWIDTH_SHARE = 0.8  # attained by element-wise kernels
_TOTALS = np.concatenate([[0.0], np.round(np.geomspace(16.0, 2.0**22, 72))])


class Assembly:
    """The kernels of one model on one worker.

    A group of operators that the tables lack is replaced by the roofline of the same model and GPU.

    Args:
        operators: tables of the GPU.
        gpu: its data sheet, for what the tables lack.
        model: the model.
        tensor_parallel: GPUs over which attention and dense layers are split.
        data_parallel: groups of GPUs with requests of their own; the routed experts are spread over all groups.
        expert_parallel: groups of GPUs with whole experts of their own; the GPUs of a group split each of them.
        balance: load of the experts: a distribution of the tables, such as ``"power_law_1.01"``.
        collective_scale: factor of measured collectives, for links of another speed.
        library: library of the kernels, where several were measured.
        fused_quantisation: whether the inputs of 8-bit products are quantised by the operator before them.

    Attributes:
        replaced: what the tables lack, by what replaces it: ``"roofline"``, or another type of weights.
    """

    def __init__(
        self,
        operators: OperatorTables,
        gpu: GPU,
        model: ModelShape,
        tensor_parallel: int,
        *,
        data_parallel: int = 1,
        expert_parallel: int = 1,
        balance: str = BALANCE,
        collective_scale: float = 1.0,
        library: str = "vllm",
        fused_quantisation: bool = True,
    ) -> None:
        self.operators, self.gpu, self.model, self.parts = operators, gpu, model, tensor_parallel
        self.data_parallel, self.expert_parallel, self.balance = data_parallel, expert_parallel, balance
        self.collective_scale = collective_scale
        self.library, self.fused_quantisation = library, fused_quantisation
        self.replaced: dict[str, list[str]] = {}
        compute, memory = gpu.efficiencies(model.weight_dtype) or ASSUMED_SHARES
        self._roofline = RooflineBatchTime(
            gpu,
            model,
            tensor_parallel=tensor_parallel,
            compute_efficiency=compute,
            memory_efficiency=memory,
            overhead=0.0,
        )

    def tables(self) -> KernelTables:
        """Return the tables of the batch-time model."""
        chunks, prefill, pair = self._prefill()
        seconds = self.model.num_layers * 1e-3
        return KernelTables(
            linear=self._linear(),
            head=self._head(),
            decode=self._decode(),
            prefill=(chunks, isotonic(prefill * seconds)),
            pair=pair * seconds,
            least_chunk=max(QUERY_TILE, QUERY_TILE * (self.gpu.num_sms or 0) / self._heads()[0]),
            layers=0 if self.operators.elementwise and self.parts == 1 else self.model.num_layers,
            shared=self._shared() if self.data_parallel > 1 else None,
            windowed=self._windowed,
            window=0.0 if self.model.window is None else self.model.window.tokens,
        )

    @property
    def _windowed(self) -> float:
        """Share of the layers with a sliding window."""
        return 0.0 if self.model.window is None else self.model.window.layers / self.model.num_layers

    def _linear(self) -> tuple[Floats, Floats]:
        model, parts = self.model, self.parts
        tokens = self.operators.tokens()
        layer = self._elementwise(tokens)
        for n, k in self._attention_products():
            layer += self._product(model.dense_dtype, n, k, tokens)
        dense, mixed = model.num_layers, 0
        experts = model.experts
        if experts is not None:
            dense, mixed = experts.dense_layers, model.num_layers - experts.dense_layers
        total = model.num_layers * layer
        if dense:
            total += dense * self._mlp(model.ffn, tokens)
        reduces = 2 * model.num_layers
        if experts is not None:
            block = self._product(None, experts.count, model.hidden, tokens)
            if experts.shared_ffn:
                block += self._mlp(experts.shared_ffn, tokens)
            if self.data_parallel == 1:
                block += self._experts(tokens)
            elif not experts.shared_ffn:
                reduces -= mixed  # the exchange of the experts sums up
            total += mixed * block
        if parts > 1:
            size = tokens * model.hidden * model.dtype_bytes
            total += reduces * self._collective("all_reduce", parts, size)
        return tokens, isotonic(total * 1e-3)

    def _shared(self) -> tuple[Floats, Floats]:
        """Return tokens of all ranks, and seconds of the experts and of the exchange with them.

        Every GPU gets the tokens of all ranks before the experts, and a sum of their outputs after them: an all-gather
        and a reduce-scatter, the default of vLLM.
        """
        model, experts = self.model, self.model.experts
        assert experts is not None
        tokens = self.operators.tokens()
        size = tokens * model.hidden * model.dtype_bytes
        exchange = 2 * self._collective("all_gather", self.parts * self.data_parallel, size)
        total = (model.num_layers - experts.dense_layers) * (self._experts(tokens) + exchange)
        return tokens, isotonic(total * 1e-3)

    def _attention_products(self) -> list[tuple[float, float]]:
        """Return (n, k) of the projections of one layer on one GPU."""
        model, parts = self.model, self.parts
        hidden, heads = model.hidden, model.num_heads / parts
        if model.latent is not None:
            return _latent_products(model.latent, hidden, model.latent.query_rank, heads)
        kv_heads = max(model.num_kv_heads / parts, 1)
        width = heads * model.head_dim
        return [(width + 2 * kv_heads * model.head_dim, hidden), (hidden, width)]

    def _mlp(self, width: int, tokens: Floats) -> Floats:
        dtype, hidden, part = self.model.dense_dtype, self.model.hidden, width / self.parts
        return self._product(dtype, 2 * part, hidden, tokens) + self._product(dtype, hidden, part, tokens)

    def _product(self, dtype: str | None, n: float, k: float, tokens: Floats) -> Floats:
        """Return milliseconds of one matrix product."""
        try:
            nodes, ms = self.operators.matmul_ms(dtype, n, k, fused_quantisation=self.fused_quantisation)
            self._note(dtype, self.operators.matmul_type(dtype), "matrix products")
        except MissingOperatorError as error:
            self._replace("roofline", str(error))
            flops = self.gpu.flops(dtype) * self._roofline.compute_efficiency  # type: ignore[arg-type]
            weight = BYTES[dtype] if dtype else self.model.dtype_bytes
            size = n * k * weight + tokens * (n + k) * self.model.dtype_bytes
            return 1e3 * np.maximum(
                2 * tokens * n * k / flops, size / self._bandwidth(self._roofline.memory_efficiency)
            )
        return Grid((nodes,), ms).at(tokens)

    def _experts(self, tokens: Floats) -> Floats:
        """Return milliseconds of the routed experts of one layer."""
        model, experts = self.model, self.model.experts
        assert experts is not None
        gpus = self.parts * self.data_parallel
        split = (gpus // self.expert_parallel, self.expert_parallel)
        shape = (model.hidden, experts.ffn, experts.per_token, experts.count, *split)
        try:
            name, grid = self.operators.experts_of(model.weight_dtype, self.balance, shape)
            self._note(model.weight_dtype, name, "experts")
        except MissingOperatorError as error:
            self._replace("roofline", str(error))
            used = 1 - (1 - experts.per_token / experts.count) ** tokens
            weights = experts.count * 3 * model.hidden * experts.ffn / gpus
            flops = self.gpu.flops(model.weight_dtype) * self._roofline.compute_efficiency
            bandwidth = self._bandwidth(self._roofline.memory_efficiency)
            work = 2 * tokens * experts.per_token * 3 * model.hidden * experts.ffn / gpus
            size = used * weights * model.bytes_per_weight(model.weight_dtype)
            return 1e3 * np.maximum(work / flops, size / bandwidth)
        return grid.at(tokens)

    def _collective(self, kind: str, degree: int, size: Floats) -> Floats:
        """Return milliseconds of one collective of ``size`` bytes over a number of GPUs."""
        try:
            return self.operators.collective_ms(kind, degree, size) * self.collective_scale
        except MissingOperatorError as error:
            self._replace("roofline", str(error))
            rounds = {"all_reduce": 2, "all_gather": 1}[kind]
            share = rounds * (degree - 1) / degree
            return 1e3 * (self.gpu.link_latency + share * size / self.gpu.link_bandwidth)

    def _elementwise(self, tokens: Floats) -> Floats:
        """Return milliseconds per layer of norms, rotary embedding, activation and writes of the cache."""
        model = self.model
        if model.hidden in self.operators.elementwise and model.experts is None and self.parts == 1:
            return self.operators.elementwise[model.hidden].at(tokens)
        width = 8 * model.hidden + (2 * model.query_width + 3 * model.kv_entries) / self.parts
        width += 3 * model.mlp_widths / model.num_layers / self.parts
        return 1e3 * tokens * width * model.dtype_bytes / self._bandwidth()

    def _head(self) -> tuple[Floats, Floats]:
        rows = self.operators.tokens()
        rows = rows[rows <= 8192]
        ms = self._product(None, self.model.vocab / self.parts, self.model.hidden, rows)
        return rows, isotonic(ms * 1e-3)

    def _heads(self) -> tuple[int, int]:
        """Return query heads and KV heads of one GPU."""
        return self.model.num_heads // self.parts, max(self.model.num_kv_heads // self.parts, 1)

    def _attention(self, kind: str, estimate: Callable[[], Grid]) -> Grid:
        """Return milliseconds of attention in one layer; the roofline's if it was not measured."""
        model = self.model
        try:
            if model.latent is not None:
                return self._latent_attention(kind, model.latent)
            return self.operators.attention(kind, model.kv_dtype, model.head_dim, *self._heads())
        except MissingOperatorError as error:
            self._replace("roofline", str(error))
            return estimate()

    def _latent_attention(self, kind: str, latent: Latent) -> Grid:
        """Return milliseconds of latent attention alone: the measured module less the products around it."""
        widths = (latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim)
        if widths != LATENT_WIDTHS:
            raise MissingOperatorError(f"latent attention of other widths than {LATENT_WIDTHS}")
        heads = self._heads()[0]
        dtype, grid = self.operators.latent_attention(
            kind, self.library, self.model.dense_dtype, self.model.kv_dtype, heads
        )
        if not dtype:
            return grid
        hidden, rank = LATENT_MODULE
        tokens = grid.axes[0]
        products = sum(
            (self._product(dtype, n, k, tokens) for n, k in _latent_products(latent, hidden, rank, heads)),
            np.zeros_like(tokens),
        )
        alone = grid.ms - products.reshape([-1] + [1] * (grid.ms.ndim - 1))
        return Grid(grid.axes, np.maximum(alone, LEAST_ATTENTION * grid.ms))

    def _decode(self) -> tuple[Floats, Floats, Floats]:
        grid = self._attention("decode", self._estimated_decode)
        decodes, contexts = grid.axes
        ms = np.maximum(grid.ms, self._reading(grid))
        # By KV tokens of all decodes instead of the context of each.
        mean = _TOTALS[None, :] / decodes[:, None]

        def pooled(mean: Floats) -> Floats:
            x, y = np.broadcast_to(decodes[:, None], mean.shape).ravel(), mean.ravel()
            return _rising(surface_values(decodes, contexts, ms, x, y).reshape(mean.shape))

        window = self.model.window
        if window is None:
            return decodes, _TOTALS, pooled(mean) * self.model.num_layers * 1e-3
        full = pooled(mean) * (self.model.num_layers - window.layers)
        return decodes, _TOTALS, (full + pooled(np.minimum(mean, window.tokens)) * window.layers) * 1e-3

    def _reading(self, grid: Grid) -> Floats:
        """Return the least milliseconds of decode attention: a launch, and reading the cache from memory.

        Repeated measurements of a small cache read it from the GPU's L2 cache. In a model the other layers are read in
        between. The bandwidth is measured with the largest caches.
        """
        decodes, contexts = grid.axes
        size = decodes[:, None] * contexts[None, :]
        large, launch = size >= size.max() / 8, float(grid.ms.min())
        per_token = float(np.median((grid.ms[large] - launch) / size[large]))
        return launch + per_token * size

    def _estimated_decode(self) -> Grid:
        roofline = self._roofline.figures
        decodes, contexts = np.geomspace(1.0, 2048.0, 12), np.geomspace(16.0, 2.0**17, 14) - 1
        per_token = max(roofline.decode_pair, roofline.kv_token) * 1e3 / self.model.num_layers
        return Grid((decodes, contexts), per_token * decodes[:, None] * (contexts[None, :] + 1))

    def _estimated_prefill(self) -> Grid:
        roofline, layers = self._roofline.figures, self.model.num_layers
        pair, token = roofline.prefill_pair * 1e3 / layers, roofline.kv_token * 1e3 / layers
        chunks = np.geomspace(16.0, 2.0**17, 14)
        return Grid((chunks,), np.maximum(pair * chunks * (chunks + 1) / 2, token * chunks))

    def _prefill(self) -> tuple[Floats, Floats, float]:
        """Return tokens of a chunk, milliseconds of its attention, and per pair with a cached token.

        Each of these pairs takes the time of a pair in the longest measured chunk, which fills the GPU. With a window
        each token behind it has as many pairs as the window has tokens.
        """
        grid = self._attention("prefill", self._estimated_prefill)
        (chunks,), ms = grid.axes, grid.ms
        pair = float(ms[-1] - ms[0]) / (chunks[-1] * (chunks[-1] + 1) / 2)
        if self.model.window is not None:
            width = self.model.window.tokens
            behind = np.interp(width, chunks, ms) + pair * width * np.maximum(chunks - width, 0.0)
            ms = ms - self._windowed * np.maximum(ms - np.where(chunks > width, behind, ms), 0.0)
        return chunks, ms, pair

    def _bandwidth(self, share: float = _BANDWIDTH_SHARE) -> float:
        return self.gpu.memory_bandwidth * share

    def _replace(self, replacement: str, what: str) -> None:
        found = self.replaced.setdefault(replacement, [])
        if what not in found:
            found.append(what)

    def _note(self, dtype: str | None, measured: str, what: str) -> None:
        """Note that measurements of one type serve another that takes the same bytes and operations."""
        if measured != MEASURED_TYPES[dtype][0]:
            self._replace(f"{measured} kernels", f"{what} with {dtype} weights")


def _latent_products(
    latent: Latent, hidden: float, query_rank: int | None, heads: float
) -> list[tuple[float, float]]:
    """Return (n, k) of the projections of latent attention."""
    query = heads * (latent.nope_dim + latent.rope_dim)
    queries = [(query, hidden)] if query_rank is None else [(query_rank, hidden), (query, query_rank)]
    return [
        *queries,
        (latent.kv_rank + latent.rope_dim, hidden),
        (heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
        (hidden, heads * latent.value_dim),
    ]


def _rising(table: Floats) -> Floats:
    """Return a table that is non-decreasing along both axes: the mean of the nearest ones above and below."""
    above = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    below = np.minimum.accumulate(table[::-1, ::-1], axis=0)
    below = np.minimum.accumulate(below, axis=1)[::-1, ::-1]
    result: Floats = (above + below) / 2
    return result
