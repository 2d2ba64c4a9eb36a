"""Routers that know what the workers have in their prefix caches.

Each is defined in its class, with its source. All observe the caches themselves (:func:`kvgym.kernels.hit_of`), late
by ``System.cache_staleness``; the routers of practice keep an index of their own, made of events of the workers or of
the requests that they have routed. Ties go to the worker with the lowest index, of routers that know scrapes to each
in turn, in practice to a random one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvgym.kernels import (
    UNKNOWN,
    RouterView,
    first_open,
    found_of,
    hit_of,
    jit,
    may_go,
    missing_of,
    named_numbers,
    next_open,
    prefill_backlog,
)
from kvgym.policies.hyperparameters import (
    flag,
    hyperparameter,
    weight,
    whole,
)
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


@jit
def relative(value: float, low: float, high: float) -> float:
    """Return where a value lies between the least and the largest one, 0 … 1; 1 if all are equal."""
    return 1.0 if high == low else (value - low) / (high - low)


class Scores(NamedTuple):
    """Parameters of ``prefix_aware``: the weights of its scores, and whether the prefix counts relative to others."""

    prefix: float
    queue: float
    free: float
    host: float
    relative: bool


class Match(NamedTuple):
    """Parameters of ``cache_aware``: when a match decides, and when loads do."""

    threshold: float
    absolute: int
    ratio: float


class Queued(NamedTuple):
    """Parameters of ``lmetric``: whether tokens of other requests count."""

    queued: bool


class Expected(NamedTuple):
    """Parameters of ``preble``: the output that a request is expected to have, tokens."""

    output: float


scores_in, match_in = named_numbers(Scores), named_numbers(Match)
queued_in, expected_in = named_numbers(Queued), named_numbers(Expected)


@router_kernel
def prefix_aware_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the largest weighted sum of scores: prefix, queue, free memory."""
    workers, problems, first, p = view.workers, view.problems, first_open(view), scores_in(params)
    known = view.requests[view.request].num_kv_tokens + view.requests[view.request].num_prefill_left
    least_hit, most_hit = known, 0
    shortest = longest = workers[first].num_waiting
    k = first
    while k != UNKNOWN:
        hit, waiting = hit_of(view, k), workers[k].num_waiting
        least_hit, most_hit = min(least_hit, hit if hit > 0 else known), max(most_hit, hit)
        shortest, longest = min(shortest, waiting), max(longest, waiting)
        k = next_open(view, k)
    k = best = first
    most = -np.inf
    while k != UNKNOWN:
        hit = float(hit_of(view, k))
        prefix = hit / known
        if p.relative:
            prefix = relative(hit, float(least_hit), float(most_hit)) if hit > 0.0 else 0.0
        queue = relative(-float(workers[k].num_waiting), -float(longest), -float(shortest))
        free = 1.0 - workers[k].kv_allocated / problems[k].kv_capacity
        score = p.prefix * prefix + p.queue * queue + p.free * free
        if p.host > 0.0:
            score += p.host * found_of(view, k) / known
        if score > most:
            best, most = k, score
        k = next_open(view, k)
    return int(best)


@register_router
class PrefixAware(CompiledRouter):
    """The largest weighted sum of three scores from 0 to 1, as llm-d's scheduler; only ratios of the weights matter.

    - prefix: the tokens that the worker has in its cache, from the fewest (0) to the most (1) of the workers that have
      any, and 0 of the others, as the precise-prefix-cache-scorer; or with ``relative=False`` as a share of the prompt,
      as the prefix-scorer;
    - queue: its waiting requests, from the most (0) to the fewest (1); where all are equal, a score is 1 for all;
    - free: the share of its memory that is not in use.

    With host memory, a further score (``host``) is the share of the prompt on the GPU or in the memory of the host, as
    of llm-d's prefix-cache-scorer with the capacity of the host (``guides/tiered-prefix-cache/cpu`` of llm-d/llm-d).

    Source: the scorers of llm-d (``pkg/epp/scheduling/framework/plugins`` of
    kubernetes-sigs/gateway-api-inference-extension: queue-scorer, kv-cache-utilization-scorer;
    ``preciseprefixcache`` of llm-d/llm-d-inference-scheduler, commit 760afae). Weights: 2, 1, 1 with the precise
    scorer, as in that repository's configuration for it (``deploy/config/epp-precise-prefix-cache-config.yaml``, commit
    17d999e); before, 3, 2, 2 with the share of the prompt, as inference-sim's routing guide gives them. llm-d
    refreshes queue and memory every 50 ms; here they are present.
    """

    info = RouterInfo(
        name="prefix_aware",
        summary="the largest weighted sum of cached prefix, short queue and free memory, as llm-d",
    )
    kernel = prefix_aware_kernel
    parameters = Scores

    prefix: float = weight(2.0, 0.5, 0.0, 1000.0, "of the cached prefix, 0 to 1,000")
    queue: float = weight(1.0, 0.5, 0.0, 1000.0, "of a short queue, 0 to 1,000")
    free: float = weight(1.0, 0.5, 0.0, 1000.0, "of memory that is not in use, 0 to 1,000")
    host: float = hyperparameter(
        0.0, lambda x: isinstance(x, int | float) and 0 <= x <= 1000, "a number from 0 to 1000", kept=float
    )
    """of the share of the prompt that the worker has on the GPU or in the memory of its host, 0 to 1,000."""

    relative: bool = flag(True)
    """whether the prefix counts relative to the other workers, not to the prompt."""


