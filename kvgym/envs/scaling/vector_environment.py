"""The vector environment of ``kvgym/Scale-v0``: N fleets behind one ``step``."""

from __future__ import annotations

from kvgym.envs.clusters.vector_environment import ClusterVectorEnv
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scaling.state import ScalingState


class ScalingVectorEnv(ClusterVectorEnv):
    """N :class:`~kvgym.envs.scaling.environment.ScalingEnv` of one configuration, bit-equal to N separate ones.

    The arguments are those of :class:`~kvgym.envs.scheduling.vector_environment.ServingVectorEnv`, with fields of
    :class:`~kvgym.envs.scaling.config.ScalingConfig`.
    """

    saved = ScalingState
    single = ScalingEnv
