"""The interface of routers, which choose the worker of a cluster that serves a request.

A router is called when a request arrives and, with separate prefill and decode workers, again when its prefill has
ended. Like a policy it is plain Python (:class:`Router`) or a compiled kernel (:class:`CompiledRouter`). It observes
the cluster at that moment: running batches have not finished yet.

A router that ``reassigns`` is also called whenever a batch or a wait of a worker has ended, before any worker decides.
It may *move* requests between workers of one role, one at a time: waiting ones, and active ones of a worker with no
batch running. A request without KV joins the end of the other queue at once. KV is transferred first, which takes
``System.transfer_latency`` and ``System.transfer_time`` for each token; meanwhile the request is in no queue. The KV is
restored when the other worker's policy admits the request. The policy that loses a request finds it in
:attr:`~kvgym.simulator.view.SystemView.left`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.compiling.kernel import Kernel, kernel, uncompiled
from kvgym.compiling.named import row_of
from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import Declaring, dataclass_transform
from kvgym.simulator.cluster.router_view import REJECT as REJECT
from kvgym.simulator.cluster.router_view import ROUTER_SIGNATURE, RouterView
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.view import ClusterView, simulation_of
from kvgym.utils.arguments import explained
from kvgym.utils.factory import EntryInfo, Factory
from kvgym.utils.registry import import_package

__all__ = [
    "DEFAULT_ROUTER",
    "REJECT",
    "ROUTERS",
    "CompiledRouter",
    "Router",
    "RouterInfo",
    "make_router",
    "register_router",
    "register_router_source",
    "router_kernel",
]


class RouterInfo(EntryInfo):
    """Description of a router."""

    what = "router"


@dataclass_transform(kw_only_default=True)
class Router(Declaring, ABC):
    """Chooses workers for requests. Hyperparameters are declared as those of policies.

    Attributes:
        info: its description.
        reassigns: whether :meth:`reassign` is called at boundaries.
        sheds: whether it may answer REJECT, which refuses a request that has just arrived.
        exact: whether it needs an exact view of the workers, and to be the only router, see
            :class:`~kvgym.simulator.knowledge.Knowledge`; a router that reassigns always does.
        label: its name in results; "" = its name and the hyperparameters that were given.
    """

    info: ClassVar[RouterInfo]
    reassigns: bool = False
    sheds: bool = False
    exact: bool = False
    label: str = ""
    _kind = "router"

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Reset all state and prepare for a run. Randomness may come from ``seed`` only."""
        return None

    @abstractmethod
    def route(self, view: ClusterView) -> int:
        """Return the worker for request ``view.request_id``, one of ``view.candidates``, or REJECT if it sheds."""

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Return a request and the worker it moves to, None if none is left to move.

        Called if :attr:`reassigns`, for worker ``view.boundary``, and again after every move.
        """
        return None

    def compiled_rule(self, num_workers: int) -> tuple[Kernel, Kernel | None, tuple[Any, Any]] | None:
        """Return both kernels, parameters and state of a router that runs in the compiled core; else None.

        The second kernel belongs to a router that reassigns, else None.

        Args:
            num_workers: number of workers of the cluster.
        """
        return None


class CompiledRouter(Router):
    """A router with a compiled kernel; one that reassigns has a second.

    See :data:`~kvgym.simulator.cluster.router_view.ROUTER_SIGNATURE` for what they return. ``parameters`` is the named
    tuple of the hyperparameters that the kernel reads, see :func:`kvgym.kernels.named_numbers`; None: it reads none.
    """

    kernel: ClassVar[Kernel]
    second_kernel: ClassVar[Kernel | None] = None
    parameters: ClassVar[type[Any] | None] = None

    def params(self) -> NDArray[np.float64]:
        """Return the hyperparameters that the kernel reads, float64 (k,)."""
        return np.zeros(1) if self.parameters is None else row_of(self.parameters, self, {})

    def memory(self, num_workers: int, seed: np.random.SeedSequence) -> NDArray[np.int64]:
        """Return fresh memory for a run, int64 (k,)."""
        return np.zeros(1, np.int64)

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Prepare parameters and memory for a run."""
        self._num_workers = num_workers
        self._params = guarded(np.ascontiguousarray(self.params(), dtype=np.float64))
        self._state = guarded(np.ascontiguousarray(self.memory(num_workers, seed), dtype=np.int64))

    def arguments(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return ``(params, state)`` of the run prepared by :meth:`reset`."""
        return self._params, self._state

    def compiled_rule(self, num_workers: int) -> tuple[Kernel, Kernel | None, tuple[Any, Any]] | None:
        """Return the kernels and their arguments, unless a subclass routes or reassigns in Python.

        Raises:
            ConfigError: it was not reset for a cluster of this size; compiled code would read out of bounds.
        """
        cls = type(self)
        if cls.route is not CompiledRouter.route or cls.reassign is not CompiledRouter.reassign:
            return None
        if getattr(self, "_num_workers", None) != num_workers:
            raise ConfigError(
                f"router {shown(self.info.name)} has not been reset for {num_workers} workers; call reset first"
            )
        return self.kernel, self.second_kernel, self.arguments()

    def route(self, view: ClusterView) -> int:
        """Choose by the kernel, run as plain Python."""
        return int(uncompiled(self.kernel)(simulation_of(view).router_view(view), *self.arguments()))

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Choose by the second kernel, run as plain Python."""
        if self.second_kernel is None:
            return None
        simulation = simulation_of(view)
        move = int(uncompiled(self.second_kernel)(simulation.router_view(view), *self.arguments()))
        count = len(simulation.workers)
        return None if move == UNKNOWN else (move // count, move % count)


@explained
def router_kernel(function: Callable[[RouterView, Any, Any], int]) -> Kernel:
    """Return a kernel of a router from a function ``(view, params, state)``."""
    return kernel(ROUTER_SIGNATURE, "router")(function)


_FACTORY: Factory[Router] = Factory(
    Router,
    RouterInfo,
    "a name, with hyperparameters as in 'weighted:work=1.5', or a Router",
    partial(import_package, "kvgym.baselines"),
)

ROUTERS = _FACTORY.registry
"""All routers by name."""

DEFAULT_ROUTER = "round_robin"

R = TypeVar("R", bound=type[Router])


@explained
def register_router(cls: R) -> R:
    """Class decorator: register a router under ``cls.info.name``."""
    return _FACTORY.register(cls)


RouterSource = Callable[[str], Router | None]
"""Makes the router that a text names; returns None for a text of another form."""


def register_router_source(
    source: RouterSource, names: Callable[[], Iterable[str]] | None = None
) -> RouterSource:
    """Register a source of routers for :func:`make_router` in addition to registered names; usable as a decorator.

    Args:
        source: makes the router that a text names, or returns None.
        names: returns the names it knows, which messages list with the registered ones; None = none.
    """
    return _FACTORY.sources.add(source, names)


@explained
def make_router(spec: str | Router, **hyperparameters: Any) -> Router:
    """Return a router by name.

    Args:
        spec: a registered name, optionally with hyperparameters as in ``"name:key=value"``; or a learned router,
            see :func:`kvgym.agents.load_router`, unless a registered router has its name; a router instance is
            returned as it is.
        **hyperparameters: override those in ``spec``.

    Raises:
        UnknownNameError: no router of that name.
        ConfigError: an unknown hyperparameter or a value out of range.
    """
    return _FACTORY.make(spec, hyperparameters)
