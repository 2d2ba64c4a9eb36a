"""Routers as functions that act in the routing environment."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kvgym.envs.recordable import Act
from kvgym.errors import ConfigError, shown
from kvgym.routing import Router, make_router
from kvgym.simulator.system import System
from kvgym.simulator.view import ClusterView
from kvgym.utils.seeding import stream_seed
from kvgym.utils.user_code import calling


class Routed(Protocol):
    """What a router needs of the environment, :class:`~kvgym.envs.routing.environment.RoutingEnv`."""

    system: System

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to route."""
        ...

    @property
    def view(self) -> ClusterView:
        """What a router sees of the present moment."""
        ...


def router_player(env: Routed, router: str | Router, *, seed: int = 0) -> Act:
    """Return a router as a function of observation and mask, which it does not read: it sees the cluster itself.

    Args:
        env: the environment to play in, unwrapped.
        router: a router or its name; it is reset, and serves for one episode.
        seed: of the router's random numbers.

    Raises:
        ConfigError: the router moves requests later on, for which the environment has no action; or, when called,
            it chose a worker the request may not go to.
    """
    chosen = make_router(router)
    if chosen.reassigns:
        raise ConfigError(
            f"router {shown(chosen.info.name)} moves requests after they have been routed, which the environment "
            "cannot; use it with kvgym compare --router"
        )
    with calling(chosen, "router", "reset"):
        chosen.reset(len(env.system.all_workers), stream_seed(seed, "routing"))

    def act(observation: Any, mask: Any) -> int:
        if env.is_over:
            return 0
        with calling(chosen, "router", "route"):
            worker = chosen.route(env.view)
        if not isinstance(worker, int | np.integer) or worker not in env.view.candidates:
            raise ConfigError(
                f"router {shown(chosen.info.name)} chose worker {shown(worker)}, which is not a candidate"
            )
        return int(worker)

    return act
