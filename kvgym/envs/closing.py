"""How episodes and environments end: by the limit of steps of an id, and by being closed.

The memory of a closed environment is freed, and whoever asks for it is told so.
"""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


def step_limit(spec: EnvSpec | None) -> int | None:
    """Return the steps after which Gymnasium ends episodes of a registered id, None where it does not.

    An environment cannot see the wrapper that does it, nor another limit that ``gymnasium.make`` was given.
    """
    declared = gym.registry.get(spec.id) if spec is not None else None
    return None if declared is None else declared.max_episode_steps


def not_running(closed: bool) -> Exception:
    """Return the error about an environment that is to step without an episode."""
    if closed:
        return gym.error.ClosedEnvironmentError("the environment is closed; make a new one")
    return gym.error.ResetNeeded("the episode has ended or was never started; call reset() first")


class Closed:
    """Stands for what a closed environment has freed: any use is a ClosedEnvironmentError."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise not_running(True)

    __getattr__ = __getitem__ = __iter__ = __len__ = __call__ = _refuse
