"""Routers that know what the workers have in their prefix caches.

Each is defined in its class, with its source. All observe the caches themselves (:func:`kvgym.kernels.hit_of`), late
by ``System.cache_staleness``; the routers of practice keep an index of their own, made of events of the workers or of
the requests that they have routed. Ties go to the worker with the lowest index, in practice to a random one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.kernels import RouterView, hit_of, jit, missing_of, prefill_backlog
from kvgym.policies.policy import Weight, require, require_count, require_flag
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


@jit
def relative(value: float, low: float, high: float) -> float:
    """Return where a value lies between the least and the largest one, 0 … 1; 1 if all are equal."""
    return 1.0 if high == low else (value - low) / (high - low)


@router_kernel
def prefix_aware_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the largest weighted sum of scores: prefix, queue, free memory."""
    workers, problems, first = view.workers, view.problems, view.first
    known = view.requests[view.request].num_kv_tokens + view.requests[view.request].num_prefill_left
    least_hit = most_hit = hit_of(view, first)
    shortest = longest = workers[first].num_waiting
    for k in range(first + 1, view.last):
        hit, waiting = hit_of(view, k), workers[k].num_waiting
        least_hit, most_hit = min(least_hit, hit), max(most_hit, hit)
        shortest, longest = min(shortest, waiting), max(longest, waiting)
    best, most = first, -np.inf
    for k in range(first, view.last):
        hit = float(hit_of(view, k))
        prefix = relative(hit, float(least_hit), float(most_hit)) if params[3] == 1.0 else hit / known
        queue = relative(-float(workers[k].num_waiting), -float(longest), -float(shortest))
        free = 1.0 - workers[k].kv_allocated / problems[k].kv_capacity
        score = params[0] * prefix + params[1] * queue + params[2] * free
        if score > most:
            best, most = k, score
    return int(best)


@register_router
class PrefixAware(CompiledRouter):
    """The largest weighted sum of three scores from 0 to 1, as llm-d's scheduler.

    - prefix: the tokens that the worker has in its cache, from the fewest (0) to the most (1) of the workers, as the
      precise-prefix-cache-scorer; or with ``relative=False`` as a share of the prompt, as the prefix-scorer;
    - queue: its waiting requests, from the most (0) to the fewest (1); where all are equal, a score is 1 for all;
    - free: the share of its memory that is not in use.

    Source: the scorers of llm-d (``pkg/epp/scheduling/framework/plugins`` of
    kubernetes-sigs/gateway-api-inference-extension: queue-scorer, kv-cache-utilization-scorer) and their weights as
    inference-sim's routing guide gives them: 2, 1, 1 with the precise scorer today, 3, 2, 2 with the share of the
    prompt before. llm-d refreshes queue and memory every 50 ms; here they are present.
    """

    info = RouterInfo(
        name="prefix_aware",
        summary="the largest weighted sum of cached prefix, short queue and free memory, as llm-d",
    )
    kernel = prefix_aware_kernel

    def __init__(
        self, *, prefix: float = 2.0, queue: float = 1.0, free: float = 1.0, relative: bool = True
    ) -> None:
        """Set the weights, of which only the ratios matter.

        Args:
            prefix: of the cached prefix, 0 to 1,000.
            queue: of a short queue, 0 to 1,000.
            free: of memory that is not in use, 0 to 1,000.
            relative: whether the prefix counts relative to the other workers, not to the prompt.

        Raises:
            ConfigError: a weight is out of range.
        """
        for name, value in (("prefix", prefix), ("queue", queue), ("free", free)):
            require(name, value, 0 <= value <= 1000, "a number from 0 to 1000")
        require_flag("relative", relative)
        self.prefix, self.queue, self.free, self.relative = prefix, queue, free, relative

    @classmethod
    def weights(cls, **fixed: Any) -> tuple[Weight, ...]:
        """Return the three weights."""
        return tuple(Weight(name, default, 0.5, 0.0, 1000.0) for name, default in _PREFIX_WEIGHTS.items())

    def params(self) -> NDArray[np.float64]:
        """Return the weights, and whether the prefix counts relative to the other workers."""
        return np.array([self.prefix, self.queue, self.free, self.relative], np.float64)


_PREFIX_WEIGHTS = {"prefix": 2.0, "queue": 1.0, "free": 1.0}


