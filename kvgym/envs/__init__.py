"""The Gymnasium environments; importing :mod:`kvgym` registers them."""

from __future__ import annotations

import gymnasium as gym

IDS = {
    "kvgym/AdmitEvict-v0": "admit_evict",
    "kvgym/AdmitCount-v0": "admit_count",
    "kvgym/Flags-v0": "flags",
    "kvgym/Knobs-v0": "knobs",
}
"""Registered ids and the kind of action behind each."""


SUMMARIES = {
    "admit_evict": "admit one queued request, evict one active request, or run the batch (Discrete)",
    "admit_count": "how many requests to admit from the front of the queue window (Discrete)",
    "flags": "admit and evict flags for the queue and active windows (MultiBinary)",
    "knobs": "protection margin, admission cap, token budget of a first-come rule (MultiDiscrete)",
}
"""One line per kind of action."""


def register_all() -> None:
    """Register every id once."""
    for name, action in IDS.items():
        if name not in gym.registry:
            gym.register(
                name,
                entry_point="kvgym.envs.serving_env:ServingEnv",
                vector_entry_point="kvgym.envs.vector_env:ServingVectorEnv",
                kwargs={"action": action},
            )
