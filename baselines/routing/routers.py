"""Routers that choose the worker of an arriving request.

Uniform random routing is the resource planner of A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms
for LLM Inference: Theory and Practice", Section 4.1; round robin is what "A Queueing-Theoretic Framework for
Stability Analysis of LLM Inference with KV Cache Memory Constraints", Section 5.3, runs on eight GPUs. The other two
come from practice. Ties go to the worker with the lowest index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.kernels import RouterView
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel
from kvgym.simulator.kernels.random import next_uniform, seed_words


@router_kernel
def uniform_random_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Draw a worker uniformly at random."""
    return int(view.first + int(next_uniform(state, 0) * (view.last - view.first)))


@router_kernel
def round_robin_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the workers in turn, with separate turns for new requests and for hand-overs."""
    stage = 1 if view.first > 0 else 0
    k = view.first + state[stage] % (view.last - view.first)
    state[stage] += 1
    return int(k)


@router_kernel
def least_outstanding_work_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the fewest tokens of unfinished requests, relative to its memory."""
    workers, problems, best = view.workers, view.problems, view.first
    for k in range(view.first + 1, view.last):
        # a / A < b / B, exactly
        if workers[k].outstanding_tokens * problems[best].kv_capacity < (
            workers[best].outstanding_tokens * problems[k].kv_capacity
        ):
            best = k
    return int(best)


@router_kernel
def join_shortest_queue_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the fewest unfinished requests."""
    workers, best = view.workers, view.first
    for k in range(view.first + 1, view.last):
        if workers[k].outstanding_requests < workers[best].outstanding_requests:
            best = k
    return int(best)


@register_router
class UniformRandom(CompiledRouter):
    """Each request goes to a worker drawn uniformly and independently."""

    info = RouterInfo(
        name="uniform_random",
        summary="a worker drawn uniformly at random",
        paper="Bari, Hegde, de Veciana, Optimal Scheduling Algorithms for LLM Inference: Theory and Practice",
    )
    kernel = uniform_random_kernel

    def memory(self, num_workers: int, seed: np.random.SeedSequence) -> NDArray[np.int64]:
        """Return the state of the router's random numbers."""
        return seed_words(seed)


@register_router
class RoundRobin(CompiledRouter):
    """The workers in turn."""

    info = RouterInfo(
        name="round_robin",
        summary="the workers in turn",
        paper="A Queueing-Theoretic Framework for Stability Analysis of LLM Inference with KV Cache Memory Constraints",
    )
    kernel = round_robin_kernel

    def memory(self, num_workers: int, seed: np.random.SeedSequence) -> NDArray[np.int64]:
        """Return the next worker in turn, for new requests and for hand-overs."""
        return np.zeros(2, np.int64)


@register_router
class LeastOutstandingWork(CompiledRouter):
    """The worker with the least work: prompt and predicted output tokens of its unfinished requests.

    Requests count in full, including tokens already processed, relative to the worker's memory. Output tokens count
    only if the policy observes predictions.
    """

    info = RouterInfo(
        name="least_outstanding_work",
        summary="the worker with the fewest tokens of unfinished requests per token of its memory",
    )
    kernel = least_outstanding_work_kernel


@register_router
class JoinShortestQueue(CompiledRouter):
    """The worker with the fewest requests, waiting and active."""

    info = RouterInfo(name="join_shortest_queue", summary="the worker with the fewest unfinished requests")
    kernel = join_shortest_queue_kernel
