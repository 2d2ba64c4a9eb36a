"""Routers as functions that act in the routing environment."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kvgym.envs.recordable import Act
from kvgym.errors import ConfigError, shown
from kvgym.policies.routing import Router, make_router
from kvgym.simulator.system import System
from kvgym.simulator.view import ClusterView
from kvgym.utils.seeding import stream_seed
from kvgym.utils.user_code import calling


class Routed(Protocol):
    """The attributes of :class:`~kvgym.envs.routing.environment.RoutingEnv` that a router needs."""

    system: System

    @property
    def is_over(self) -> bool:
        """Whether no request is left to route."""
        ...

    @property
    def view(self) -> ClusterView:
        """The cluster as a router observes it."""
        ...


def router_player(env: Routed, router: str | Router, *, seed: int = 0) -> Act:
    """Return a router as a function of observation and mask, which ignores both and reads the cluster.

    Args:
        env: the environment, unwrapped.
        router: a router or its name; it is reset, and serves for one episode.
        seed: seed of the router's random numbers.

    Raises:
        ConfigError: the router moves requests after routing, for which the environment has no action; or the function
            chose a worker that is not a candidate.
    """
    chosen = make_router(router)
    if chosen.reassigns:
        raise ConfigError(
            f"router {shown(chosen.info.name)} moves requests after they have been routed, for which the environment "
            "has no action; use it with kvgym compare --router"
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
