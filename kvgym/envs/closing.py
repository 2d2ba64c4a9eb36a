"""The end of episodes and environments: the step limit of an id, and closing.

Closing frees the memory of an environment; later access raises ClosedEnvironmentError.
"""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


def step_limit(spec: EnvSpec | None) -> int | None:
    """Return the steps after which Gymnasium ends episodes of a registered id, None for no limit.

    An environment does not have access to the wrapper that ends them, nor to a custom limit in ``gymnasium.make``.
    """
    declared = gym.registry.get(spec.id) if spec is not None else None
    return None if declared is None else declared.max_episode_steps


def not_running(closed: bool) -> Exception:
    """Return the error for a step without an episode."""
    if closed:
        return gym.error.ClosedEnvironmentError("the environment is closed; make a new one")
    return gym.error.ResetNeeded("the episode has ended or was never started; call reset() first")


class Closed:
    """Placeholder for the freed parts of a closed environment: any use raises ClosedEnvironmentError."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise not_running(True)

    __getattr__ = __getitem__ = __iter__ = __len__ = __call__ = _refuse
