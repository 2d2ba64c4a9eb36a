"""Datasets for offline learning: whole episodes of a policy or an agent in an environment, for Minari."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.agents import AgentPolicy, play_by_actions, served
from kvgym.envs.playing import Player
from kvgym.envs.recordable import Act, Recordable
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, shown
from kvgym.policies.policy import Policy, make_policy
from kvgym.utils.arguments import explained
from kvgym.utils.version import __version__


@dataclass(frozen=True)
class Episode:
    """An episode of t steps.

    Attributes:
        workload_seed: seed of its requests, as in ``kvgym compare``.
        observations: (t + 1, …), the last one after the last step.
        masks: bool (t + 1, K), the choices that were possible before each step, in sb3-contrib's layout.
        actions: (t, …).
        rewards: float64 (t,).
        terminated: whether it ended; otherwise it was cut short.
    """

    workload_seed: int
    observations: NDArray[Any]
    masks: NDArray[np.bool_]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: bool


class _Recorder(gym.Wrapper[Any, Any, Any, Any]):
    """The environment, with what it receives and returns since its last reset."""

    env: Any

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self.observations, self.masks = [observation], [self.env.action_masks()]
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.observations.append(observation)
        self.masks.append(self.env.action_masks())
        self.actions.append(action)
        self.rewards.append(float(reward))
        self.terminated = terminated
        return observation, reward, terminated, truncated, info

    def episode(self, seed: int) -> Episode:
        """Return the episode so far."""
        return Episode(
            seed, np.array(self.observations), np.array(self.masks, bool), np.array(self.actions),
            np.array(self.rewards), self.terminated,
        )  # fmt: skip


@explained
def record_dataset(
    env: gym.Env[Any, Any], policy: str | Policy, *, workload_seeds: Iterable[int] = range(10)
) -> list[Episode]:
    """Play episodes in an environment and return all of their steps.

    Args:
        env: the environment, with flat observations; its ``information`` must include what the policy needs.
        policy: one of the environment's ``players()``: a router with options in ``kvgym/Route-v0``, an autoscaler in
            ``kvgym/Scale-v0``, ``"random"`` everywhere. Where one worker is scheduled, also any policy or its name,
            carried out by actions of the environment, or an :class:`kvgym.AgentPolicy` of an environment with the same
            observations and actions, which acts itself.
        workload_seeds: seeds of the requests and of the policy, one for each episode.

    Raises:
        ConfigError: the environment is not one of kvgym's, or the agent has other observations or actions.
        UnknownNameError: the environment of a cluster has no such player.
        NotExpressibleError: the environment's actions cannot express a decision.
    """
    if not isinstance(env.unwrapped, Recordable):
        raise ConfigError(f"expected an environment of kvgym, such as kvgym/Tokens-v0; got {shown(env)}")
    inner: Any = env.unwrapped
    if not isinstance(inner.observation_space, gym.spaces.Box):
        raise ConfigError(
            f"a dataset has flat observations, not observation={shown(inner.config.observation)}"
        )
    recorder, found = _Recorder(inner), []
    by_name = not isinstance(inner, ServingEnv) or policy in inner.players()
    made: Any = policy if by_name else make_policy(policy)
    if isinstance(made, AgentPolicy):
        _check_agent(made, served(env))
    for seed in workload_seeds:
        if isinstance(made, Policy) and not isinstance(made, AgentPolicy):
            play_by_actions(inner, made, seed, through=recorder)
        else:
            act = inner.player(made, seed) if by_name else Player(made.model)
            _play(recorder, act, seed)
        found.append(recorder.episode(seed))
    return found


def _check_agent(agent: AgentPolicy, env: ServingEnv) -> None:
    """Refuse an agent of an environment with other observations or actions."""
    ours, its = (
        str((c.action, c.information, c.features, c.queue_window)) for c in (env.config, agent.config)
    )
    if ours != its:
        raise ConfigError(
            f"the agent acts in an environment with action, information, features and queue_window {its}; here "
            f"they are {ours}"
        )


def _play(env: _Recorder, act: Act, seed: int) -> None:
    """Play an episode with a function that chooses actions."""
    observation, _ = env.reset(seed=seed, options={"workload_seed": seed})
    over = False
    while not over:
        observation, _, ended, cut, _ = env.step(act(observation, env.masks[-1]))
        over = ended or cut


def load_minari() -> Any:
    """Return the module of Minari.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("minari")
    except ImportError as error:
        raise ConfigError(f'datasets need Minari: pip install "kvgym[minari]" ({error})') from None


@explained
def write_minari(
    name: str, env: gym.Env[Any, Any], episodes: Sequence[Episode], *, algorithm: str = ""
) -> Any:
    """Write episodes as a Minari dataset on this machine; masks are ``infos["action_mask"]``.

    Args:
        name: of the dataset, like ``"kvgym/hidden-kinds/ranked-v0"``.
        env: the environment; made by ``gymnasium.make``, it can be recovered from the dataset.
        episodes: from :func:`record_dataset`.
        algorithm: name of what played.

    Returns:
        The ``minari.MinariDataset``.

    Raises:
        ConfigError: Minari is not installed, or rejects the name.
    """
    minari = load_minari()
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=place, seed=each.workload_seed, options={"workload_seed": each.workload_seed},
            observations=each.observations, actions=each.actions, rewards=each.rewards.tolist(),
            terminations=[False] * (len(each.actions) - 1) + [each.terminated],
            truncations=[False] * (len(each.actions) - 1) + [not each.terminated],
            infos={"action_mask": each.masks},
        )
        for place, each in enumerate(episodes)
    ]  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of missing authors and links
            return minari.create_dataset_from_buffers(
                name, buffers, env=env.spec, observation_space=env.observation_space, action_space=env.action_space,
                algorithm_name=algorithm or None, data_format="arrow", requirements=[f"kvgym=={__version__}"],
            )  # fmt: skip
    except (ValueError, OSError) as error:
        raise ConfigError(f"dataset {shown(name)}: {error}") from None