@router_kernel
def cache_aware_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the least loaded worker if loads differ much, else the longest match, else the shortest record."""
    workers, first = view.workers, view.first
    r = view.requests[view.request]
    busiest = idlest = longest = smallest = first
    match = hit_of(view, first)
    for k in range(first + 1, view.last):
        count = workers[k].outstanding_requests
        if count > workers[busiest].outstanding_requests:
            busiest = k
        if count < workers[idlest].outstanding_requests:
            idlest = k
        if state[k] < state[smallest]:
            smallest = k
        hit = hit_of(view, k)
        if hit > match:
            longest, match = k, hit
    most, least = workers[busiest].outstanding_requests, workers[idlest].outstanding_requests
    if most - least > params[1] and most > params[2] * least:
        chosen = idlest
    elif match > params[0] * (r.num_kv_tokens + r.num_prefill_left):
        chosen = longest
    else:
        chosen = smallest
    state[chosen] += missing_of(view, chosen)
    return int(chosen)


@register_router
class CacheAware(CompiledRouter):
    """The longest match if it is long enough, else the shortest record; while loads differ much, the lowest load.

    The loads are unfinished requests: they differ much if the most exceed the fewest by more than ``absolute``, and by
    more than the factor ``ratio``. A match is long enough if it exceeds the share ``threshold`` of the prompt. A record
    is what has been sent to a worker, in tokens that it lacked.

    Source: the policy ``cache_aware`` of SGLang's router (``sgl-router/src/policies/cache_aware.rs``), with its
    defaults. There match and record are those of a tree of the texts that were routed; the record has no bound here,
    and there one that is seldom reached.
    """

    info = RouterInfo(
        name="cache_aware",
        summary="the longest cached prefix, else the shortest record; if loads differ much, the lowest load, as SGLang",
    )
    kernel = cache_aware_kernel

    def __init__(self, *, threshold: float = 0.3, absolute: int = 64, ratio: float = 1.5) -> None:
        """Set when a match decides.

        Args:
            threshold: share of the prompt that a match must exceed, 0 to 1.
            absolute: requests by which loads must differ before the lowest load decides.
            ratio: factor by which they must differ as well, at least 1.

        Raises:
            ConfigError: a value is out of range.
        """
        require("threshold", threshold, 0 <= threshold <= 1, "a number from 0 to 1")
        require("absolute", absolute, isinstance(absolute, int) and absolute >= 0, "a whole number ≥ 0")
        require("ratio", ratio, 1 <= ratio <= 1e6, "a number from 1 to 1e6")
        self.threshold, self.absolute, self.ratio = threshold, absolute, ratio

    def params(self) -> NDArray[np.float64]:
        """Return the thresholds."""
        return np.array([self.threshold, self.absolute, self.ratio], np.float64)

    def memory(self, num_workers: int, seed: np.random.SeedSequence) -> NDArray[np.int64]:
        """Return the record of each worker, tokens."""
        return np.zeros(num_workers, np.int64)


@router_kernel
def lmetric_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the least product of tokens to prefill and requests; equal products: the fewest tokens."""
    best, least, fewest = view.first, np.inf, np.inf
    for k in range(view.first, view.last):
        tokens = float(missing_of(view, k))
        if params[0] == 1.0:
            tokens += prefill_backlog(view, k)
        product = tokens * view.workers[k].outstanding_requests
        if product < least or (product == least and tokens < fewest):
            best, least, fewest = k, product, tokens
    return int(best)


@register_router
class LMetric(CompiledRouter):
    """The least product of two figures: the tokens that the worker would have to prefill, and its number of requests.

    Source: D. Zhang and others, "LMetric: Simple is Better - Multiplication May Be All You Need for LLM Request
    Scheduling", arXiv 2603.15202, known here by its abstract: "new prefill tokens if routed to an instance" times
    "current batch size of the instance". Readings: the tokens are those of the request that the worker lacks, with
    ``queued`` also those that its other requests have yet to prefill; the batch size is the number of unfinished
    requests. It has no other hyperparameter. Idle workers have a product of 0; of these, the one that lacks the fewest
    tokens is chosen.
    """

    info = RouterInfo(
        name="lmetric",
        summary="the least product of tokens to prefill there and unfinished requests",
        paper="Zhang and others, LMetric: Simple is Better - Multiplication May Be All You Need",
    )
    kernel = lmetric_kernel

    def __init__(self, *, queued: bool = False) -> None:
        """Set which tokens count.

        Args:
            queued: whether the tokens that other requests have yet to prefill there count as well.

        Raises:
            ConfigError: it is not true or false.
        """
        require_flag("queued", queued)
        self.queued = queued

    def params(self) -> NDArray[np.float64]:
        """Return whether the tokens of other requests count."""
        return np.array([self.queued], np.float64)


@jit
def cost(view: RouterView, k: int, output: float) -> float:
    """Return the load of worker ``k`` with the request, seconds: prefills that are left, and decodes."""
    w, p = view.workers[k], view.problems[k]
    requests = float(w.outstanding_requests + 1)
    pace = p.batch_base + p.batch_decode * requests + p.batch_context * w.kv_allocated
    return float(
        p.batch_prefill * (prefill_backlog(view, k) + missing_of(view, k)) + pace * output * requests
    )


@router_kernel
def preble_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the cheapest worker; if most of the prompt is cached, the cheapest of those with the longest hit."""
    r = view.requests[view.request]
    known, longest = r.num_kv_tokens + r.num_prefill_left, 0
    for k in range(view.first, view.last):
        longest = max(longest, hit_of(view, k))
    reuse = 2 * longest > known
    best, least = view.first, np.inf
    for k in range(view.first, view.last):
        if reuse and hit_of(view, k) < longest:
            continue
        load = cost(view, k, params[0])
        if load < least:
            best, least = k, load
    return int(best)


@register_router
class Preble(CompiledRouter):
    """The cheapest worker; where most of the prompt is cached somewhere, the cheapest with the longest hit.

    After E2 of V. Srivatsa and others, "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (2024), and no
    reproduction of it. If the cached part of a request is longer than the rest, it goes where that is cached; others go
    to the worker with the lowest cost. Deviations: Preble's cost is that of three minutes of requests, their share of
    misses included, plus the prefills that an eviction makes necessary again; here it is the present load, in seconds:
    all prefills that are left, and for every request ``output`` tokens at the pace of the present batch. Its
    replication of hot prefixes and its rebalancing are left out, and so is its scheduler on each worker.
    """

    info = RouterInfo(
        name="preble",
        summary="where most of the prompt is cached, else the cheapest worker, after Preble's E2",
        paper="Srivatsa and others, Preble: Efficient Distributed Prompt Scheduling for LLM Serving",
    )
    kernel = preble_kernel

    def __init__(self, *, output: int = 45) -> None:
        """Set what a request is expected to generate.

        Args:
            output: tokens; Preble's own default.

        Raises:
            ConfigError: it is not a whole number ≥ 1.
        """
        require_count("output", output)
        self.output = output

    def params(self) -> NDArray[np.float64]:
        """Return the expected output tokens."""
        return np.array([self.output], np.float64)
