"""Random instances of the literature that draw their memory with their requests."""

from __future__ import annotations

from kvgym.workloads.base import substream
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import make_workload


def mcsf_instance(model: int, seed: int) -> tuple[RequestTable, int]:
    """Return one random instance of MC-SF, Section 5.1: its requests and its memory.

    The memory M is uniform on 30 … 50, prompts on 1 … 5, outputs on 1 … M − prompt. Model 1: 40 … 60
    requests at time 0. Model 2: slots 1 … T, T uniform on 40 … 60, Poisson arrivals of one rate uniform
    in [0.5, 1.5).

    Args:
        model: 1 or 2.
        seed: non-negative integer; trials are consecutive seeds.

    Returns:
        The requests, and M in tokens.
    """
    kv_capacity = int(substream(seed, "lengths", 4).integers(30, 50, endpoint=True))
    workload = make_workload(f"mcsf-model-{model}", lengths={"kv_capacity": kv_capacity})
    return workload.sample(seed), kv_capacity
