"""KV-cache capacity in tokens, from GPU memory and model shape."""

from __future__ import annotations

from kvgym.batch_time.shapes import GPU, GPUS, MODELS, ModelShape
from kvgym.errors import ConfigError, UnknownNameError


def resolve_gpu(gpu: GPU | str) -> GPU:
    """Return a GPU given itself or its preset name.

    Raises:
        UnknownNameError: no preset has that name.
    """
    if isinstance(gpu, GPU):
        return gpu
    if gpu not in GPUS:
        raise UnknownNameError("GPU", gpu, GPUS)
    return GPUS[gpu]


def resolve_model(model: ModelShape | str) -> ModelShape:
    """Return a model shape given itself or its preset name.

    Raises:
        UnknownNameError: no preset has that name.
    """
    if isinstance(model, ModelShape):
        return model
    if model not in MODELS:
        raise UnknownNameError("model shape", model, MODELS)
    return MODELS[model]


def check_tensor_parallel(model: ModelShape, tensor_parallel: int) -> None:
    """Check that a model can be split over so many GPUs.

    Raises:
        ConfigError: the number is below 1 or does not divide the query heads.
    """
    if tensor_parallel < 1 or model.num_heads % tensor_parallel:
        raise ConfigError(
            f"tensor_parallel must be >= 1 and divide the {model.num_heads} heads of {model.name}, "
            f"got {tensor_parallel}"
        )


def kv_capacity(
    gpu: GPU | str,
    model: ModelShape | str,
    *,
    tensor_parallel: int = 1,
    memory_fraction: float = 0.9,
    activation_reserve: float = 2 * 2**30,
    block_size: int = 16,
) -> int:
    """Return how many tokens the KV cache of a worker can hold.

    Per GPU: ``(memory * memory_fraction - weights / tensor_parallel - activation_reserve) / (KV bytes per
    token / tensor_parallel)``, rounded down to whole blocks. Where there are fewer KV heads than GPUs each
    GPU stores one copy of a head.

    Args:
        gpu: the GPU or its preset name.
        model: the model shape or its preset name.
        tensor_parallel: GPUs that the model is split over.
        memory_fraction: share of the device memory that the engine may use, in (0, 1].
        activation_reserve: bytes per GPU for activations, workspaces and the CUDA context.
        block_size: tokens per block of the paged cache.

    Returns:
        tokens, a multiple of ``block_size``.

    Raises:
        ConfigError: an argument is out of range, or the weights leave no room for a single block.
    """
    gpu, model = resolve_gpu(gpu), resolve_model(model)
    check_tensor_parallel(model, tensor_parallel)
    if not 0 < memory_fraction <= 1:
        raise ConfigError(f"memory_fraction must be in (0, 1], got {memory_fraction!r}")
    if activation_reserve < 0:
        raise ConfigError(f"activation_reserve must be >= 0 bytes, got {activation_reserve!r}")
    if block_size < 1:
        raise ConfigError(f"block_size must be >= 1 token, got {block_size!r}")
    usable = gpu.memory * memory_fraction
    weights = model.weights * model.dtype_bytes / tensor_parallel
    per_token = model.kv_bytes_per_token / min(tensor_parallel, model.num_kv_heads)
    free = usable - weights - activation_reserve
    if free < per_token * block_size:
        gib = 2**30
        raise ConfigError(
            f"{model.name} does not fit on {tensor_parallel} x {gpu.name}: per GPU {weights / gib:.1f} GiB "
            f"of weights and {activation_reserve / gib:.1f} GiB of reserve leave no KV block in the "
            f"{usable / gib:.1f} GiB usable; raise tensor_parallel or memory_fraction, or lower the reserve"
        )
    return int(free // (per_token * block_size)) * block_size
