"""A router that weighs two times: a request's wait at a worker, and the delay that it causes for others there.

Not from a paper. The two classical routers, fewest requests and least work, are sums of two of its terms. The other
terms cover what these ignore when workers differ in memory and speed. The weights are hyperparameters with defaults
set by hand; evolution can learn others (docs/routing.md).

The router observes of a worker k: its memory M, tokens; the tokens W of its unfinished requests (prompts, and outputs
if predictions are revealed) and their number n, of which q wait; m tokens of memory in use; and its batch time as a
linear function, ``base + decode · requests + context · tokens + prefill · prompt tokens``
(:class:`~kvgym.simulator.batch_time.RoughFigures`). Let w be the mean tokens per request over the candidate workers,
including the new request. Then a batch of k takes

- ``full = base + decode · M / w + context · M`` with all of its memory in use, and
- ``now = base + decode · min(n, M / w) + context · min(W, M)`` with the requests it has.

The request has s prompt tokens, and z tokens of prompt and predicted output. ``size = z / (z + w)`` compares its
length with the others: 0 very short, 1/2 average, 1 very long. With a prefix cache, k has h of the s tokens, and f
more in the memory below its GPU. Its other requests have b prompt tokens yet to prefill.

:class:`TermWeights` lists the terms. All are in seconds, so weights have no unit and suit any hardware and any
lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit_inline
from kvgym.compiling.named import numbers_named
from kvgym.kernels import (
    UNKNOWN,
    RouterView,
    first_open,
    found_of,
    hit_of,
    may_go,
    next_open,
    prefill_backlog,
)
from kvgym.policies.hyperparameters import (
    weight,
    weights_of,
)
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel
from kvgym.simulator.boundary import expected_tokens
from kvgym.simulator.tables import BUSY


class TermWeights(CompiledRouter):
    """Base class of ``weighted``: the weights of the terms, which have no unit."""

    # fmt: off
    work: float = weight(0.3, 0.3, -5.0, 10.0,
        "full · W / M: one full batch for every M tokens of work")
    long_work: float = weight(0.0, 0.5, -10.0, 10.0,
        "size times the term work")
    requests: float = weight(0.7, 0.3, -5.0, 10.0,
        "full · n w / M: the same if all requests were equally long")
    waiting: float = weight(0.0, 0.3, -5.0, 10.0,
        "full · q w / M: the same for waiting requests")
    held: float = weight(0.0, 0.3, -5.0, 10.0,
        "full · m / M")
    lacking: float = weight(0.0, 0.5, -5.0, 20.0,
        "full · max(0, m + z - M) / M: free memory that the request lacks")
    pace: float = weight(1.0, 0.3, -5.0, 10.0,
        "now: the time per token of the request")
    long_pace: float = weight(0.0, 0.5, -10.0, 10.0,
        "size times the term pace")
    prompt: float = weight(0.0, 0.1, -2.0, 5.0,
        "prefill · s")
    prompt_delay: float = weight(0.0, 0.01, -0.2, 0.5,
        "prefill · s · (n - q): the delay of active requests by its prompt")
    token_delay: float = weight(0.0, 0.3, -5.0, 10.0,
        "(decode + context · z) · (n - q): the delay of active requests by each of its tokens")
    batch: float = weight(0.0, 0.3, -5.0, 5.0,
        "the remaining time of the batch that runs")
    cached: float = weight(0.0, 0.3, -5.0, 10.0,
        "- prefill · h: the prefill time that the prefix cache saves")
    uncached: float = weight(0.0, 0.3, -5.0, 10.0,
        "prefill · (s - h): the prefill time of the request")
    uncached_delay: float = weight(0.0, 0.05, -1.0, 5.0,
        "prefill · (s - h) · n: its delay of the worker's requests, which LMetric takes alone")
    backlog: float = weight(0.0, 0.3, -5.0, 10.0,
        "prefill · b: the prefill time of the prompts ahead")
    backlog_delay: float = weight(0.0, 0.05, -1.0, 5.0,
        "prefill · b · n: their delay of the worker's requests")
    below: float = weight(0.0, 0.3, -5.0, 10.0,
        "- prefill · f: the prefill time that the memory below the GPU saves")
    # fmt: on

    def params(self) -> NDArray[np.float64]:
        """Return the weights, float64 (18,)."""
        return np.array([getattr(self, w.name) for w in WEIGHTS], np.float64)


WEIGHTS = weights_of(TermWeights)
"""The weights of the terms, in the order in which the kernel reads them."""

weights_in: Callable[[Any], TermWeights] = numbers_named(
    "weights of weighted", {w.name: float for w in WEIGHTS}
)
"""Return the weights in the parameters of the router, for its kernel."""


@jit_inline
def mean_tokens(view: RouterView, size: int) -> float:
    """Return the mean tokens per unfinished request over workers, including one of ``size`` tokens."""
    tokens, count = size, 1
    for k in range(view.first, view.last):
        if may_go(view, k):
            tokens += view.workers[k].outstanding_tokens
            count += view.workers[k].outstanding_requests
    return float(tokens / count)


@jit_inline
def present(workers: Any, r: Any) -> float:
    """Return the present time: the request's arrival, or the end of the batch that completed its prefill."""
    clock = r.arrival_time
    for k in range(workers.shape[0]):
        clock = max(clock, workers[k].clock)
    return float(clock)


