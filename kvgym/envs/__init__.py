"""The Gymnasium environments; importing :mod:`kvgym` registers them.

``scheduling`` decides what one worker does, ``routing`` which worker of a cluster serves a request, ``rendering``
draws both; ``registration`` has the ids, ``agents`` turns policies into agents and agents into policies.
May import :mod:`kvgym.report` and what is below it; may be imported from :mod:`kvgym.agents` and above.
"""

from __future__ import annotations

import gymnasium as gym

from kvgym.envs.registration import ACTIONS
from kvgym.envs.scheduling.actions.catalogue import BUILT_IN

SCHEDULING_IDS = {entry.id: name for name, entry in BUILT_IN.items()}
"""Ids of the library's environments that schedule one worker, and the kind of action behind each."""

ROUTING_IDS = {"kvgym/Route-v0": "route"}
"""Ids of the environments that route requests to the workers of a cluster."""

IDS = {**SCHEDULING_IDS, **ROUTING_IDS}
"""Registered ids and the kind of action behind each."""

ROUTING_STEPS = 25_000
"""Steps after which Gymnasium truncates an episode: a default one takes a step for each of its requests."""

ROUTE_SUMMARY = "which worker of a cluster serves a request, under a scheduler of the library (Discrete)"


def environment_names() -> dict[str, str]:
    """Return the ids of all environments, with a line each."""
    lines = {ACTIONS[name].id: ACTIONS[name].summary for name in ACTIONS}
    return lines | dict.fromkeys(ROUTING_IDS, ROUTE_SUMMARY)


def register_all() -> None:
    """Register every id once; those that schedule one worker are registered with their kinds of action."""
    for name in ROUTING_IDS:
        if name not in gym.registry:
            gym.register(
                name,
                entry_point="kvgym.envs.routing.environment:RoutingEnv",
                vector_entry_point="kvgym.envs.routing.vector_environment:RoutingVectorEnv",
                max_episode_steps=ROUTING_STEPS,
            )
