"""Ideal times of single operators: the maximum of all FLOPs at the peak and all bytes at the full bandwidth.

Measured times are above these; the ratio shows whether a profile is plausible.
"""

from __future__ import annotations

import numpy as np

from kvgym.batch_time.hardware.interpolation import Floats
from kvgym.batch_time.hardware.shapes import GPU, ModelShape


class IdealTimes:
    """Milliseconds per layer and GPU at the peak of the hardware.

    Args:
        gpu: figures of the GPU.
        model: shape of the model.
        tensor_parallel: number of GPUs that the model is split over.
    """

    def __init__(self, gpu: GPU, model: ModelShape, tensor_parallel: int) -> None:
        self.gpu, self.model, self.parts = gpu, model, tensor_parallel
        hidden, queries, kv, ffn = model.hidden, model.query_width, 2 * model.kv_width, model.ffn
        # Weights, and activations read and written per token: by all GPUs in total, and by each GPU.
        self._operators: dict[str, tuple[float, float, float]] = {
            "attn_pre_proj": (hidden * (queries + kv), queries + kv, hidden),
            "attn_post_proj": (queries * hidden, queries, hidden),
            "mlp_up_proj": (2 * hidden * ffn, 2 * ffn, hidden),
            "mlp_down_proj": (hidden * ffn, ffn, hidden),
            "attn_rope": (0, 2 * (queries + kv / 2), 0),
            "mlp_act": (0, 3 * ffn, 0),
            "input_layernorm": (0, 0, 2 * hidden),
            "post_attention_layernorm": (0, 0, 2 * hidden),
            "add": (0, 0, 3 * hidden),
            "emb": (0, 0, 2 * hidden),
        }

    def _ms(self, flops: Floats, size: Floats, peak: float) -> Floats:
        result: Floats = 1e3 * np.maximum(flops / peak, size / self.gpu.memory_bandwidth)
        return result

    def linear(self, operator: str, tokens: Floats) -> Floats:
        """Return milliseconds of a token operator.

        Args:
            operator: name of its column in a profile.
            tokens: shape (n,).
        """
        weights, divided, whole = self._operators[operator]
        weights = weights / self.parts
        size = weights * self.model.bytes_per_weight(self.model.weight_dtype) + self._activations(
            (divided / self.parts + whole) * tokens
        )
        return self._ms(2 * weights * tokens, size, self.gpu.flops(self.model.weight_dtype))

    def decode(self, decodes: Floats, context: Floats) -> Floats:
        """Return milliseconds of decode attention.

        Args:
            decodes: shape (n,).
            context: tokens cached before each, shape (n,).
        """
        pairs = decodes * (context + 1)
        return self._attention(pairs, self._key_bytes() * pairs)

    def prefill(self, chunk: Floats, cached: Floats) -> Floats:
        """Return milliseconds of prefill attention of one chunk.

        Args:
            chunk: tokens, shape (n,).
            cached: tokens cached before it, shape (n,).
        """
        pairs = chunk * (cached + (chunk + 1) / 2)
        queries = self._activations(2 * self.model.query_width / self.parts * chunk)
        return self._attention(pairs, self._key_bytes() * (chunk + cached) + queries)

    def reshape(self, tokens: Floats) -> Floats:
        """Return milliseconds of a copy of the queries, keys and values of ``tokens``, shape (n,)."""
        width = (self.model.query_width + 2 * self.model.kv_width) / self.parts
        return self._ms(np.zeros_like(tokens), self._activations(2 * width * tokens), self.gpu.peak_flops)

    def kv_write(self, tokens: Floats) -> Floats:
        """Return milliseconds of reading and writing the keys and values of ``tokens``, shape (n,)."""
        return self._ms(np.zeros_like(tokens), 2 * self._key_bytes() * tokens, self.gpu.peak_flops)

    def _activations(self, entries: Floats) -> Floats:
        """Return the bytes of activations."""
        return entries * self.model.dtype_bytes

    def _attention(self, pairs: Floats, size: Floats) -> Floats:
        return self._ms(4 * self.model.query_width / self.parts * pairs, size, self.gpu.peak_flops)

    def _key_bytes(self) -> float:
        """Return bytes of keys and values of one token on one GPU, in one layer."""
        return self.model.kv_bytes_per_token / self.model.num_layers / self.model.kv_parts(self.parts)

    def all_reduce(self, size: Floats) -> Floats:
        """Return milliseconds of an all-reduce of ``size`` bytes, shape (n,)."""
        return 2e3 * (self.parts - 1) / self.parts * size / self.gpu.link_bandwidth
