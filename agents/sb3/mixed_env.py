"""Vector environment of several configurations, to train one agent on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.agents.sb3.vec_env import SB3VecEnv, VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn
from kvgym.errors import ConfigError


class MixedVecEnv(VecEnv):
    """Several vector environments as one, in order.

    Args:
        parts: vector environments with equal spaces and flat observations.

    Raises:
        ConfigError: no parts, or parts of different spaces.
    """

    def __init__(self, parts: Sequence[SB3VecEnv]) -> None:
        if not parts:
            raise ConfigError("MixedVecEnv needs at least one vector environment")
        first = parts[0]
        for part in parts:
            if not isinstance(part.observation_space, gym.spaces.Box):
                raise ConfigError('MixedVecEnv needs observation = "flat"')
            if (part.observation_space.shape, part.action_space) != (
                first.observation_space.shape,
                first.action_space,
            ):
                raise ConfigError(
                    "MixedVecEnv needs equal spaces: give them the same windows, action and "
                    f"observation, got observations {first.observation_space.shape} and "
                    f"{part.observation_space.shape}, actions "
                    f"{first.action_space} and {part.action_space}"
                )
        self.parts = tuple(parts)
        self._starts = np.cumsum([0] + [part.num_envs for part in parts])
        super().__init__(int(self._starts[-1]), first.observation_space, first.action_space)

    def reset(self) -> VecEnvObs:
        """Start an episode in every environment, with the seeds of :meth:`seed` if it was called, else the parts'."""
        for part, a, b in self._slices():
            pairs = zip(self._seeds[a:b], part._seeds, strict=True)
            part._seeds = [own if ours is None else ours for ours, own in pairs]
            if any(self._options[a:b]):
                part._options = self._options[a:b]
        observations = [part.reset() for part in self.parts]
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [info for part in self.parts for info in part.reset_infos]
        return np.concatenate(observations)  # type: ignore[arg-type]

    def _slices(self) -> list[tuple[SB3VecEnv, int, int]]:
        starts = self._starts.tolist()
        return list(zip(self.parts, starts[:-1], starts[1:], strict=True))

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for :meth:`step_wait`."""
        for part, a, b in self._slices():
            part.step_async(actions[a:b])

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment; returns as :meth:`SB3VecEnv.step_wait`."""
        observations, rewards, dones, infos = zip(*(part.step_wait() for part in self.parts), strict=True)
        return (
            np.concatenate(observations),
            np.concatenate(rewards),
            np.concatenate(dones),
            [info for part in infos for info in part],
        )

    @property
    def step_seconds(self) -> NDArray[np.float64]:
        """Simulated time that the last step took in each environment, float64 (N,)."""
        return np.concatenate([part.step_seconds for part in self.parts])

    def close(self) -> None:
        """Close all environments."""
        for part in self.parts:
            part.close()

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks of all environments, bool (N, K)."""
        return np.concatenate([part.action_masks() for part in self.parts])

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return the result of a method, only ``action_masks``, for each environment."""
        found = [
            value
            for part in self.parts
            for value in part.env_method(method_name, *method_args, **method_kwargs)
        ]
        return [found[i] for i in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of each environment."""
        found = [value for part in self.parts for value in part.get_attr(attr_name)]
        return [found[i] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of all environments, see :meth:`SB3VecEnv.set_attr`."""
        if indices is not None:
            raise ConfigError(f"{attr_name} can only be set for all environments at once")
        for part in self.parts:
            part.set_attr(attr_name, value)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether the environments include a wrapper's function."""
        return [self.parts[0].env_is_wrapped(wrapper_class, 0)[0] for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return None for each environment: the native environment does not render."""
        return [None] * self.num_envs
