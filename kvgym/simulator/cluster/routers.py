"""The interface of routers that a cluster needs, and messages about answers that it cannot carry out."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Protocol

from kvgym.compiling.kernel import Kernel
from kvgym.errors import InvalidDecisionError, shown, some
from kvgym.simulator.cluster.router_view import PREFILL_ONLY, REJECT
from kvgym.simulator.decision import STATUS_NAMES
from kvgym.simulator.tables import ACTIVE, OPEN, UNKNOWN, WAITING
from kvgym.simulator.view import ClusterView
from kvgym.utils.user_code import calling


class RouterLike(Protocol):
    """The interface of routers that a cluster needs; :class:`kvgym.policies.routing.Router` has it."""

    @property
    def info(self) -> Any:
        """Name and description of the router."""
        ...

    def route(self, view: ClusterView) -> int:
        """Return the worker for ``view.request_id``."""
        ...

    @property
    def reassigns(self) -> bool:
        """Whether :meth:`reassign` is called at boundaries."""
        ...

    @property
    def sheds(self) -> bool:
        """Whether :meth:`route` may return REJECT."""
        ...

    @property
    def exact(self) -> bool:
        """Whether it needs an exact view of the workers, and to be the only router."""
        ...

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Return a request and the worker it moves to, None if none is left to move."""
        ...

    def compiled_rule(self, num_workers: int) -> tuple[Kernel, Kernel | None, tuple[Any, Any]] | None:
        """Return both kernels, parameters and state of a router that runs in the compiled core; else None."""
        ...


def named(workers: Sequence[int]) -> str:
    """Return workers for a message."""
    if isinstance(workers, range):
        return f"{workers.start} … {workers.stop - 1}"
    return some(workers)


def refused_route(simulation: Any, router: RouterLike | None, request: int, answer: int) -> str:
    """Return why a router's answer for a request is not allowed."""
    only = PREFILL_ONLY <= answer < 2 * PREFILL_ONLY
    name, worker = "?" if router is None else router.info.name, answer - PREFILL_ONLY if only else answer
    valid = named(simulation.cluster_view.allowed)
    if answer == REJECT:
        return f"router {shown(name)} refuses request {request}; it must declare sheds, and the request be a new one"
    text = f"router {shown(name)} sends request {request} to worker {worker}; valid: {valid}"
    if not only:
        return text
    if not simulation.system.local_prefill:
        return f"{text}; prefill_only needs local_prefill of the system"
    return f"{text}, and not prefill_only, as it has been prefilled"


def refused_move(simulation: Any, router: RouterLike, request: int, worker: int) -> str:
    """Return why a move is not allowed."""
    requests, roles = simulation.requests, simulation.workers["role"]
    text = f"router {shown(router.info.name)} moves request {shown(request)} to worker {shown(worker)}"
    if not 0 <= worker < len(roles):
        return f"{text}; valid: 0 … {len(roles) - 1}"
    if not 0 <= request < len(requests):
        return f"{text}; requests are 0 … {len(requests) - 1}"
    source = int(requests["worker"][request])
    if requests["status"][request] not in (WAITING, ACTIVE):
        return f"{text}, but it is {STATUS_NAMES[int(requests['status'][request])]}"
    if source == worker:
        return f"{text}, where it is already"
    if len(simulation.open_places) and simulation.open_places[worker] != OPEN:
        return f"{text}, which takes no requests now"
    if roles[source] != roles[worker]:
        return f"{text}, which does other work than worker {source}"
    return f"{text}, but worker {source} has a batch running with it"


def move_of(simulation: Any, router: RouterLike, view: ClusterView) -> int:
    """Call a router for the worker at a boundary; return a move as compiled routers do.

    Raises:
        InvalidDecisionError: it does not return a request and a worker, or None.
    """
    count = len(simulation.workers)
    with calling(router, "router", "reassign"):
        chosen = router.reassign(view)
    if chosen is None:
        return UNKNOWN
    try:
        request, worker = map(operator.index, chosen)
    except Exception:  # user code may raise any exception
        raise InvalidDecisionError(
            f"router {shown(router.info.name)} reassigns {shown(chosen)}; expected a request and a worker, or None"
        ) from None
    if not (0 <= worker < count and 0 <= request < len(simulation.requests)):
        raise InvalidDecisionError(refused_move(simulation, router, request, worker))
    return request * count + worker
