"""The Gymnasium environments; importing :mod:`kvgym` registers them.

In ``scheduling`` an agent schedules one worker, in ``routing`` it assigns requests to the workers of a cluster, in
``scaling`` it says how many workers a fleet has; ``clusters`` has what the last two share, and ``rendering`` draws all.
``registration`` has the ids, and ``agents`` runs policies in environments and agents as policies. May import
:mod:`kvgym.report` and below; may be imported from :mod:`kvgym.agents` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium as gym

from kvgym.envs.registration import ACTIONS
from kvgym.envs.scheduling.actions.catalogue import BUILT_IN
from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.envs.agents import AgentPolicy, play
    from kvgym.envs.component_checks import check_component
    from kvgym.envs.demonstrations.expressible import inexpressible_policies
    from kvgym.envs.demonstrations.record import Demonstrations, demonstrate
    from kvgym.envs.registration import register_action, register_observation, register_reward
    from kvgym.envs.routing.agents import AgentRouter, play_router
    from kvgym.envs.routing.config import RoutingConfig
    from kvgym.envs.routing.environment import RoutingEnv
    from kvgym.envs.scaling.agents import AgentAutoscaler, play_autoscaler
    from kvgym.envs.scaling.config import ScalingConfig
    from kvgym.envs.scaling.environment import ScalingEnv
    from kvgym.envs.scheduling.actions.composing import (
        add_admission,
        add_eviction,
        can_admit,
        evict_overflow,
        number_fitting,
        room_left,
        settle,
    )
    from kvgym.envs.scheduling.actions.kind import (
        COMPLETE,
        MORE,
        ActionKind,
        apply_kernel,
        boundary_kernel,
        encode_kernel,
        features_kernel,
        mask_kernel,
    )
    from kvgym.envs.scheduling.components import (
        ObservationPart,
        RewardTerm,
        observation_kernel,
        reward_kernel,
    )
    from kvgym.envs.scheduling.config import EnvConfig
    from kvgym.envs.scheduling.environment import ServingEnv
    from kvgym.envs.scheduling.opening import open_environment, open_rule
    from kvgym.envs.scheduling.spaces import feature_names
    from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "agents": "AgentPolicy play",
            "component_checks": "check_component",
            "demonstrations.record": "Demonstrations demonstrate",
            "demonstrations.expressible": "inexpressible_policies",
            "registration": "register_action register_observation register_reward",
            "routing.agents": "AgentRouter play_router",
            "routing.config": "RoutingConfig",
            "routing.environment": "RoutingEnv",
            "scaling.agents": "AgentAutoscaler play_autoscaler",
            "scaling.config": "ScalingConfig",
            "scaling.environment": "ScalingEnv",
            "scheduling.actions.composing": (
                "add_admission add_eviction can_admit evict_overflow number_fitting room_left settle"
            ),
            "scheduling.actions.kind": (
                "ActionKind COMPLETE MORE apply_kernel boundary_kernel "
                "encode_kernel features_kernel mask_kernel"
            ),
            "scheduling.components": "ObservationPart RewardTerm observation_kernel reward_kernel",
            "scheduling.config": "EnvConfig",
            "scheduling.environment": "ServingEnv",
            "scheduling.opening": "open_environment open_rule",
            "scheduling.spaces": "feature_names",
            "scheduling.vector_environment": "ServingVectorEnv",
        },
    )

__all__ = [
    "COMPLETE",
    "IDS",
    "MORE",
    "ROUTING_ID",
    "SCALING_ID",
    "SCHEDULING_IDS",
    "ActionKind",
    "AgentAutoscaler",
    "AgentPolicy",
    "AgentRouter",
    "Demonstrations",
    "EnvConfig",
    "ObservationPart",
    "RewardTerm",
    "RoutingConfig",
    "RoutingEnv",
    "ScalingConfig",
    "ScalingEnv",
    "ServingEnv",
    "ServingVectorEnv",
    "add_admission",
    "add_eviction",
    "apply_kernel",
    "boundary_kernel",
    "can_admit",
    "check_component",
    "demonstrate",
    "encode_kernel",
    "environment_names",
    "evict_overflow",
    "feature_names",
    "features_kernel",
    "inexpressible_policies",
    "mask_kernel",
    "number_fitting",
    "observation_kernel",
    "open_environment",
    "open_rule",
    "play",
    "play_autoscaler",
    "play_router",
    "register_action",
    "register_observation",
    "register_reward",
    "reward_kernel",
    "room_left",
    "settle",
]

SCHEDULING_IDS = {entry.id: name for name, entry in BUILT_IN.items()}
"""Ids of the built-in environments that schedule one worker, and their kinds of action."""

ROUTING_ID = "kvgym/Route-v0"
"""Id of the environment that routes requests to the workers of a cluster."""

SCALING_ID = "kvgym/Scale-v0"
"""Id of the environment that scales a fleet."""

CLUSTER_IDS = {
    ROUTING_ID: "the worker of a cluster that serves a request; a built-in scheduler runs on each (Discrete)",
    SCALING_ID: "how many workers each pool of a fleet has, at every control interval (MultiDiscrete)",
}
"""Ids of the built-in environments of clusters, and their summaries."""

IDS = {**SCHEDULING_IDS, ROUTING_ID: "route", SCALING_ID: "scale"}
"""Ids of all built-in environments, and their kinds of action."""

_CLUSTERS = {
    ROUTING_ID: ("routing", "Routing", 25_000),
    SCALING_ID: ("scaling", "Scaling", 10_000),
}
"""Folder, class names, and the steps after which Gymnasium truncates an episode.

A default one has a step for each of 1,000 requests, or for every 30 s of an hour.
"""


def environment_names() -> dict[str, str]:
    """Return the ids of all environments and their summaries."""
    return {ACTIONS[name].id: ACTIONS[name].summary for name in ACTIONS} | CLUSTER_IDS


def register_all() -> None:
    """Register the ids of clusters, once; ``registration`` registers the scheduling ids when it is imported."""
    for name, (folder, prefix, steps) in _CLUSTERS.items():
        if name not in gym.registry:
            gym.register(
                name,
                entry_point=f"kvgym.envs.{folder}.environment:{prefix}Env",
                vector_entry_point=f"kvgym.envs.{folder}.vector_environment:{prefix}VectorEnv",
                max_episode_steps=steps,
            )
