"""When a decode worker prefills itself: the conditions of conditional disaggregation in one router.

With separate prefill and decode workers, a short prompt, or one that a decode worker has cached in part, may wait
longer for a prefill worker and for its transfer than its prefill would take on the decode worker. Released routers
decide that by a few thresholds, which :class:`ConditionalPrefill` has as settings:

====================================  ====================================================================
rule                                  settings
====================================  ====================================================================
dynamo, ``isl_bounding``              the defaults: under 2,048 new tokens, and under 0.7 of the prompt
dynamo, ``prefill_load``              ``tokens=0,backlog=8192``: one batch budget of the prefill worker
dynamo, ``isl_or_load``               ``backlog=8192``
dynamo of 2025                        ``tokens=1001,share=1,queue=2``
llm-d, prefix-based decider           ``tokens=N,share=1,short=P``, its nonCachedTokens and promptTokens
decode gate of dynamo                 ``gate=0.9`` with any of them
decode pool full (dynamo PR 14157)    ``full=0.9``: then the prefill worker goes on decoding
flexible decode (llm-d-router 1386)   ``target=2``: TTFT that a prefill worker would miss, seconds
====================================  ====================================================================

Sources: ai-dynamo/dynamo, ``conditional_disagg.rs`` and PR 303; llm-d/llm-d-router,
``prefix_based_pd_decider.go``, issue 1386. Readings: new tokens are those that the decode worker that would be chosen
has not cached; a decode worker's memory is its own count of the KV in use, as dynamo's gate has it; the backlog is
counted in tokens, not in batch budgets. Both workers are those with the fewest unfinished requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvgym.baselines.routing.routers import fewest_requests
from kvgym.kernels import (
    ROLE_DECODE,
    ROLE_PREFILL,
    UNKNOWN,
    RouterView,
    jit,
    may_choose,
    may_go,
    missing_of,
    named_numbers,
    prefill_backlog,
    prefill_only,
)
from kvgym.policies.hyperparameters import hyperparameter, whole
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


class Conditions(NamedTuple):
    """Parameters: the thresholds of :class:`ConditionalPrefill`."""

    tokens: int
    share: float
    short: int
    queue: int
    backlog: int
    gate: float
    full: float
    target: float


conditions_in = named_numbers(Conditions)


@jit
def fewest_of_role(view: RouterView, role: int) -> int:
    """Return the ready worker of a role with the fewest unfinished requests, UNKNOWN if there is none."""
    workers, best = view.workers, UNKNOWN
    for k in range(workers.shape[0]):
        if workers[k].role != role or not may_go(view, k):
            continue
        if best == UNKNOWN or workers[k].outstanding_requests < workers[best].outstanding_requests:
            best = k
    return int(best)


@jit
def in_use(view: RouterView, k: int) -> float:
    """Return the share of the memory of worker ``k`` that is in use."""
    return float(view.workers[k].kv_allocated / view.problems[k].kv_capacity)


@jit
def has_room(view: RouterView, share: float) -> bool:
    """Return whether a ready decode worker uses at most this share of its memory."""
    for k in range(view.workers.shape[0]):
        if view.workers[k].role == ROLE_DECODE and may_go(view, k) and in_use(view, k) <= share:
            return True
    return False


@jit
def prefers_local(view: RouterView, p: Any, prefill: int, decode: int) -> bool:
    """Return whether the decode worker should prefill the new request itself."""
    prompt, new = view.requests[view.request].prompt_len, missing_of(view, decode)
    local = prompt < p.short or (new < p.tokens and (p.share >= 1.0 or new < p.share * prompt))
    local = local or (p.queue > 0 and view.workers[prefill].num_waiting >= p.queue)
    local = local or (p.backlog > 0 and prefill_backlog(view, prefill) > p.backlog)
    return bool(local and in_use(view, decode) <= p.gate)


@jit
def helper(view: RouterView, p: Any, prefill: int) -> int:
    """Return an idle decode worker if the prefill worker would miss the target, else UNKNOWN."""
    seconds = view.problems[prefill].batch_prefill
    if p.target > 0 and seconds * (prefill_backlog(view, prefill) + missing_of(view, prefill)) > p.target:
        for k in range(view.workers.shape[0]):
            w = view.workers[k]
            if w.role == ROLE_DECODE and may_go(view, k) and w.outstanding_requests == 0:
                return int(k)
    return UNKNOWN


@router_kernel
def conditional_prefill_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the fewest requests; with free choice, a decode worker for prompts that meet a condition."""
    prefill, decode = fewest_of_role(view, ROLE_PREFILL), fewest_of_role(view, ROLE_DECODE)
    if prefill == UNKNOWN or decode == UNKNOWN or not may_choose(view):
        return fewest_requests(view)
    p = conditions_in(params)
    if view.first > 0:
        source = view.requests[view.request].worker
        stays = p.full < 1.0 and may_go(view, source) and not has_room(view, p.full)
        return int(source if stays else decode)
    if prefers_local(view, p, prefill, decode):
        return int(decode)
    idle = helper(view, p, prefill)
    return int(prefill if idle == UNKNOWN else prefill_only(idle))


@register_router
class ConditionalPrefill(CompiledRouter):
    """The worker with the fewest requests; short or mostly cached prompts are prefilled by the decode worker itself.

    It needs ``local_prefill`` of the system; without, or where workers serve whole requests, it is
    ``join_shortest_queue``. See the module for the rules of released routers.
    """

    info = RouterInfo(
        name="conditional_prefill",
        summary="the fewest requests; short or cached prompts are decode workers' alone, as in dynamo and llm-d",
    )
    kernel = conditional_prefill_kernel
    parameters = Conditions

    tokens: int = whole(2048, least=0)
    """new tokens under which a decode worker prefills; 0 = never for that reason."""
    share: float = hyperparameter(0.7, lambda x: 0 <= x <= 1, "a number from 0 to 1")
    """share of the prompt that these must also stay under; 1 = any."""
    short: int = whole(0, least=0)
    """prompts under this length are always prefilled by a decode worker."""
    queue: int = whole(0, least=0)
    """waiting requests of the prefill worker from which a decode worker prefills; 0 = any number may wait."""
    backlog: int = whole(0, least=0)
    """tokens that the prefill worker has yet to prefill above which a decode worker prefills; 0 = any number."""
    gate: float = hyperparameter(1.0, lambda x: 0 <= x <= 1, "a number from 0 to 1")
    """share of the decode worker's memory in use above which it does not prefill."""
    full: float = hyperparameter(1.0, lambda x: 0 <= x <= 1, "a number from 0 to 1")
    """share of memory in use on all decode workers above which a request stays where it was prefilled; 1 = never."""
    target: float = hyperparameter(0.0, lambda x: 0 <= x <= 1e6, "seconds, 0 to 1e6")
    """seconds of prefill at the prefill worker above which an idle decode worker prefills only; 0 = never."""
