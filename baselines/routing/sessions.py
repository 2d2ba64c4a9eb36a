"""A router that keeps the requests of a session together.

From practice: routers of serving systems send all requests with one session key to one worker, as the policy
``manual`` of SMG (the router of SGLang, docs/getting-started/load-balancing.md) and the session-affinity scorer of
llm-d do. It needs no knowledge of prefix caches, and ignores the load once a session has a worker.
"""

from __future__ import annotations

from typing import Any

from kvgym.kernels import RouterView
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


@router_kernel
def session_affinity_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker of the session's previous request, else the one with the fewest unfinished requests."""
    if view.previous >= view.first and view.previous < view.last:
        return int(view.previous)
    workers, best = view.workers, view.first
    for k in range(view.first + 1, view.last):
        if workers[k].outstanding_requests < workers[best].outstanding_requests:
            best = k
    return int(best)


@register_router
class SessionAffinity(CompiledRouter):
    """The worker of the session's previous request; for the first one, the fewest unfinished requests.

    Without sessions it is ``join_shortest_queue``.
    """

    info = RouterInfo(
        name="session_affinity",
        summary="the worker of the session's previous request, at first the fewest unfinished requests",
    )
    kernel = session_affinity_kernel
