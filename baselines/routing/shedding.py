"""A router that refuses requests when all queues are long.

From practice: Ray Serve rejects a request when as many as ``max_queued_requests`` of a deployment wait for a replica,
by default never (`serve/_private/router.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvgym.baselines.routing.routers import fewest_requests
from kvgym.kernels import REJECT, RouterView, may_go, named_numbers
from kvgym.policies.hyperparameters import whole
from kvgym.policies.routing import CompiledRouter, RouterInfo, register_router, router_kernel


class Limit(NamedTuple):
    """Parameters of ``shedding``: waiting requests at which a worker takes no more."""

    queue: int


limit_in = named_numbers(Limit)


@router_kernel
def shedding_kernel(view: RouterView, params: Any, state: Any) -> int:
    """Take the worker with the fewest unfinished requests, unless the queues of all are full."""
    full = view.requests[view.request].num_kv_tokens == 0  # else it has been prefilled
    for k in range(view.first, view.last):
        full = full and not (may_go(view, k) and view.workers[k].num_waiting < limit_in(params).queue)
    return REJECT if full else int(fewest_requests(view))


@register_router
class Shedding(CompiledRouter):
    """The worker with the fewest requests; when as many as ``queue`` wait at every worker, a request is refused."""

    info = RouterInfo(
        name="shedding",
        summary="the fewest unfinished requests; refuses a request when all queues are as long as queue",
    )
    kernel = shedding_kernel
    parameters = Limit
    sheds = True
    queue: int = whole(128, search=(8, 32, 128, 512))
    """waiting requests at every worker from which a request is refused."""
