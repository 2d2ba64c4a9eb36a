"""Figures of GPUs and shapes of models, with presets for those the papers use."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GPU(BaseModel):
    """Data-sheet figures of one GPU.

    Attributes:
        name: product name.
        peak_flops: dense 16-bit tensor FLOP/s.
        memory_bandwidth: bytes/s of device memory.
        memory: bytes of device memory.
        num_sms: streaming multiprocessors, over which kernels run in waves; needed by the tile model and to calibrate.
        link_bandwidth: bytes/s to the peer GPUs, one direction.
        link_latency: seconds per collective operation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    peak_flops: float = Field(gt=0)
    memory_bandwidth: float = Field(gt=0)
    memory: float = Field(gt=0)
    num_sms: int | None = Field(default=None, gt=0)
    link_bandwidth: float = Field(default=300e9, gt=0)
    link_latency: float = Field(default=10e-6, ge=0)


class ModelShape(BaseModel):
    """Dimensions of a decoder-only transformer with gated MLP (the Llama family).

    Attributes:
        name: model name.
        num_layers: transformer blocks.
        hidden: embedding width.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        ffn: width of the MLP.
        vocab: vocabulary size.
        dtype_bytes: bytes per weight, activation and cache entry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    num_layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    ffn: int = Field(gt=0)
    vocab: int = Field(gt=0)
    dtype_bytes: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelShape:
        if self.hidden % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide hidden ({self.hidden}) and be a multiple of "
                f"num_kv_heads ({self.num_kv_heads})"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.num_heads

    @property
    def kv_width(self) -> int:
        """Entries of the key (or the value) of one token in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def layer_weights(self) -> int:
        """Weights of one block: Q, K, V, O, the three MLP matrices and two norms."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_width
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def weights(self) -> int:
        """All weights, with untied input embedding and LM head."""
        return self.num_layers * self.layer_weights + 2 * self.vocab * self.hidden + self.hidden

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of KV cache per token, over all layers."""
        return 2 * self.num_layers * self.kv_width * self.dtype_bytes


GPUS: dict[str, GPU] = {
    # NVIDIA A100 data sheet: 312 TFLOP/s dense BF16, NVLink 600 GB/s both directions; 2,039 GB/s of memory are the
    # SXM4 card's (PCIe: 1,935). 108 SMs: NVIDIA A100 Tensor Core GPU Architecture, Table 1.
    "a100-80gb": GPU(
        name="A100 80GB", peak_flops=312e12, memory_bandwidth=2.039e12, memory=80 * 2**30, num_sms=108
    ),
    # NVIDIA H100 data sheet (SXM5): 989 TFLOP/s dense BF16, 3.35 TB/s, NVLink 900 GB/s both directions. 132 SMs:
    # NVIDIA H100 Tensor Core GPU Architecture, Table 3.
    "h100-80gb": GPU(
        name="H100 80GB",
        peak_flops=989e12,
        memory_bandwidth=3.35e12,
        memory=80 * 2**30,
        num_sms=132,
        link_bandwidth=450e9,
    ),
}
"""GPUs by name."""


def _shape(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
    )


MODELS: dict[str, ModelShape] = {
    "llama2-7b": _shape("Llama-2-7B", 32, 4096, 32, 32, 11008, 32000),
    "llama2-70b": _shape("Llama-2-70B", 80, 8192, 64, 8, 28672, 32000),
    "llama3-8b": _shape("Llama-3-8B", 32, 4096, 32, 8, 14336, 128256),
    "llama3-70b": _shape("Llama-3-70B", 80, 8192, 64, 8, 28672, 128256),
    "codellama-34b": _shape("CodeLlama-34B", 48, 8192, 64, 8, 22016, 32000),
    "mistral-7b": _shape("Mistral-7B-v0.1", 32, 4096, 32, 8, 14336, 32000),
}
"""Model shapes by name, from the models' published configurations."""