@router_kernel
def cache_aware_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the longest match if it is long enough and loads do not differ much, else the fewest requests."""
    workers, first, p = view.workers, first_open(view), match_in(params)
    r = view.requests[view.request]
    k = busiest = idlest = longest = first
    match = hit_of(view, first)
    while k != UNKNOWN:
        count = workers[k].outstanding_requests
        if count > workers[busiest].outstanding_requests:
            busiest = k
        if count < workers[idlest].outstanding_requests:
            idlest = k
        hit = hit_of(view, k)
        if hit > match:
            longest, match = k, hit
        k = next_open(view, k)
    most, least = workers[busiest].outstanding_requests, workers[idlest].outstanding_requests
    if most - least > p.absolute and most > p.ratio * least:
        return int(idlest)
    return int(longest if match > p.threshold * (r.num_kv_tokens + r.num_prefill_left) else idlest)


@register_router
class CacheAware(CompiledRouter):
    """The longest match if it is long enough, else the fewest requests; these also while loads differ much.

    The loads are unfinished requests: they differ much if the most exceed the fewest by more than ``absolute``, and by
    more than the factor ``ratio``. A match is long enough if it exceeds the share ``threshold`` of the prompt.

    Source: the policy ``cache_aware`` of SGLang's router, release 0.3.2 (``sgl-model-gateway/src/policies/
    cache_aware.rs``), with its defaults; ``scripts/conformance`` compares decisions with those of that release. There
    the match is that of a tree of the texts that were routed, by characters.
    """

    info = RouterInfo(
        name="cache_aware",
        summary="the longest cached prefix, else the fewest requests; if loads differ much, these, as SGLang 0.3.2",
    )
    kernel = cache_aware_kernel
    parameters = Match

    threshold: float = hyperparameter(0.3, lambda x: 0 <= x <= 1, "a number from 0 to 1")
    """share of the prompt that a match must exceed, 0 to 1."""
    absolute: int = whole(64, least=0)
    """requests by which loads must differ before the lowest load decides."""
    ratio: float = hyperparameter(1.5, lambda x: 1 <= x <= 1000000.0, "a number from 1 to 1e6")
    """factor by which they must differ as well, at least 1."""


@router_kernel
def lmetric_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the least product of tokens to prefill and requests; equal products: the fewest tokens."""
    k = best = first_open(view)
    least = fewest = np.inf
    while k != UNKNOWN:
        tokens = float(missing_of(view, k))
        if queued_in(params).queued:
            tokens += prefill_backlog(view, k)
        product = tokens * view.workers[k].outstanding_requests
        if product < least or (product == least and tokens < fewest):
            best, least, fewest = k, product, tokens
        k = next_open(view, k)
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
    parameters = Queued

    queued: bool = flag(False)
    """whether the tokens that other requests have yet to prefill there count as well."""


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
        if may_go(view, k):
            longest = max(longest, hit_of(view, k))
    reuse = 2 * longest > known
    k = best = first_open(view)
    least = np.inf
    while k != UNKNOWN:
        if not reuse or hit_of(view, k) >= longest:
            load = cost(view, k, expected_in(params).output)
            if load < least:
                best, least = k, load
        k = next_open(view, k)
    return int(best)


@register_router
class Preble(CompiledRouter):
    """The cheapest worker; where most of the prompt is cached somewhere, the cheapest with the longest hit.

    After E2 of V. Srivatsa and others, "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (2024), and no
    reproduction of it. If the cached part of a request is longer than the rest, it goes where that is cached; others go
    to the worker with the lowest cost. Deviations: Preble's cost covers three minutes of requests, their share of
    misses included, plus the prefills that an eviction makes necessary again; here it is the present load, in seconds:
    all prefills that are left, and for every request ``output`` tokens at the pace of the present batch. Its
    replication of hot prefixes and its rebalancing are left out, and so is its scheduler on each worker. The condition
    for reuse is that of its source (``multi_node/global_scheduler_with_time.py`` of WukLab/preble, commit 0c962c4),
    which takes the cached part from a tree of the prompts of three minutes, here from the caches; of several workers
    with the prefix, that source confuses the place in their list with the worker.
    """

    info = RouterInfo(
        name="preble",
        summary="where most of the prompt is cached, else the cheapest worker, after Preble's E2",
        paper="Srivatsa and others, Preble: Efficient Distributed Prompt Scheduling for LLM Serving",
    )
    kernel = preble_kernel
    parameters = Expected

    output: int = whole(45)
    """tokens; Preble's own default."""
