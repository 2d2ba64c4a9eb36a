"""Playing of recorded episodes: actions in an environment, or a scheduler on its own worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym

from kvgym.envs.playing import Player
from kvgym.envs.recordable import Act, Recordable
from kvgym.envs.rendering.recorder import Recorder, WorkerRecorder
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scaling.environment import ScalingEnv
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, LivelockError, UnknownNameError, shown
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES, Policy, make_policy
from kvgym.policies.runner import check_needs, prepare_run, result_of, steps_of


class Performance(ABC):
    """An episode that is being played.

    Attributes:
        name: name of the policy.
        caption: title of a picture.
        recording: recording of the episode.
        total_reward: sum of the rewards so far; NaN if there are no rewards.
        completed: whether every request has finished.
        metrics: metrics of the episode by name, at its end.
    """

    recording: Recorder
    total_reward = 0.0
    completed = False

    def __init__(self, name: str, caption: str) -> None:
        """Set name and caption."""
        self.name, self.caption = name, caption
        self.metrics: dict[str, float] = {}

    @abstractmethod
    def step(self) -> bool:
        """Advance to the next moment; return True at the end."""


class InEnvironment(Performance):
    """Play with actions from a function, in an environment that has been reset."""

    def __init__(self, name: str, env: Any, act: Act, observation: Any) -> None:
        """Start recording."""
        self._served: Recordable = env.unwrapped
        super().__init__(name, self._served.caption)
        self._env, self._act, self._observation = env, act, observation
        self.recording = self._served.recording()

    def step(self) -> bool:
        """Step the environment."""
        action = self._act(self._observation, self._served.action_masks())
        self._observation, reward, terminated, truncated, info = self._env.step(action)
        self.total_reward += float(reward)
        ended = bool(terminated or truncated)
        if ended:
            self.completed = bool(info["completed"])
            figures = map(float, info["metrics"])
            self.metrics = dict(zip(self._served.metric_names, figures, strict=True))
        return ended


class Scheduling(Performance):
    """Play with a scheduler on the requests of an environment's episode, as :func:`kvgym.simulate` runs it."""

    total_reward = float("nan")

    def __init__(self, name: str, env: ServingEnv, policy: Policy, seed: int) -> None:
        """Run to the first decision."""
        super().__init__(name, env.episodes.scenario.name)
        system, table = env.episodes.system, env.episodes.slots[0].table
        assert table is not None
        check_needs(policy, table)
        self._policy = policy
        self._simulation, copies = prepare_run(system, table, policy, seed=seed)
        self.recording = WorkerRecorder(self._simulation)
        self._pauses = steps_of(self._simulation, policy, copies)
        next(self._pauses, None)

    def step(self) -> bool:
        """Advance by one decision of the scheduler."""
        try:
            ended = next(self._pauses, self) is self
        except LivelockError:
            ended = True
        if ended:
            result = result_of(self._simulation, self._policy)
            self.completed, self.metrics = result.completed, compute_metrics(result)
        return ended


def perform(
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | ScalingConfig | dict[str, Any],
    policy: Any = None,
    *,
    seed: int = 0,
    workload_seed: int | None = None,
) -> Performance:
    """Start an episode; arguments as for :func:`~kvgym.envs.rendering.episode.record_episode`.

    Raises:
        ConfigError: ``env`` is not an environment of kvgym, ``policy`` cannot play in it, or the requests lack
            information that the policy needs.
        UnknownNameError: no policy of that name.
    """
    env, served = _environment(env)
    policy = served.players()[0] if policy is None else policy
    name = _name_of(policy)
    if isinstance(served, ServingEnv) and isinstance(policy, str) and policy not in served.players():
        policy = _scheduler(policy, served)
    options = None if workload_seed is None else {"workload_seed": workload_seed}
    if isinstance(served, ServingEnv) and isinstance(policy, Policy):
        env.reset(seed=seed, options=options)
        return Scheduling(name, served, policy, seed)
    act = _player(policy, served, seed)
    observation, _ = env.reset(seed=seed, options=options)
    return InEnvironment(name, env, act, observation)


def _name_of(policy: Any) -> str:
    """Return the name of a policy in pictures."""
    if isinstance(policy, Policy):
        return policy.info.name
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def _environment(env: Any) -> tuple[gym.Env[Any, Any], Recordable]:
    """Return the environment to step, and the environment of kvgym inside its wrappers.

    Raises:
        ConfigError: there is none inside.
    """
    if isinstance(env, EnvConfig):
        env = ServingEnv(**env.model_dump())
    elif isinstance(env, RoutingConfig):
        env = RoutingEnv(**env.model_dump())
    elif isinstance(env, ScalingConfig):
        env = ScalingEnv(**env.model_dump())
    elif isinstance(env, dict):
        env = ServingEnv(**env)
    served = getattr(env, "unwrapped", None)
    if not isinstance(served, Recordable):
        raise ConfigError(f"env = {shown(env)}; expected an environment of kvgym or its configuration")
    return env, served


def _scheduler(name: str, served: Recordable) -> Policy:
    """Return a scheduler or an agent.

    Raises:
        UnknownNameError: no policy or player of that name.
        ConfigError: an unknown hyperparameter or a value out of range.
    """
    try:
        return make_policy(name)
    except UnknownNameError:
        if name.partition(":")[0] in POLICIES:
            raise
        raise UnknownNameError("policy", name, (*served.players(), *POLICIES)) from None


def _player(policy: Any, served: Recordable, seed: int) -> Act:
    """Return the function that chooses the actions.

    Raises:
        ConfigError: ``policy`` cannot choose actions.
        UnknownNameError: no player of that name.
    """
    if isinstance(policy, str):
        return served.player(policy, seed)
    if hasattr(policy, "predict"):
        return Player(policy)
    if callable(policy):
        return policy
    raise ConfigError(
        f"policy = {shown(policy)}; expected a name ({', '.join(served.players())}), a function (observation, mask) -> "
        "action, or an agent with predict"
    )
