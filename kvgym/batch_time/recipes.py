"""What is calibrated: the hardware files of kvgym and the figures that profiles do not hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvgym.batch_time.overhead import NO_ENGINE, EngineOverhead


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to calibrate, and the figures that profiles do not hold.

    Attributes:
        name: of the hardware file.
        description: one line.
        model: name in :data:`MODELS`.
        gpu: name in :data:`GPUS`.
        tensor_parallel: number of GPUs.
        linear: file of linear operators.
        attention: file of attention.
        all_reduce: file of collectives, needed with more than one GPU.
        kv_capacity: tokens; None = from :func:`kv_capacity` with its default arguments.
        kv_capacity_origin: where that figure comes from.
        engine: name in ``engines`` of the one that is taken unless another is asked for.
        engines: what engines add to a batch outside the GPU, by name.
        source: of the profiles.
    """

    name: str
    description: str
    model: str
    gpu: str
    tensor_parallel: int
    linear: str
    attention: str
    all_reduce: str | None = None
    kv_capacity: int | None = None
    kv_capacity_origin: str = ""
    engine: str = NO_ENGINE
    engines: dict[str, EngineOverhead] = field(default_factory=dict)
    source: str = "public operator profiles of the Vidur simulator (A100 80 GB), MIT licence"


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="llama2-70b-a100-tp2",
        description="Llama-2-70B on two A100 80 GB over NVLink, tensor parallel",
        model="llama2-70b",
        gpu="a100-80gb",
        tensor_parallel=2,
        linear="llama2-70b.mlp.csv",
        attention="llama2-70b.tp2.attention.csv",
        all_reduce="pairwise_nvlink.all_reduce.csv",
        kv_capacity=16492,
        kv_capacity_origin=(
            "observed in deployments, as used by Jaillet et al., Online Scheduling for LLM Inference with KV "
            "Cache Constraints"
        ),
    ),
    Recipe(
        name="llama2-7b-a100-tp1",
        description="Llama-2-7B on one A100 80 GB",
        model="llama2-7b",
        gpu="a100-80gb",
        tensor_parallel=1,
        linear="llama2-7b.mlp.csv",
        attention="llama2-7b.tp1.attention.sampled.csv",
    ),
    Recipe(
        name="llama3-8b-a100-tp1",
        description="Llama-3-8B on one A100 80 GB",
        model="llama3-8b",
        gpu="a100-80gb",
        tensor_parallel=1,
        linear="llama3-8b.mlp.csv",
        attention="llama3-8b.tp1.attention.sampled.csv",
        kv_capacity=131000,
        kv_capacity_origin=(
            "GPU and CPU-swapped memory of the testbed in A Queueing-Theoretic Framework for Stability "
            "Analysis of LLM Inference with KV Cache Memory Constraints"
        ),
    ),
)
"""The hardware files that come with kvgym."""
