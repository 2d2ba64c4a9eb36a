"""The router contract: which worker of a cluster serves a request.

A router is asked when a request arrives and, with prefill and decode workers apart, again when its prefill has
ended. Like a policy it is plain Python (:class:`Router`) or a compiled kernel (:class:`CompiledRouter`). It sees the
cluster as it is at that moment: what runs has not finished yet.

One that ``reassigns`` is asked again whenever a batch or a wait of a worker has ended, before anybody decides, and may
*move* requests between workers of one role, one after the other: any that wait, and active ones of a worker that has no
batch running. What has no KV is at the end of the other queue at once. KV is transferred first, which takes
``System.transfer_latency`` and ``System.transfer_time`` for each token, during which the request is in no queue; it
comes back when the other worker's policy admits the request. The policy that loses a request is told
(:attr:`~kvgym.simulator.view.SystemView.left`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.checked_build import guarded
from kvgym.compiling.kernel import Kernel, kernel, uncompiled
from kvgym.errors import ConfigError, shown
from kvgym.policy import Weight
from kvgym.simulator.cluster.tables import REASSIGN_SIGNATURE, ROUTER_SIGNATURE
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.view import ClusterView
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_name
from kvgym.utils.factory import Configurable, Factory

__all__ = [
    "DEFAULT_ROUTER",
    "ROUTERS",
    "CompiledRouter",
    "Router",
    "RouterInfo",
    "make_router",
    "register_router",
    "register_router_source",
    "router_kernel",
]


@dataclass(frozen=True)
class RouterInfo:
    """What a router is.

    Attributes:
        name: registry id, snake_case.
        summary: one line for listings.
        paper: authors and title, or "" where it comes from practice.
    """

    name: str
    summary: str
    paper: str = ""

    def __post_init__(self) -> None:
        """Check the name.

        Raises:
            ConfigError: it is no text.
        """
        check_name(self.name, "router")


class Router(Configurable, ABC):
    """Chooses workers for requests. Hyperparameters are keyword-only constructor arguments.

    Attributes:
        info: what it is.
        reassigns: whether it is asked at boundaries which requests to move.
        label: what results call it; "" = its name and the hyperparameters that were given.
    """

    info: ClassVar[RouterInfo]
    reassigns: bool = False
    label: str = ""
    _kind = "router"

    @classmethod
    def weights(cls, **fixed: Any) -> tuple[Weight, ...]:
        """Return the real hyperparameters that can be learned, none unless a router says so.

        Args:
            **fixed: the other hyperparameters, which may decide sizes.
        """
        return ()

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        """Forget everything and prepare for a run. Randomness may come from ``seed`` only."""
        return None

    @abstractmethod
    def route(self, view: ClusterView) -> int:
        """Return the worker for request ``view.request_id``, one of ``view.candidates``."""

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Return a request and the worker it moves to, None if no more is to move.

        Asked if :attr:`reassigns`, about worker ``view.boundary``, and again after every move.
        """
        return None

    def compiled_rule(self, num_workers: int) -> tuple[Kernel, Kernel | None, tuple[Any, Any]] | None:
        """Return what runs inside the compiled core: both kernels, and parameters and state; else None.

        The second kernel is that of a router which reassigns, else None.

        Args:
            num_workers: workers of the cluster that is to run it.
        """
        return None


class CompiledRouter(Router):
    """A router whose rule is a compiled kernel, see :data:`~kvgym.simulator.cluster.tables.ROUTER_SIGNATURE`.

    One that reassigns has a second, see :data:`~kvgym.simulator.cluster.tables.REASSIGN_SIGNATURE`.
    """

    kernel: ClassVar[Kernel]
    second_kernel: ClassVar[Kernel | None] = None

    def params(self) -> NDArray[np.float64]:
        """Return the hyperparameters the kernel reads, float64 (k,)."""
        return np.zeros(1)

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
            ConfigError: it was not reset for a cluster of this size; compiled code would read beyond its state.
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
        """Choose through the uncompiled kernel, as from plain Python."""
        tables = view.simulation.python_tables()
        first, last = view.candidates.start, view.candidates.stop
        return int(
            uncompiled(self.kernel)(
                tables["problem"], tables["workers"], tables["requests"], view.request_id, first, last,
                *self.arguments(),
            )
        )  # fmt: skip

    def reassign(self, view: ClusterView) -> tuple[int, int] | None:
        """Choose through the uncompiled second kernel, as from plain Python."""
        if self.second_kernel is None:
            return None
        tables = view.simulation.python_tables()
        move = int(
            uncompiled(self.second_kernel)(
                tables["problem"], tables["workers"], tables["requests"], tables["active"], view.boundary,
                *self.arguments(),
            )
        )  # fmt: skip
        count = len(view.simulation.workers)
        return None if move == UNKNOWN else (move // count, move % count)


@explained
def router_kernel(function: Callable[..., int]) -> Kernel:
    """Make a router kernel of a function with the arguments of ``ROUTER_SIGNATURE``."""
    return kernel(ROUTER_SIGNATURE, "router")(function)


def reassign_kernel(function: Callable[..., int]) -> Kernel:
    """Make a router's second kernel of a function with the arguments of ``REASSIGN_SIGNATURE``."""
    return kernel(REASSIGN_SIGNATURE)(function)


_FACTORY: Factory[Router] = Factory(
    Router,
    RouterInfo,
    "a name, with hyperparameters as in 'weighted:work=1.5', or a Router",
    partial(import_module, "kvgym.baselines"),
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
    """Register what else :func:`make_router` understands than registered names; usable as a decorator.

    Args:
        source: makes the router that a text names, or returns None.
        names: the names that it knows, which messages then list with the registered ones; None = it has none.
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
