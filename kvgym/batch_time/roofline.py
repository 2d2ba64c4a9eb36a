"""Batch time from data-sheet figures: per operator group the larger of compute time and memory time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time._checks import non_negative, share
from kvgym.batch_time.memory import check_tensor_parallel, resolve_gpu, resolve_model
from kvgym.batch_time.shapes import GPU, GPUS, MODELS, ModelShape
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel


@batch_time_kernel
def _roofline(load: Any, params: Any) -> Any:
    tokens = float(load.prefill_tokens + load.num_decodes)
    if tokens <= 0.0 and load.num_prefills <= 0:
        return params[0]
    # Linear operators: FLOPs per token against weights once and activations per token.
    linear = max(params[1] * tokens, params[2] + params[3] * tokens)
    # Attention of prefills: c * k products with the cache and c (c + 1) / 2 within the chunk.
    products = float(load.prefill_products) + 0.5 * float(load.prefill_squares + load.prefill_tokens)
    prefill = max(params[4] * products, params[5] * float(load.prefill_context + load.prefill_tokens))
    # Attention of decodes: each reads its context and its own token.
    context = float(load.decode_context + load.num_decodes)
    decode = max(params[4], params[5]) * context
    # LM head: one row per request.
    rows = float(load.num_prefills + load.num_decodes)
    head = max(params[6] * rows, params[7])
    return params[0] + linear + prefill + decode + head + params[8] + params[9] * tokens


class RooflineBatchTime(BatchTimeModel):
    """``overhead + sum over operator groups of max(FLOPs / attainable FLOP/s, bytes / attainable bytes/s)``.

    Groups, each summed over layers and divided over the tensor-parallel GPUs:

    - linear operators: 2 FLOPs per weight and token; all weights read once, activations per token;
    - prefill attention: 4 * hidden FLOPs per (query, key) pair, c * k + c (c + 1) / 2 pairs per chunk of c
      tokens after k cached ones; KV of context and chunk read once;
    - decode attention: the same per pair, one query per decode, context + 1 keys;
    - LM head: one row of logits per request in the batch;
    - two all-reduces per layer where ``tensor_parallel`` > 1: latency, and ``2 (p - 1) / p`` times the
      activations over the link.

    Args:
        gpu: figures of the GPU, or a preset name.
        model: shape of the model, or a preset name.
        tensor_parallel: GPUs that the model is split over.
        compute_efficiency: attainable share of the peak FLOP/s, in (0, 1].
        memory_efficiency: attainable share of the memory bandwidth, in (0, 1].
        overhead: seconds per batch outside the GPU, an empty batch included.

    Raises:
        ConfigError: an argument is out of range.
        UnknownNameError: an unknown preset.
    """

    kernel = _roofline

    def __init__(
        self,
        gpu: GPU | str,
        model: ModelShape | str,
        *,
        tensor_parallel: int = 1,
        compute_efficiency: float = 0.6,
        memory_efficiency: float = 0.8,
        overhead: float = 0.003,
    ) -> None:
        self.gpu, self.model = resolve_gpu(gpu), resolve_model(model)
        check_tensor_parallel(self.model, tensor_parallel)
        self.tensor_parallel = int(tensor_parallel)
        self.compute_efficiency = share("roofline", "compute_efficiency", compute_efficiency)
        self.memory_efficiency = share("roofline", "memory_efficiency", memory_efficiency)
        self.overhead = non_negative("roofline", "overhead", overhead)
        self.source = f"roofline of {self.model.name} on {self.tensor_parallel} x {self.gpu.name}"

    def params(self) -> NDArray[np.float64]:
        """Return seconds: overhead; linear per token (FLOPs), weights, per token (bytes); per attention pair.

        Then: per KV token read; LM head per row (FLOPs), its weights; all-reduce latency and per token.
        """
        model, parts = self.model, self.tensor_parallel
        second_per_flop = 1 / (self.gpu.peak_flops * self.compute_efficiency * parts)
        second_per_byte = 1 / (self.gpu.memory_bandwidth * self.memory_efficiency * parts)
        weights = model.num_layers * model.layer_weights
        # Read and written per token and layer: two norms, Q, K, V, attention output, MLP in, gate, out.
        entries = 10 * model.hidden + 2 * model.kv_width + 4 * model.ffn
        collective = 2 * model.num_layers if parts > 1 else 0
        transfer = 2 * (parts - 1) / parts * model.hidden * model.dtype_bytes / self.gpu.link_bandwidth
        head = model.vocab * model.hidden
        # With fewer KV heads than GPUs, heads are copied and their reads are not divided further.
        kv_copies = parts / min(parts, model.num_kv_heads)
        return np.array(
            [
                self.overhead,
                2 * weights * second_per_flop,
                weights * model.dtype_bytes * second_per_byte,
                model.num_layers * entries * model.dtype_bytes * second_per_byte,
                4 * model.hidden * model.num_layers * second_per_flop,
                model.kv_bytes_per_token * kv_copies * second_per_byte,
                2 * head * second_per_flop,
                head * model.dtype_bytes * second_per_byte,
                collective * self.gpu.link_latency,
                collective * transfer,
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
        """Return the arguments as a JSON-able dict that :func:`make_batch_time` accepts."""
        gpu = next((n for n, g in GPUS.items() if g == self.gpu), None)
        model = next((n for n, m in MODELS.items() if m == self.model), None)
        return {
            "kind": "roofline",
            "gpu": gpu or self.gpu.model_dump(),
            "model": model or self.model.model_dump(),
            "tensor_parallel": self.tensor_parallel,
            "compute_efficiency": self.compute_efficiency,
            "memory_efficiency": self.memory_efficiency,
            "overhead": self.overhead,
        }
