"""Copies of environments: the configuration, from which one is built, and the state of the episode, if there is one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class Rebuilt:
    """Mixin of an environment that is copied and pickled as its configuration and its state.

    A copy of a running environment is that environment: with the same actions it takes the same steps. Pictures begin
    with the copy.
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
        """Pickle the configuration, the generators and, once there has been a reset, the state."""
        try:
            state = self.get_state()
        except gym.error.ResetNeeded:
            state = None
        own = ("_np_random", "_np_random_seed", "spec", "action_space", "observation_space")
        return {
            "arguments": self.config.model_dump(),
            "render_mode": self.render_mode,
            "compiled": self._compiled,
            "own": {name: getattr(self, name) for name in own},
            "state": state,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the environment."""
        self.__init__(  # type: ignore[misc]
            render_mode=state["render_mode"], compiled=state["compiled"], **state["arguments"]
        )
        for name, value in state["own"].items():
            setattr(self, name, value)
        if state["state"] is not None:
            self.set_state(state["state"])
