"""Random instances from the literature with random memory."""

from __future__ import annotations

from kvgym.utils.seeding import stream
from kvgym.workloads.base import IntRange
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import make_workload

_CAPACITY = 4  # part of the stream of lengths


def draw_capacity(capacity: IntRange, seed: int) -> int:
    """Draw the memory of an instance, tokens.

    Args:
        capacity: range of the memory.
        seed: seed of the instance.
    """
    return capacity.draw(stream(seed, "lengths", _CAPACITY))


def mcsf_instance(model: int, seed: int) -> tuple[RequestTable, int]:
    """Return one random instance of MC-SF, Section 5.1: its requests and its memory.

    The memory M is uniform on 30 … 50, prompts on 1 … 5, outputs on 1 … M − prompt. Model 1: 40 … 60
    requests at time 0. Model 2: slots 1 … T, T uniform on 40 … 60, Poisson arrivals of one rate uniform
    in [0.5, 1.5).

    The scenarios ``mc-sf-model-1`` and ``mc-sf-model-2`` run the same instances.

    Args:
        model: 1 or 2.
        seed: non-negative integer; trials are consecutive seeds.

    Returns:
        The requests, and M in tokens.
    """
    kv_capacity = draw_capacity(IntRange(low=30, high=50), seed)
    workload = make_workload(f"mcsf-model-{model}", lengths={"kv_capacity": kv_capacity})
    return workload.sample(seed), kv_capacity
