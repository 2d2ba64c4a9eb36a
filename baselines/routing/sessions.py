"""A router that keeps the requests of a session together.

From practice: routers of serving systems send all requests with one session key to one worker, as the policy
``manual`` of SMG (the router of SGLang, docs/getting-started/load-balancing.md) and the session-affinity scorer of
llm-d do. It needs no knowledge of prefix caches, and ignores the load once a session has a worker.
"""

from __future__ import annotations

from typing import Any

from kvgym.baselines.routing.routers import fewest_requests
from kvgym.kernels import RouterView, may_go
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


@router_kernel
def session_affinity_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker of the session's previous request, else the one with the fewest unfinished requests."""
    if view.previous >= view.first and view.previous < view.last and may_go(view, view.previous):
        return int(view.previous)
    return fewest_requests(view)


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
