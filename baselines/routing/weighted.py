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
length with the others: 0 very short, 1/2 average, 1 very long. With a prefix cache, k has h of the s tokens.

:data:`WEIGHTS` lists the terms. All are in seconds, so weights have no unit and suit any hardware and any
lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit_inline
from kvgym.kernels import RouterView, hit_of
from kvgym.policies.policy import Weight, require
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel
from kvgym.simulator.boundary import expected_tokens
from kvgym.simulator.tables import BUSY
from kvgym.utils.hyperparameters import with_hyperparameters

WEIGHTS: tuple[Weight, ...] = (
    Weight("work", 0.3, 0.3, -5.0, 10.0, meaning=
        "full · W / M: one full batch for every M tokens of work"),
    Weight("long_work", 0.0, 0.5, -10.0, 10.0, meaning=
        "size times the term work"),
    Weight("requests", 0.7, 0.3, -5.0, 10.0, meaning=
        "full · n w / M: the same if all requests were equally long"),
    Weight("waiting", 0.0, 0.3, -5.0, 10.0, meaning=
        "full · q w / M: the same for waiting requests"),
    Weight("held", 0.0, 0.3, -5.0, 10.0, meaning=
        "full · m / M"),
    Weight("lacking", 0.0, 0.5, -5.0, 20.0, meaning=
        "full · max(0, m + z - M) / M: free memory that the request lacks"),
    Weight("pace", 1.0, 0.3, -5.0, 10.0, meaning=
        "now: the time per token of the request"),
    Weight("long_pace", 0.0, 0.5, -10.0, 10.0, meaning=
        "size times the term pace"),
    Weight("prompt", 0.0, 0.1, -2.0, 5.0, meaning=
        "prefill · s"),
    Weight("prompt_delay", 0.0, 0.01, -0.2, 0.5, meaning=
        "prefill · s · (n - q): the delay of active requests by its prompt"),
    Weight("token_delay", 0.0, 0.3, -5.0, 10.0, meaning=
        "(decode + context · z) · (n - q): the delay of active requests by each of its tokens"),
    Weight("batch", 0.0, 0.3, -5.0, 5.0, meaning=
        "the remaining time of the batch that runs"),
    Weight("cached", 0.0, 0.3, -5.0, 10.0, meaning=
        "- prefill · h: the prefill time that the prefix cache saves"),
    Weight("uncached", 0.0, 0.3, -5.0, 10.0, meaning=
        "prefill · (s - h): the prefill time of the request"),
    Weight("uncached_delay", 0.0, 0.05, -1.0, 5.0, meaning=
        "prefill · (s - h) · n: its delay of the worker's requests, which LMetric takes alone"),
)  # fmt: skip
"""The weights of the terms, in the order in which the kernel reads them."""


@jit_inline
def mean_tokens(workers: Any, first: int, last: int, size: int) -> float:
    """Return the mean tokens per unfinished request over workers, including one of ``size`` tokens."""
    tokens, count = size, 1
    for k in range(first, last):
        tokens += workers[k].outstanding_tokens
        count += workers[k].outstanding_requests
    return float(tokens / count)


@jit_inline
def present(workers: Any, first: int, last: int, r: Any) -> float:
    """Return the present time: the request's arrival, or the end of the batch that completed its prefill."""
    clock = r.arrival_time
    for k in range(workers.shape[0]):
        clock = max(clock, workers[k].clock)
    return float(clock)


@router_kernel
def weighted_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the least sum of weighted terms."""
    problems, workers, r = view.problems, view.workers, view.requests[view.request]
    first, last = view.first, view.last
    tokens = expected_tokens(r)
    mean = mean_tokens(workers, first, last, tokens)
    clock = present(workers, first, last, r)
    size = tokens / (tokens + mean)
    best, least = first, np.inf
    for k in range(first, last):
        w, p = workers[k], problems[k]
        memory = float(p.kv_capacity)
        count = float(w.outstanding_requests)
        active = float(w.outstanding_requests - w.num_waiting)
        full = p.batch_base + p.batch_decode * (memory / mean) + p.batch_context * memory
        pace = (
            p.batch_base
            + p.batch_decode * min(count, memory / mean)
            + p.batch_context * min(float(w.outstanding_tokens), memory)
        )
        work = full * (w.outstanding_tokens / memory)
        prompt = p.batch_prefill * r.prompt_len
        batch = w.until - clock if w.phase == BUSY else 0.0
        score = (
            (params[0] + params[1] * size) * work
            + params[2] * full * (count * mean / memory)
            + params[3] * full * (w.num_waiting * mean / memory)
            + params[4] * full * (w.kv_allocated / memory)
            + params[5] * full * (max(0.0, w.kv_allocated + tokens - memory) / memory)
            + (params[6] + params[7] * size) * pace
            + (params[8] + params[9] * active) * prompt
            + params[10] * active * (p.batch_decode + p.batch_context * tokens)
            + params[11] * batch
        )
        if params[12] != 0.0 or params[13] != 0.0 or params[14] != 0.0:
            hit = hit_of(view, k)
            uncached = (params[13] + params[14] * count) * (r.prompt_len - hit)
            score += p.batch_prefill * (uncached - params[12] * hit)
        if score < least:
            best, least = k, score
    return int(best)


@register_router
class Weighted(CompiledRouter):
    """The worker with the least weighted sum of times, see the module's docstring.

    Ties go to the lowest index. Requests in transfer from a prefill worker count as active.
    """

    info = RouterInfo(
        name="weighted",
        summary="the worker with the least weighted sum of waiting times and costs; weights can be learned",
    )
    kernel = weighted_kernel

    @with_hyperparameters({w.name: (w.default, w.meaning) for w in WEIGHTS})
    def __init__(self, **weights: float) -> None:
        """Set the weights of the terms, which have no unit.

        Args:
            **weights: the weights in :data:`WEIGHTS`.

        Raises:
            ConfigError: a weight is out of its range.
        """
        given = [weights.get(w.name, w.default) for w in WEIGHTS]
        for weight, value in zip(WEIGHTS, given, strict=True):
            expected = f"a number from {weight.low:g} to {weight.high:g}"
            require(weight.name, value, weight.low <= value <= weight.high, expected)
        self._given = np.array(given, np.float64)

    @classmethod
    def weights(cls, **fixed: Any) -> tuple[Weight, ...]:
        """Return all hyperparameters; each is a weight."""
        return WEIGHTS

    def params(self) -> NDArray[np.float64]:
        """Return the weights, float64 (15,)."""
        return self._given
