"""Batch time from data-sheet figures: the maximum of compute time and memory time for each operator group."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time.hardware.kv_capacity import check_tensor_parallel
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.batch_time.models._checks import non_negative, share
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.utils.arguments import explained


@batch_time_kernel
def _roofline(load: Any, params: Any) -> Any:
    tokens = float(load.prefill_tokens + load.num_decodes)
    if tokens <= 0.0 and load.num_prefills <= 0:
        return params[0]
    # Linear operators: FLOPs per token against weights once and activations per token.
    weights = params[2]
    if params[10] > 0.0:
        # Experts to which no token of the batch is routed are not read.
        weights += params[10] * (1.0 - params[11] ** tokens)
    linear = max(params[1] * tokens, weights + params[3] * tokens)
    # Attention of prefills: c * k products with the cache and c (c + 1) / 2 within the chunk.
    products = float(load.prefill_products) + 0.5 * float(load.prefill_squares + load.prefill_tokens)
    work = params[4] * products + params[13] * float(load.prefill_context)
    prefill = max(work, params[5] * float(load.prefill_context + load.prefill_tokens))
    # Attention of decodes: each reads its context and its own token.
    context = float(load.decode_context + load.num_decodes)
    decode = max(params[12], params[5]) * context
    # LM head: one row per request.
    rows = float(load.num_prefills + load.num_decodes)
    head = max(params[6] * rows, params[7])
    return params[0] + linear + prefill + decode + head + params[8] + params[9] * tokens + params[14] * rows


ASSUMED_SHARES = (0.6, 0.8)
"""Attainable shares of FLOP/s and bandwidth of a GPU that was not measured."""


class RooflineBatchTime(BatchTimeModel):
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
        overhead_per_request: seconds per request of the batch outside the GPU.

    Raises:
        ConfigError: an argument is out of range.
        UnknownNameError: an unknown preset.
    """

    kernel = _roofline

    @explained
    def __init__(
        self,
        gpu: GPU | str,
        model: ModelShape | str,
        *,
        tensor_parallel: int = 1,
        compute_efficiency: float = 0.6,
        memory_efficiency: float = 0.8,
        small_kernels_ms: float = 0.0,
        overhead: float = 0.003,
        overhead_per_request: float = 0.0,
    ) -> None:
        self.gpu, self.model = GPUS.find(gpu), MODELS.find(model)
        self.device = self.gpu.device
        check_tensor_parallel(self.model, tensor_parallel)
        self.tensor_parallel = int(tensor_parallel)
        self.compute_efficiency = share("roofline", "compute_efficiency", compute_efficiency)
        self.memory_efficiency = share("roofline", "memory_efficiency", memory_efficiency)
        self.small_kernels_ms = non_negative("roofline", "small_kernels_ms", small_kernels_ms)
        self.overhead = non_negative("roofline", "overhead", overhead)
        self.overhead_per_request = non_negative("roofline", "overhead_per_request", overhead_per_request)
        self.source = (
            f"roofline of {self.model.name} on {self.tensor_parallel} x {self.gpu.name}, not validated"
        )

    def params(self) -> NDArray[np.float64]:
        """Return seconds: overhead; linear per token (FLOPs), weights, per token (bytes); per pair of a prefill.

        Then: per KV token read; LM head per row (FLOPs), its weights; per batch with tokens (latencies of all-reduces,
        small kernels); all-reduce per token; routed experts,
        share of them that a token leaves out; per pair of a decode; per cached token before a chunk; per request.
        """
        model, parts = self.model, self.tensor_parallel
        second_per_flop = 1 / (self.gpu.peak_flops * self.compute_efficiency * parts)
        second_per_product = 1 / (self.gpu.flops(model.weight_dtype) * self.compute_efficiency * parts)
        second_per_byte = 1 / (self.gpu.memory_bandwidth * self.memory_efficiency * parts)
        # Read and written per token and layer: two norms, Q, K, V, attention output, MLP in, gate, out.
        per_layer = 8 * model.hidden + 2 * model.query_width + model.kv_entries
        entries = model.num_layers * per_layer + 4 * model.mlp_widths
        collective = 2 * model.num_layers if parts > 1 else 0
        transfer = 2 * (parts - 1) / parts * model.hidden * model.dtype_bytes / self.gpu.link_bandwidth
        head = model.vocab * model.hidden
        kv_copies = parts / model.kv_parts(parts)
        experts, latent = model.experts, model.latent
        pair = decode_pair = 4 * model.query_width
        expanded = 0
        if latent is not None:
            width = latent.nope_dim + latent.value_dim
            pair = 2 * model.num_heads * (width + latent.rope_dim)
            decode_pair = 2 * model.num_heads * (2 * latent.kv_rank + latent.rope_dim)
            expanded = 2 * latent.kv_rank * model.num_heads * width
        return np.array(
            [
                self.overhead,
                2 * model.token_weights * second_per_product,
                model.block_weights * model.bytes_per_weight * second_per_byte,
                entries * model.dtype_bytes * second_per_byte,
                pair * model.num_layers * second_per_flop,
                model.kv_bytes_per_token * kv_copies * second_per_byte,
                2 * head * second_per_flop,
                head * model.dtype_bytes * second_per_byte,
                collective * self.gpu.link_latency + model.num_layers * self.small_kernels_ms * 1e-3,
                collective * transfer,
                model.expert_weights * model.bytes_per_weight * second_per_byte,
                0.0 if experts is None else 1 - experts.per_token / experts.count,
                decode_pair * model.num_layers * second_per_flop,
                expanded * model.num_layers * second_per_flop,
                self.overhead_per_request,
            ]
        )

    def lm_head(self) -> tuple[float, float]:
        """Return seconds of the LM head for one row, and per row once compute binds: (weights, FLOPs)."""
        params = self.params()
        return float(params[7]), float(params[6])

    def attention_pair(self) -> float:
        """Return seconds of attention per pair of query and key where compute binds, over all layers."""
        return float(self.params()[4])

    def spec(self) -> dict[str, Any]:
        """Return the arguments as a dict of plain values that :func:`make_batch_time` accepts."""
        return {
            "kind": "roofline",
            "gpu": GPUS.name_of(self.gpu) or self.gpu.model_dump(),
            "model": MODELS.name_of(self.model) or self.model.model_dump(),
            "tensor_parallel": self.tensor_parallel,
            "compute_efficiency": self.compute_efficiency,
            "memory_efficiency": self.memory_efficiency,
            "small_kernels_ms": self.small_kernels_ms,
            "overhead": self.overhead,
            "overhead_per_request": self.overhead_per_request,
        }
