"""Figures of GPUs and shapes of models: weights, cache size per token, and work per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from kvgym.errors import ConfigError
from kvgym.simulator.batch_time import Device
from kvgym.utils.reading import Description

Dtype = Literal["bf16", "fp16", "fp8", "fp8_block", "int8", "nvfp4", "mxfp4", "int4"]
"""Types of stored numbers.

``fp8`` has one scale per tensor or channel, ``fp8_block`` one per 128 x 128 weights (DeepSeek, Qwen3 …-FP8), ``nvfp4``
one per 16 numbers (NVIDIA's FP4 checkpoints), ``mxfp4`` one per 32 (gpt-oss, which has only its experts in this type).
"""

BYTES: Mapping[str, float] = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125, "int4": 0.5
}  # fmt: skip
"""Bytes by type, with scales of 8 bits in the 4-bit floating-point types, else without (a few per cent)."""

RATES: Mapping[str, Literal["fp8", "fp4"]] = {
    "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"
}  # fmt: skip
"""Arithmetic of the GPU in which products with weights of a type are computed; of other types in 16 bits."""

Share = Annotated[float, Field(gt=0, le=1)]


class _Figures(Description):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit fields that are None."""
        return {name: value for name, value in handler(self).items() if value is not None}


class GPU(_Figures):
    """Data-sheet figures of one GPU.

    Attributes:
        name: product name.
        peak_flops: dense 16-bit tensor FLOP/s.
        fast_flops: dense FLOP/s of products of smaller types, for types that the GPU supports.
        memory_bandwidth: bytes/s of device memory.
        memory: bytes of device memory.
        num_sms: streaming multiprocessors, over which kernels run in waves; needed by the tile model and to calibrate.
        link_bandwidth: bytes/s to the peer GPUs, one direction; over PCIe what an all-reduce attains.
        link_latency: seconds per collective operation.
        attained: by type of the weights, the shares of the peak FLOP/s and of the memory bandwidth that measured matrix
            products attain, for rooflines; None = not measured.
    """

    name: str
    peak_flops: float = Field(gt=0)
    fast_flops: dict[Literal["fp8", "fp4"], float] | None = None
    memory_bandwidth: float = Field(gt=0)
    memory: float = Field(gt=0)
    num_sms: int | None = Field(default=None, gt=0)
    link_bandwidth: float = Field(default=300e9, gt=0)
    link_latency: float = Field(default=10e-6, ge=0)
    attained: dict[Literal["bf16", "fp8", "fp8_block", "nvfp4"], tuple[Share, Share]] | None = None

    @property
    def device(self) -> Device:
        """Its name and memory."""
        return Device(self.name, self.memory)

    def efficiencies(self, dtype: Dtype | None) -> tuple[float, float] | None:
        """Return the attained shares of FLOP/s and bandwidth with weights of a type; None if not measured.

        Other types are those of their rate, or of 16-bit numbers.
        """
        shares: Mapping[Any, tuple[float, float]] = self.attained or {}
        rate = RATES.get(dtype or "")
        return next((shares[name] for name in (dtype, rate, "bf16") if name in shares), None)

    def flops(self, dtype: Dtype | None) -> float:
        """Return the dense FLOP/s with weights of a type: those of 16 bit if the GPU does not support the type."""
        fast: Mapping[Any, float] = self.fast_flops or {}
        return fast.get(RATES.get(dtype or ""), self.peak_flops)


class Experts(_Figures):
    """The MLPs of a mixture of experts.

    Attributes:
        count: routed experts in a block.
        per_token: experts per token.
        ffn: width of one expert.
        shared_ffn: total width of the experts that every token uses; 0 = none.
        dense_layers: blocks with an ordinary MLP instead.
    """

    count: int = Field(gt=0)
    per_token: int = Field(gt=0)
    ffn: int = Field(gt=0)
    shared_ffn: int = Field(default=0, ge=0)
    dense_layers: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _enough(self) -> Experts:
        if self.per_token > self.count:
            raise ValueError(f"per_token ({self.per_token}) is more than count ({self.count})")
        return self


class Latent(_Figures):
    """Multi-head latent attention: one compressed vector per token is cached instead of keys and values.

    Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2.1.

    Attributes:
        kv_rank: width of the compressed keys and values.
        query_rank: width of the compressed queries; None = not compressed.
        nope_dim: width of a head's query and key without positions.
        rope_dim: width of the part with positions, with one key for all heads.
        value_dim: width of a head's value.
    """

    kv_rank: int = Field(gt=0)
    query_rank: int | None = Field(default=None, gt=0)
    nope_dim: int = Field(gt=0)
    rope_dim: int = Field(gt=0)
    value_dim: int = Field(gt=0)


class Window(_Figures):
    """Layers with sliding-window attention, where a token attends to the last tokens only and older ones are dropped.

    Attributes:
        layers: number of these layers.
        tokens: width of the window.
    """

    layers: int = Field(gt=0)
    tokens: int = Field(gt=0)

    @property
    def label(self) -> str:
        """Both in words, to stand after the number of all layers."""
        return f"{self.layers} with a window of {self.tokens:,}"


class ModelShape(_Figures):
    """Dimensions of a decoder-only transformer with gated MLPs.

    Attributes:
        name: model name.
        num_layers: transformer blocks.
        hidden: embedding width.
        num_heads: query heads.
        num_kv_heads: key/value heads; ignored with ``latent``.
        ffn: width of the MLP.
        vocab: vocabulary size.
        head_dim: width of a head; 0 = ``hidden / num_heads``.
        experts: MLPs of a mixture of experts; None = one MLP in each block.
        latent: latent attention; None = keys and values are cached, multi-head or grouped.
        window: layers with a sliding window; None = all layers attend to the whole context.
        tied_embeddings: whether the LM head is the input embedding; None = no.
        dtype_bytes: bytes per activation, and per weight and cache entry without a type.
        weight_dtype: type of the weights of the blocks; embedding and LM head keep ``dtype_bytes``, and with
            ``"mxfp4"`` in a mixture everything but the routed experts.
        kv_dtype: type of the cache entries.
    """

    name: str
    num_layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    ffn: int = Field(gt=0)
    vocab: int = Field(gt=0)
    head_dim: int = Field(default=0, ge=0)
    experts: Experts | None = None
    latent: Latent | None = None
    window: Window | None = None
    tied_embeddings: bool | None = None
    dtype_bytes: float = Field(default=2.0, ge=0.125, le=16)
    weight_dtype: Dtype | None = None
    kv_dtype: Dtype | None = None

    @model_validator(mode="before")
    @classmethod
    def _usual_head(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.get("head_dim"):
            hidden, heads = data.get("hidden"), data.get("num_heads")
            if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
                return {**data, "head_dim": hidden // heads}
        return data

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelShape:
        if self.head_dim == 0 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide hidden ({self.hidden}) unless head_dim is given, and be a "
                f"multiple of num_kv_heads ({self.num_kv_heads})"
            )
        if self.experts is not None and self.experts.dense_layers >= self.num_layers:
            raise ValueError(f"experts.dense_layers must be below num_layers ({self.num_layers})")
        if self.window is not None and (self.window.layers > self.num_layers or self.latent is not None):
            raise ValueError(
                f"window.layers must be at most num_layers ({self.num_layers}), without latent attention"
            )
        return self

    @property
    def query_width(self) -> int:
        """Entries of the queries of one token in one layer."""
        head = self.head_dim if self.latent is None else self.latent.nope_dim + self.latent.rope_dim
        return self.num_heads * head

    @property
    def kv_width(self) -> int:
        """Entries of the key (or the value) of one token in one layer, without latent attention."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_entries(self) -> int:
        """Cache entries of one token in one layer."""
        return 2 * self.kv_width if self.latent is None else self.latent.kv_rank + self.latent.rope_dim

    @property
    def attention_weights(self) -> int:
        """Weights of the attention of one block."""
        latent, hidden = self.latent, self.hidden
        if latent is None:
            return 2 * hidden * self.query_width + 2 * hidden * self.kv_width
        rank = latent.query_rank
        queries = hidden * self.query_width if rank is None else rank * (hidden + self.query_width)
        keys = hidden * self.kv_entries + latent.kv_rank * self.num_heads * (
            latent.nope_dim + latent.value_dim
        )
        return queries + keys + self.num_heads * latent.value_dim * hidden

    @property
    def block_weights(self) -> int:
        """Weights of all blocks that every token uses: attention, MLPs or shared experts, routers, norms."""
        weights = self.num_layers * (self.attention_weights + 2 * self.hidden)
        if self.experts is None:
            return weights + self.num_layers * 3 * self.hidden * self.ffn
        blocks = self.num_layers - self.experts.dense_layers
        weights += self.experts.dense_layers * 3 * self.hidden * self.ffn
        return weights + blocks * self.hidden * (3 * self.experts.shared_ffn + self.experts.count)

    @property
    def expert_weights(self) -> int:
        """Weights of all routed experts of all blocks; 0 without a mixture."""
        if self.experts is None:
            return 0
        blocks = self.num_layers - self.experts.dense_layers
        return blocks * self.experts.count * 3 * self.hidden * self.experts.ffn

    @property
    def token_weights(self) -> int:
        """Weights of all blocks that one token uses."""
        if self.experts is None:
            return self.block_weights
        return self.block_weights + self.expert_weights // self.experts.count * self.experts.per_token

    @property
    def mlp_widths(self) -> int:
        """Total width of the MLPs that one token uses, over all blocks."""
        if self.experts is None:
            return self.num_layers * self.ffn
        mixed = self.experts.per_token * self.experts.ffn + self.experts.shared_ffn
        dense = self.experts.dense_layers
        return dense * self.ffn + (self.num_layers - dense) * mixed

    @property
    def embedding_weights(self) -> int:
        """Weights outside the blocks: input embedding, LM head unless tied to it, a norm."""
        return (1 if self.tied_embeddings else 2) * self.vocab * self.hidden + self.hidden

    @property
    def weights(self) -> int:
        """All weights."""
        return self.block_weights + self.expert_weights + self.embedding_weights

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied with, including the LM head."""
        return self.token_weights + self.vocab * self.hidden

    @property
    def dense_dtype(self) -> Dtype | None:
        """Type of the weights of the blocks outside the routed experts."""
        return None if self.weight_dtype == "mxfp4" and self.experts is not None else self.weight_dtype

    def bytes_per_weight(self, dtype: Dtype | None) -> float:
        """Return bytes per weight of a type."""
        return self.dtype_bytes if dtype is None else BYTES[dtype]

    @property
    def block_bytes(self) -> float:
        """Bytes of the weights of all blocks that every token uses."""
        return self.block_weights * self.bytes_per_weight(self.dense_dtype)

    @property
    def expert_bytes(self) -> float:
        """Bytes of all routed experts."""
        return self.expert_weights * self.bytes_per_weight(self.weight_dtype)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.block_bytes + self.expert_bytes + self.embedding_weights * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache per token, over all layers; of a token in the window of those that have one."""
        size = self.dtype_bytes if self.kv_dtype is None else BYTES[self.kv_dtype]
        return self.num_layers * self.kv_entries * size

    def kv_layers(self, context: float) -> float:
        """Return the layers that hold a token of the cache, the mean over the tokens of a request.

        Args:
            context: tokens of the request; layers with a window hold the last ones only.
        """
        if self.window is None:
            return self.num_layers
        held = min(self.window.tokens / context, 1.0)
        return self.num_layers - self.window.layers * (1.0 - held)

    def kv_parts(self, tensor_parallel: int) -> int:
        """Return the number of GPUs over which the cache of a token is divided; the other GPUs store copies."""
        return 1 if self.latent is not None else min(tensor_parallel, self.num_kv_heads)

    def splits(self, tensor_parallel: int) -> bool:
        """Return whether a number of GPUs can share the heads equally; KV heads are divided or copied."""
        if tensor_parallel < 1 or self.num_heads % tensor_parallel:
            return False
        kv = self.num_kv_heads
        return self.latent is not None or kv % tensor_parallel == 0 or tensor_parallel % kv == 0


def require_plain(model: ModelShape, what: str, *, types: bool = False) -> None:
    """Check that a model is dense and caches all keys and values, and that it has one data type.

    Args:
        model: its shape.
        what: what requires this, for the message.
        types: allow other types of weights and cache.

    Raises:
        ConfigError: it does not.
    """
    for name in ("experts", "latent", "window", *(() if types else ("weight_dtype", "kv_dtype"))):
        if getattr(model, name) is not None:
            raise ConfigError(
                f"{what}: {model.name} has {name}; only dense models {'' if types else 'of one data type '}that cache "
                "all keys and values are supported here; use a roofline"
            )
