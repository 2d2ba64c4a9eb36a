"""Batch time from data-sheet figures: the maximum of compute time and memory time for each operator group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.kv_capacity import check_tensor_parallel
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.batch_time.models._checks import non_negative, preset, share
from kvgym.batch_time.models.plain import PlainBatchTime
from kvgym.compiling.named import named_numbers, named_values
from kvgym.simulator.batch_time import batch_time_kernel
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_flag


class RooflineParameters(NamedTuple):
    """Parameters of a roofline, in seconds over all layers but for ``left_out``.

    Attributes:
        overhead: per batch.
        token: FLOPs of linear operators, per token.
        weights: reading the weights that every token uses.
        activations: activations of linear operators, per token.
        prefill_pair: FLOPs of prefill attention, per pair of query and key.
        kv_token: reading the KV entries of a token.
        head_row: FLOPs of the LM head, per row.
        head_weights: reading the weights of the LM head.
        launches: latencies of all-reduces, and small kernels, per batch with tokens.
        all_reduce: transfers of all-reduces, per token.
        experts: reading all routed experts.
        left_out: share of the routed experts that a token leaves out; 0 without a mixture.
        decode_pair: FLOPs of decode attention, per KV token.
        expanded: FLOPs of latent attention per cached token before a chunk.
        request: overhead per request.
        windowed: share of the layers with a sliding window.
        window: tokens of that window.
    """

    overhead: float
    token: float
    weights: float
    activations: float
    prefill_pair: float
    kv_token: float
    head_row: float
    head_weights: float
    launches: float
    all_reduce: float
    experts: float
    left_out: float
    decode_pair: float
    expanded: float
    request: float
    windowed: float
    window: float


_roofline_parameters = named_numbers(RooflineParameters)


@batch_time_kernel
def _roofline(load: Any, params: Any) -> Any:
    p = _roofline_parameters(params)
    tokens = float(load.prefill_tokens + load.num_decodes + load.draft_tokens)
    if tokens <= 0.0 and load.num_prefills <= 0:
        return p.overhead
    # Linear operators: FLOPs per token against weights once and activations per token.
    weights = p.weights
    if p.experts > 0.0:
        # Experts to which no token of the batch is routed are not read.
        weights += p.experts * (1.0 - p.left_out**tokens)
    linear = max(p.token * tokens, weights + p.activations * tokens)
    # Attention of prefills: c * k products with the cache and c (c + 1) / 2 within the chunk.
    products = float(load.prefill_products) + 0.5 * float(load.prefill_squares + load.prefill_tokens)
    # In layers with a window a query has at most its tokens as keys.
    full = 1.0 - p.windowed
    products = full * products + p.windowed * min(products, p.window * float(load.prefill_tokens))
    work = p.prefill_pair * products + p.expanded * float(load.prefill_context)
    cached = float(load.prefill_context)
    cached = full * cached + p.windowed * min(cached, p.window * float(load.num_prefills))
    prefill = max(work, p.kv_token * (cached + float(load.prefill_tokens)))
    # Attention of decodes: each reads its context and its own token.
    context = float(load.decode_context + load.num_decodes)
    context = full * context + p.windowed * min(context, p.window * float(load.num_decodes))
    decode = max(p.decode_pair, p.kv_token) * context
    # LM head: one row per request and per draft; the engine handles all of them alike.
    rows = float(load.num_prefills + load.num_decodes + load.draft_tokens)
    head = max(p.head_row * rows, p.head_weights)
    return (
        p.overhead + linear + prefill + decode + head + p.launches + p.all_reduce * tokens + p.request * rows
    )


ASSUMED_SHARES = (0.6, 0.8)
"""Attainable shares of FLOP/s and bandwidth of a GPU that was not measured."""


class RooflineBatchTime(PlainBatchTime):
    """``overhead + sum over operator groups of max(FLOPs / attainable FLOP/s, bytes / attainable bytes/s)``.

    Groups, each summed over layers and divided over the tensor-parallel GPUs:

    - linear operators: 2 FLOPs per weight and token; all weights are read once, activations per token. In a mixture of
      experts, FLOPs count the experts that a token uses. Experts that at least one token uses are read; with ``k`` of
      ``n`` chosen at random these are ``1 - (1 - k / n)^tokens`` of all;
    - prefill attention: 4 FLOPs per (query, key) pair and entry of the queries, c * k + c (c + 1) / 2 pairs per chunk
      of c tokens after k cached ones; KV of context and chunk is read once. Latent attention computes keys and values
      of the chunk from the compressed ones, and those of its context again for every chunk;
    - decode attention: one query per decode, context + 1 keys; 4 FLOPs per pair and entry; for latent attention those
      of its compressed form, ``2 heads (2 kv_rank + rope_dim)``;
    - in layers with a sliding window a query has at most as many keys as the window has tokens, on the mean of the
      decodes and of the tokens of chunks;
    - LM head: one row of logits per request in the batch, 16-bit;
    - two all-reduces per layer if ``tensor_parallel`` > 1: latency, and ``2 (p - 1) / p`` times the activations over
      the link;
    - small kernels, a constant time per layer in batches with tokens.

    Weights of a type that the GPU supports count at its rate for that type, others at the 16-bit rate. Experts are
    split over the GPUs like other weights, not placed on single GPUs.

    Args:
        gpu: figures of the GPU, a preset name or a file.
        model: shape of the model, a preset name or a file.
        tensor_parallel: number of GPUs that the model is split over.
        compute_efficiency: attainable share of the peak FLOP/s, in (0, 1].
        memory_efficiency: attainable share of the memory bandwidth, in (0, 1].
        small_kernels_ms: milliseconds per layer of small kernels.
        overhead: seconds per batch outside the GPU, including empty batches.
        overhead_per_request: seconds per request of the batch outside the GPU; a draft counts as one.
        asynchronous: whether the engine prepares a batch while the one before it runs.
        api_time: seconds from a request's arrival until the engine's queue has it.

    Raises:
        ConfigError: an argument is out of range.
        UnknownNameError: an unknown preset.
    """

    kind = "roofline"
    kernel = _roofline

    @explained
    def __init__(
        self,
        gpu: GPU | str | Mapping[str, Any],
        model: ModelShape | str | Mapping[str, Any],
        *,
        tensor_parallel: int = 1,
        compute_efficiency: float = 0.6,
        memory_efficiency: float = 0.8,
        small_kernels_ms: float = 0.0,
        overhead: float = 0.003,
        overhead_per_request: float = 0.0,
        asynchronous: bool = False,
        api_time: float = 0.0,
    ) -> None:
        self.gpu, self.model = preset(GPUS, gpu), preset(MODELS, model)
        self.device = self.gpu.device
        check_tensor_parallel(self.model, tensor_parallel)
        self.tensor_parallel = int(tensor_parallel)
        self.compute_efficiency = share("roofline", "compute_efficiency", compute_efficiency)
        self.memory_efficiency = share("roofline", "memory_efficiency", memory_efficiency)
        self.small_kernels_ms = non_negative("roofline", "small_kernels_ms", small_kernels_ms)
        self.overhead = non_negative("roofline", "overhead", overhead)
        self.overhead_per_request = non_negative("roofline", "overhead_per_request", overhead_per_request)
        self.asynchronous = check_flag(asynchronous, "roofline: asynchronous")
        self.api_time = non_negative("roofline", "api_time", api_time)
        self.source = (
            f"roofline of {self.model.name} on {self.tensor_parallel} x {self.gpu.name}, not validated"
        )

    def params(self) -> NDArray[np.float64]:
        """Return :class:`RooflineParameters`."""
        model, parts = self.model, self.tensor_parallel
        second_per_flop = 1 / (self.gpu.peak_flops * self.compute_efficiency * parts)
        second_per_product, dense = (
            1 / (self.gpu.flops(dtype) * self.compute_efficiency * parts)
            for dtype in (model.weight_dtype, model.dense_dtype)
        )
        second_per_byte = 1 / (self.gpu.memory_bandwidth * self.memory_efficiency * parts)
        # Read and written per token and layer: two norms, Q, K, V, attention output, MLP in, gate, out.
        per_layer = 8 * model.hidden + 2 * model.query_width + model.kv_entries
        entries = model.num_layers * per_layer + 4 * model.mlp_widths
        collective = 2 * model.num_layers if parts > 1 else 0
        transfer = 2 * (parts - 1) / parts * model.hidden * model.dtype_bytes / self.gpu.link_bandwidth
        head = model.vocab * model.hidden
        kv_copies = parts / model.kv_parts(parts)
        experts, latent, window = model.experts, model.latent, model.window
        pair = decode_pair = 4 * model.query_width
        expanded = 0
        if latent is not None:
            width = latent.nope_dim + latent.value_dim
            pair = 2 * model.num_heads * (width + latent.rope_dim)
            decode_pair = 2 * model.num_heads * (2 * latent.kv_rank + latent.rope_dim)
            expanded = 2 * latent.kv_rank * model.num_heads * width
        return np.array(
            RooflineParameters(
                overhead=self.overhead,
                token=2 * model.token_weights * second_per_product
                + 2 * model.block_weights * (dense - second_per_product),
                weights=model.block_bytes * second_per_byte,
                activations=entries * model.dtype_bytes * second_per_byte,
                prefill_pair=pair * model.num_layers * second_per_flop,
                kv_token=model.kv_bytes_per_token * kv_copies * second_per_byte,
                head_row=2 * head * second_per_flop,
                head_weights=head * model.dtype_bytes * second_per_byte,
                launches=collective * self.gpu.link_latency + model.num_layers * self.small_kernels_ms * 1e-3,
                all_reduce=collective * transfer,
                experts=model.expert_bytes * second_per_byte,
                left_out=0.0 if experts is None else 1 - experts.per_token / experts.count,
                decode_pair=decode_pair * model.num_layers * second_per_flop,
                expanded=expanded * model.num_layers * second_per_flop,
                request=self.overhead_per_request,
                windowed=0.0 if window is None else window.layers / model.num_layers,
                window=0.0 if window is None else window.tokens,
            ),
            np.float64,
        )

    @property
    def figures(self) -> RooflineParameters:
        """The parameters by name."""
        return named_values(RooflineParameters, self.params())

    def lm_head(self) -> tuple[float, float]:
        """Return seconds of the LM head for one row, and per row once compute binds: (weights, FLOPs)."""
        return float(self.figures.head_weights), float(self.figures.head_row)

    def attention_pair(self) -> float:
        """Return seconds of attention per pair of query and key where compute binds, over all layers."""
        return float(self.figures.prefill_pair)
