"""Routers that choose the worker of an arriving request.

Uniform random routing is the resource planner of A. Bari, P. Hegde, G. de Veciana, "Optimal Scheduling Algorithms
for LLM Inference: Theory and Practice", Section 4.1; round robin is what "A Queueing-Theoretic Framework for
Stability Analysis of LLM Inference with KV Cache Memory Constraints", Section 5.3, runs on eight GPUs. The other two
come from practice. Ties go to the worker with the lowest index, of routers that know scrapes to each in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.kernels import UNKNOWN, RouterView, first_open, jit, may_go, next_open
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel
from kvgym.simulator.kernels.random import next_uniform, seed_words


@jit
def count_open(view: RouterView) -> int:
    """Return how many workers the request may go to."""
    if view.open.shape[0] == 0:
        return int(view.last - view.first)
    count = 0
    for k in range(view.first, view.last):
        count += may_go(view, k)
    return int(count)


@jit
def nth_open(view: RouterView, n: int) -> int:
    """Return the worker of number ``n``, from 0, of those that the request may go to."""
    if view.open.shape[0] == 0:
        return int(view.first + n)
    k = view.first - 1
    while n >= 0:
        k += 1
        n -= may_go(view, k)
    return int(k)


@jit
def fewest_requests(view: RouterView) -> int:
    """Return the worker with the fewest unfinished requests."""
    workers, k = view.workers, first_open(view)
    best = k
    while k != UNKNOWN:
        if workers[k].outstanding_requests < workers[best].outstanding_requests:
            best = k
        k = next_open(view, k)
    return int(best)


@router_kernel
def uniform_random_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Draw a worker uniformly at random."""
    return nth_open(view, int(next_uniform(state, 0) * count_open(view)))


@router_kernel
def round_robin_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the workers in turn, with separate turns for new requests and for hand-overs."""
    stage = 1 if view.first > 0 else 0
    k = nth_open(view, state[stage] % count_open(view))
    state[stage] += 1
    return int(k)


@router_kernel
def least_outstanding_work_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the fewest tokens of unfinished requests, relative to its memory."""
    workers, problems, k = view.workers, view.problems, first_open(view)
    best = k
    while k != UNKNOWN:
        # a / A < b / B, exactly
        if workers[k].outstanding_tokens * problems[best].kv_capacity < (
            workers[best].outstanding_tokens * problems[k].kv_capacity
        ):
            best = k
        k = next_open(view, k)
    return int(best)


@router_kernel
def join_shortest_queue_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the fewest unfinished requests."""
    return fewest_requests(view)


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
