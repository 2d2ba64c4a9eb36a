"""The Gymnasium environments; importing :mod:`kvgym` registers them."""

from __future__ import annotations

import gymnasium as gym

SCHEDULING_IDS = {
    "kvgym/AdmitEvict-v0": "admit_evict",
    "kvgym/AdmitCount-v0": "admit_count",
    "kvgym/Flags-v0": "flags",
    "kvgym/Knobs-v0": "knobs",
}
"""Ids of the environments that schedule one worker, and the kind of action behind each."""

ROUTING_IDS = {"kvgym/Route-v0": "route"}
"""Ids of the environments that route requests to the workers of a cluster."""

IDS = {**SCHEDULING_IDS, **ROUTING_IDS}
"""Registered ids and the kind of action behind each."""


SUMMARIES = {
    "admit_evict": "admit one queued request, evict one active request, or run the batch (Discrete)",
    "admit_count": "how many requests to admit from the front of the queue window (Discrete)",
    "flags": "admit and evict flags for the queue and active windows (MultiBinary)",
    "knobs": "protection margin, admission cap, token budget, quantum of a rule (MultiDiscrete)",
    "route": "which worker of a cluster serves a request, under a scheduler of the library (Discrete)",
}
"""One line per kind of action."""


def register_all() -> None:
    """Register every id once."""
    for name, action in SCHEDULING_IDS.items():
        if name not in gym.registry:
            gym.register(
                name,
                entry_point="kvgym.envs.scheduling.environment:ServingEnv",
                vector_entry_point="kvgym.envs.scheduling.vector_environment:ServingVectorEnv",
                kwargs={"action": action},
            )
    for name in ROUTING_IDS:
        if name not in gym.registry:
            gym.register(name, entry_point="kvgym.envs.routing.environment:RoutingEnv")
