"""The vector environment of ``kvgym/Route-v0``: N clusters behind one ``step``."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.envs.clusters.vector_environment import ClusterVectorEnv
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.routing.state import RoutingState


class RoutingVectorEnv(ClusterVectorEnv):
    """N :class:`~kvgym.envs.routing.environment.RoutingEnv` of one configuration, bit-equal to N separate ones.

    The arguments are those of :class:`~kvgym.envs.scheduling.vector_environment.ServingVectorEnv`, with fields of
    :class:`~kvgym.envs.routing.config.RoutingConfig`; the information of every step also has ``request``.
    """

    saved = RoutingState
    single = RoutingEnv

    def _every_step(self) -> dict[str, Any]:
        return {
            **super()._every_step(),
            "request": np.array([env.request for env in self.episodes.envs], np.int64),
        }
