"""Copying and pickling of environments as their configuration and the state of their episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from kvgym.errors import ConfigError, shown
from kvgym.utils.checks import check_parts

_OWN = ("_np_random", "_np_random_seed", "spec", "action_space", "observation_space")
_PARTS = {"arguments": dict, "render_mode": object, "compiled": bool, "own": dict, "state": object}

_KINDS: dict[str, Any] = {
    "_np_random": (np.random.Generator, type(None)),
    "_np_random_seed": (int, type(None)),
    "_generators": list,
    "spec": (EnvSpec, type(None)),
    "action_space": gym.Space,
    "observation_space": gym.Space,
}


def take_own(env: Any, own: Any, names: Sequence[str]) -> None:
    """Restore the attributes of a rebuilt environment that its constructor does not set.

    Args:
        env: the environment.
        own: the attributes by name.
        names: the required names.

    Raises:
        ConfigError: the names or the types are wrong.
    """
    check_parts(own, {name: _KINDS[name] for name in names}, "the saved environment")
    generators = own.get("_generators", [])
    if len(generators) not in (0, getattr(env, "num_envs", 0)) or not all(
        isinstance(generator, np.random.Generator) for generator in generators
    ):
        raise ConfigError(f"the saved environment is damaged: _generators = {shown(generators)}")
    for name, value in own.items():
        if isinstance(value, gym.Space) and value != getattr(env, name):
            raise ConfigError(f"the saved environment is damaged: {name} = {shown(value)}")
        setattr(env, name, value)


class Rebuilt:
    """Mixin of an environment that is copied and pickled as its configuration and its state.

    A copy of a running environment takes the same steps with the same actions. Its recording starts with the copy.
    """

    config: Any
    render_mode: Any
    spec: Any
    action_space: Any
    observation_space: Any
    _compiled: bool
    _np_random: Any
    _np_random_seed: Any
    get_state: Any
    set_state: Any

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration, the generators and, after a reset, the state."""
        try:
            state = self.get_state()
        except gym.error.ResetNeeded:
            state = None
        return {
            "arguments": self.config.model_dump(),
            "render_mode": self.render_mode,
            "compiled": self._compiled,
            "own": {name: getattr(self, name) for name in _OWN},
            "state": state,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the environment.

        Raises:
            ConfigError: the pickled state is damaged.
        """
        check_parts(state, _PARTS, "the saved environment")
        self.__init__(  # type: ignore[misc]
            render_mode=state["render_mode"], compiled=state["compiled"], **state["arguments"]
        )
        take_own(self, state["own"], _OWN)
        if state["state"] is not None:
            self.set_state(state["state"])
