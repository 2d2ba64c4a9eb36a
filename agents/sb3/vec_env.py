"""The native vector environment for Stable-Baselines3: N environments, one compiled call per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from kvgym.envs import CLUSTER_IDS, SCHEDULING_IDS
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.utils.arguments import explained

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ImportError as error:
    raise ConfigError(
        f'kvgym.agents.sb3.vec_env needs Stable-Baselines3: pip install "kvgym[train]" ({error})'
    ) from error

__all__ = ["SB3VecEnv", "VecEnv", "VecEnvIndices", "VecEnvObs", "VecEnvStepReturn", "make_sb3_env"]


class SB3VecEnv(VecEnv):
    """A Stable-Baselines3 ``VecEnv`` over :class:`~kvgym.envs.scheduling.vector_environment.ServingVectorEnv`.

    A finished environment starts its next episode within the step, as Stable-Baselines3 expects. Its info then has
    ``terminal_observation``, ``TimeLimit.truncated``, ``episode`` as ``Monitor`` writes it (``r`` return, ``l``
    length, ``t`` seconds since this object was made), and the metrics of the episode as ``kv/<metric>``, see
    :mod:`kvgym.metrics`. Infos of other steps are empty. Masked algorithms find the masks through
    ``env_method("action_masks")``.

    Returned arrays belong to the caller.

    Args:
        env: the vector environment, with ``autoreset_mode="SameStep"``.

    Attributes:
        step_seconds: simulated time that the last step took in each environment, float64 (N,).

    Raises:
        ConfigError: ``env`` has another type or autoreset mode.
    """

    def __init__(self, env: ServingVectorEnv) -> None:
        inner = env.unwrapped
        if not isinstance(inner, ServingVectorEnv):
            raise ConfigError(f"SB3VecEnv needs a ServingVectorEnv, got {type(inner).__name__}")
        if inner.autoreset_mode != AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"SB3VecEnv needs autoreset_mode='SameStep', got {shown(inner.autoreset_mode.value)}"
            )
        self.env = inner
        super().__init__(inner.num_envs, inner.single_observation_space, inner.single_action_space)
        self._metric_keys = tuple(f"kv/{name}" for name in inner.metric_names)
        self._actions: Any = None
        self._returns = np.zeros(self.num_envs)
        self._steps = np.zeros(self.num_envs, np.int64)
        self._made = time.monotonic()
        self._clock = self.step_seconds = np.zeros(self.num_envs)

    # ------------------------------------------------------------ running

    def reset(self) -> VecEnvObs:
        """Start an episode in every environment, with the seeds of :meth:`seed` if it was called."""
        observation, info = self.env.reset(seed=self._seeds, options=self._shared_options())
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [{"time": float(t)} for t in info["time"]]
        self._clock = info["time"].copy()
        self._returns[:] = 0.0
        self._steps[:] = 0
        found: VecEnvObs = observation
        return found

    def _shared_options(self) -> dict[str, Any] | None:
        """Return the options of all environments for the vector environment: a list per option."""
        names = {name for options in self._options for name in options}
        if any(options.keys() != names for options in self._options):
            raise ConfigError(f"set_options: every environment needs the same options, got {self._options}")
        return {name: [options[name] for options in self._options] for name in names} or None

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions for :meth:`step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step every environment.

        Returns:
            Observations, rewards float32 (N,), dones bool (N,), and an info per environment.
        """
        observation, rewards, terminated, truncated, info = self.env.step(self._actions)
        self._returns += rewards
        self._steps += 1
        done = terminated | truncated
        now = np.where(done, info["final_info"]["time"], info["time"]) if done.any() else info["time"]
        self.step_seconds, self._clock = now - self._clock, info["time"].copy()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done.any():
            elapsed = round(time.monotonic() - self._made, 6)
            for i in np.flatnonzero(done).tolist():
                infos[i] = {
                    "terminal_observation": _own(info["final_obs"][i]),
                    "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                    "episode": {"r": float(self._returns[i]), "l": int(self._steps[i]), "t": elapsed},
                    **self._metrics(info["final_info"], i),
                }
            self._returns[done] = 0.0
            self._steps[done] = 0
        return observation, rewards.astype(np.float32), done, infos

    def _metrics(self, final: dict[str, Any], i: int) -> dict[str, float]:
        """Return the metrics of the finished episode of environment ``i``."""
        return dict(zip(self._metric_keys, final["metrics"][i].tolist(), strict=True))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    # ------------------------------------------------------------ attributes

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks of all environments, bool (N, K), in sb3-contrib's layout."""
        return self.env.action_masks()

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return the result of a method, only ``action_masks``, for each environment."""
        if method_name != "action_masks":
            raise AttributeError(f"no method {shown(method_name)} for single environments; only action_masks")
        masks = self.env.action_masks(*method_args, **method_kwargs)
        return list(masks) if indices is None else [masks[i] for i in self._get_indices(indices)]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute, which all environments share."""
        chosen = list(self._get_indices(indices))
        if attr_name == "action_masks":
            return [partial(self._mask_of, i) for i in chosen]
        own = {"observation_space": self.observation_space, "action_space": self.action_space}
        value = own[attr_name] if attr_name in own else getattr(self.env, attr_name)
        return [value] * len(chosen)

    def _mask_of(self, i: int) -> NDArray[np.bool_]:
        row: NDArray[np.bool_] = self.env.action_masks()[i]
        return row

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set ``load`` (a range of the factor on arrival rates) of all environments, for new episodes.

        Raises:
            ConfigError: another attribute, or only some environments: they share their configuration.
        """
        if attr_name != "load" or indices is not None:
            raise ConfigError(
                f"{attr_name} cannot be set; give it when making the environment (only load can be set, for all)"
            )
        self.env.load = value

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether the environments include a wrapper's function; they include ``Monitor``'s."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return None for each environment: the native environment does not render."""
        return [None] * self.num_envs


def _own(observation: Any) -> Any:
    """Return a copy of an observation, so that those of all environments can be freed."""
    if isinstance(observation, dict):
        return {name: part.copy() for name, part in observation.items()}
    return observation.copy()


@explained
def make_sb3_env(
    env_id_or_action: str, num_envs: int, seed: int | None = None, **arguments: Any
) -> SB3VecEnv:
    """Return ``num_envs`` environments for Stable-Baselines3.

    Args:
        env_id_or_action: a registered id such as ``"kvgym/AdmitCount-v0"``, or its kind of action, such as
            ``"admit_count"``.
        num_envs: N.
        seed: environment i starts with seed + i.
        **arguments: fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`, and ``max_episode_steps``,
            by default the limit of the id.

    Raises:
        UnknownNameError: no such id or kind of action.
        ConfigError: an argument is wrong, or the environment is of a cluster.
    """
    ids = {action: name for name, action in SCHEDULING_IDS.items()}
    name = ids.get(env_id_or_action, env_id_or_action.removeprefix("kvgym:"))
    if name in CLUSTER_IDS:
        raise ConfigError(
            f"{name} decides for a cluster and has no adapter; use stable_baselines3.common.env_util.make_vec_env for "
            "scalar environments or gymnasium.make_vec for the native vector"
        )
    if name not in SCHEDULING_IDS:
        raise UnknownNameError("environment", env_id_or_action, [*SCHEDULING_IDS, *ids])
    make: Callable[..., Any] = gym.make_vec
    env = make(
        name,
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.SAME_STEP,
        **arguments,
    )
    venv = SB3VecEnv(env)
    if seed is not None:
        venv.seed(seed)
    return venv
