"""KV-cache capacity in tokens, from GPU memory and model shape."""

from __future__ import annotations

import math

from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import BYTES, GPU, ModelShape
from kvgym.errors import ConfigError, shown
from kvgym.simulator.system import MAX_CAPACITY
from kvgym.utils.arguments import explained

KV_CONTEXT = 4096
"""Tokens of the requests for which the cache of layers with a sliding window is counted by default."""

_GIB = 2**30
_MOST_GPUS = 128


def check_tensor_parallel(model: ModelShape, tensor_parallel: int) -> None:
    """Check that a model can be split over a number of GPUs.

    Raises:
        ConfigError: the heads cannot be divided by it.
    """
    if not model.splits(tensor_parallel):
        heads = f"the {model.num_heads} heads"
        if model.latent is None and model.num_kv_heads < model.num_heads:
            heads += f" ({model.num_kv_heads} KV heads)"
        possible = [n for n in range(1, model.num_heads + 1) if model.splits(n)]
        raise ConfigError(
            f"tensor_parallel = {tensor_parallel} does not divide {heads} of {model.name}; valid: "
            f"{', '.join(map(str, possible))}"
        )


@explained
def kv_capacity(
    gpu: GPU | str,
    model: ModelShape | str,
    *,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    memory_fraction: float = 0.9,
    activation_reserve: float = 2 * _GIB,
    block_size: int = 16,
    context: int = KV_CONTEXT,
) -> int:
    """Return the number of tokens that fit into a worker's KV cache.

    Per GPU: ``(memory * memory_fraction - weights / tensor_parallel - activation_reserve) / (KV bytes per
    token / tensor_parallel)``, rounded down to whole blocks. With fewer KV heads than GPUs each GPU stores a copy of
    one head; with latent attention every GPU stores the whole cache.

    Layers with a sliding window store the last tokens of a request only, so a token of a long request takes less
    memory. The capacity is the tokens of requests of ``context`` tokens: shorter ones take more memory than counted,
    at most that of all layers, and longer ones less.

    Args:
        gpu: the GPU, its preset name or file.
        model: the model shape, its preset name or file.
        tensor_parallel: number of GPUs that the model is split over.
        data_parallel: groups of GPUs with requests of their own; the routed experts are spread over all groups.
        memory_fraction: share of the device memory that the engine may use, in (0, 1].
        activation_reserve: bytes per GPU for activations, workspaces and the CUDA context.
        block_size: tokens per block of the paged cache.
        context: tokens of a request in the cache, for layers with a window; without windows it changes nothing.

    Returns:
        Tokens, a multiple of ``block_size``.

    Raises:
        ConfigError: an argument or the result is out of range, or the weights leave no memory for a block; the message
            then says how much memory is missing and how many GPUs are enough.
    """
    gpu, model = GPUS.find(gpu), MODELS.find(model)
    check_tensor_parallel(model, tensor_parallel)
    if not 0 < memory_fraction <= 1:
        raise ConfigError(f"memory_fraction must be in (0, 1], got {shown(memory_fraction)}")
    if not 0 <= activation_reserve < math.inf:
        raise ConfigError(f"activation_reserve must be >= 0 bytes, got {shown(activation_reserve)}")
    if not 1 <= block_size <= MAX_CAPACITY:
        raise ConfigError(f"block_size must be 1 … 2^31-1 tokens, got {shown(block_size)}")
    if not 1 <= context <= MAX_CAPACITY:
        raise ConfigError(f"context (kv_context) must be 1 … 2^31-1 tokens, got {shown(context)}")
    usable, share = gpu.memory * memory_fraction, model.kv_layers(context) / model.num_layers

    def weights(parts: int) -> float:
        dense = model.weight_bytes - model.expert_bytes
        return (dense + model.expert_bytes / data_parallel) / parts

    def free(parts: int) -> float:
        return usable - weights(parts) - activation_reserve

    def block(parts: int) -> float:
        return model.kv_bytes_per_token * share / model.kv_parts(parts) * block_size

    if free(tensor_parallel) < block(tensor_parallel):
        enough = [n for n in range(1, _MOST_GPUS + 1) if model.splits(n) and free(n) >= block(n)]
        remedy = (
            f"tensor_parallel (--tp) = {enough[0]} is the smallest that fits"
            if enough
            else "no number of GPUs is enough"
        )
        types = [
            dtype for dtype in ("fp8", "int4") if BYTES[dtype] < model.bytes_per_weight(model.weight_dtype)
        ]
        ways = ["raise memory_fraction", "lower the reserve"]
        ways += [f"use smaller weights ({', '.join(types)})"] if types else []
        raise ConfigError(
            f"{model.name} does not fit on {tensor_parallel} x {gpu.name}: each GPU lacks "
            f"{(block(tensor_parallel) - free(tensor_parallel)) / _GIB:.1f} GiB for "
            f"{weights(tensor_parallel) / _GIB:.1f} GiB of weights, {activation_reserve / _GIB:.1f} GiB of "
            f"reserve and one KV block in the {usable / _GIB:.1f} GiB usable; {remedy}; or {', '.join(ways[:-1])}, "
            f"or {ways[-1]}"
        )
    tokens = data_parallel * (free(tensor_parallel) // block(tensor_parallel)) * block_size
    if not 2 <= tokens <= MAX_CAPACITY:
        raise ConfigError(
            f"{model.name} on {tensor_parallel} x {gpu.name} has room for {tokens:.3g} tokens in blocks of "
            f"{block_size}; expected 2 … 2^31-1: check memory, widths, fraction, reserve and block size"
        )
    return int(tokens)