@router_kernel
def weighted_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the least sum of weighted terms."""
    problems, workers, r = view.problems, view.workers, view.requests[view.request]
    p = weights_in(params)
    tokens = expected_tokens(r)
    mean = mean_tokens(view, tokens)
    clock = present(workers, r)
    size = tokens / (tokens + mean)
    k = best = first_open(view)
    least = np.inf
    while k != UNKNOWN:
        w, problem = workers[k], problems[k]
        memory = float(problem.kv_capacity)
        count = float(w.outstanding_requests)
        active = float(w.outstanding_requests - w.num_waiting)
        full = problem.batch_base + problem.batch_decode * (memory / mean) + problem.batch_context * memory
        pace = (
            problem.batch_base
            + problem.batch_decode * min(count, memory / mean)
            + problem.batch_context * min(float(w.outstanding_tokens), memory)
        )
        work = full * (w.outstanding_tokens / memory)
        prompt = problem.batch_prefill * r.prompt_len
        batch = w.until - clock if w.phase == BUSY else 0.0
        score = (
            (p.work + p.long_work * size) * work
            + p.requests * full * (count * mean / memory)
            + p.waiting * full * (w.num_waiting * mean / memory)
            + p.held * full * (w.kv_allocated / memory)
            + p.lacking * full * (max(0.0, w.kv_allocated + tokens - memory) / memory)
            + (p.pace + p.long_pace * size) * pace
            + (p.prompt + p.prompt_delay * active) * prompt
            + p.token_delay * active * (problem.batch_decode + problem.batch_context * tokens)
            + p.batch * batch
        )
        if p.cached != 0.0 or p.uncached != 0.0 or p.uncached_delay != 0.0:
            hit = hit_of(view, k)
            uncached = (p.uncached + p.uncached_delay * count) * (r.prompt_len - hit)
            score += problem.batch_prefill * (uncached - p.cached * hit)
        if p.below != 0.0:
            score -= p.below * problem.batch_prefill * (found_of(view, k) - hit_of(view, k))
        if p.backlog != 0.0 or p.backlog_delay != 0.0:
            ahead = problem.batch_prefill * prefill_backlog(view, k)
            score += (p.backlog + p.backlog_delay * count) * ahead
        if score < least:
            best, least = k, score
        k = next_open(view, k)
    return int(best)


@register_router
class Weighted(TermWeights):
    """The worker with the least weighted sum of times, see the module's docstring.

    Ties go to the lowest index. Requests in transfer from a prefill worker count as active.
    """

    info = RouterInfo(
        name="weighted",
        summary="the worker with the least weighted sum of waiting times and costs; weights can be learned",
    )
    kernel = weighted_kernel
