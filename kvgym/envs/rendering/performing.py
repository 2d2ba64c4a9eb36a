"""Who plays an episode that is recorded: actions in an environment, or a scheduler on a worker of its own."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.recordable import Act, Recordable, Recording
from kvgym.envs.rendering.recorder import Recorder
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.errors import ConfigError, LivelockError, UnknownNameError, shown
from kvgym.metrics import compute_metrics
from kvgym.policy import POLICIES, Policy, make_policy
from kvgym.runner import check_needs, prepare_run, result_of, steps_of


class Performance(ABC):
    """An episode that is being played.

    Attributes:
        name: who plays.
        caption: what is played, for the title of a picture.
        recording: follows the episode.
        total_reward: sum of the rewards so far; NaN where nothing is rewarded.
        completed: whether every request has finished.
        metrics: metrics of the episode by name, at its end.
    """

    recording: Recording
    total_reward = 0.0
    completed = False

    def __init__(self, name: str, caption: str) -> None:
        """Begin."""
        self.name, self.caption = name, caption
        self.metrics: dict[str, float] = {}

    @abstractmethod
    def step(self) -> bool:
        """Go on to the next moment; True at the end."""


class InEnvironment(Performance):
    """Actions, chosen by a function, in an environment that has been reset."""

    def __init__(self, name: str, env: Any, act: Act, observation: Any) -> None:
        """Begin to record."""
        self._served: Recordable = env.unwrapped
        super().__init__(name, self._served.caption)
        self._env, self._act, self._observation = env, act, observation
        self.recording = self._served.recording()

    def step(self) -> bool:
        """Take an action."""
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
    """A scheduler on the requests of an environment's episode, as :func:`kvgym.simulate` runs it."""

    total_reward = float("nan")

    def __init__(self, name: str, env: ServingEnv, policy: Policy, seed: int) -> None:
        """Go to the first decision."""
        super().__init__(name, env.episodes.scenario.name)
        system, table = env.episodes.system, env.episodes.slots[0].table
        assert table is not None
        check_needs(policy, table)
        self._policy = policy
        self._simulation, copies = prepare_run(system, table, policy, seed=seed)
        tables = {name: getattr(self._simulation, name) for name in ("workers", "requests", "tracker")}
        self.recording = Recorder(system.usable_capacity, lambda: (self._simulation.view, tables))
        self._pauses = steps_of(self._simulation, policy, copies)
        next(self._pauses, None)

    def step(self) -> bool:
        """Let the scheduler decide once."""
        try:
            ended = next(self._pauses, self) is self
        except LivelockError:
            ended = True
        if ended:
            result = result_of(self._simulation, self._policy)
            self.completed, self.metrics = result.completed, compute_metrics(result)
        return ended


def perform(
    env: gym.Env[Any, Any] | EnvConfig | RoutingConfig | dict[str, Any],
    policy: Any = None,
    *,
    seed: int = 0,
    workload_seed: int | None = None,
) -> Performance:
    """Begin an episode; arguments as for :func:`~kvgym.envs.rendering.episode.record_episode`.

    Raises:
        ConfigError: no environment of kvgym, nobody that can play there, or a policy that needs to know what the
            requests do not carry.
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
    """Return what a picture calls whoever plays."""
    if isinstance(policy, Policy):
        return policy.info.name
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def _environment(env: Any) -> tuple[gym.Env[Any, Any], Recordable]:
    """Return what to step, and the environment of kvgym inside.

    Raises:
        ConfigError: there is none inside.
    """
    if isinstance(env, EnvConfig):
        env = ServingEnv(**env.model_dump())
    elif isinstance(env, RoutingConfig):
        env = RoutingEnv(**env.model_dump())
    elif isinstance(env, dict):
        env = ServingEnv(**env)
    served = getattr(env, "unwrapped", None)
    if not isinstance(served, Recordable):
        raise ConfigError(
            f"record_episode takes an environment of kvgym or its configuration, got {shown(env)}"
        )
    return env, served


def _scheduler(name: str, served: Recordable) -> Policy:
    """Return a scheduler or an agent.

    Raises:
        UnknownNameError: no policy of that name, and nothing else that plays here.
        ConfigError: an unknown hyperparameter or a value out of range.
    """
    try:
        return make_policy(name)
    except UnknownNameError:
        if name.partition(":")[0] in POLICIES:
            raise
        raise UnknownNameError("policy", name, (*served.players(), *POLICIES)) from None


def _player(policy: Any, served: Recordable, seed: int) -> Act:
    """Return what chooses the actions.

    Raises:
        ConfigError: nothing that can.
        UnknownNameError: no policy of that name.
    """
    if isinstance(policy, str):
        return served.player(policy, seed)
    if hasattr(policy, "predict"):
        masked = "action_masks" in inspect.signature(policy.predict).parameters

        def predict(observation: Any, mask: NDArray[np.bool_]) -> Any:
            more = {"action_masks": mask} if masked else {}
            return policy.predict(observation, deterministic=True, **more)[0]

        return predict
    if callable(policy):
        return policy
    raise ConfigError(
        f"policy {shown(policy)}: give a name ({', '.join(served.players())}), a function (observation, mask) -> "
        "action, or an agent with predict"
    )
