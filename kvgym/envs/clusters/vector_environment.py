"""Vectors of environments of clusters: N clusters behind one ``step``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.closing import Closed
from kvgym.envs.clusters.environment import ClusterEnv
from kvgym.envs.scheduling.actions.reading import outside
from kvgym.envs.scheduling.stepping import RUNNING, STEP
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError
from kvgym.metrics.catalogue import STANDARD_METRICS
from kvgym.metrics.compute import compute_metrics


class ClusterEpisodes:
    """Episodes of N clusters of one configuration, like :class:`~kvgym.envs.scheduling.episodes.Episodes` of workers.

    Every cluster runs compiled from one action to the next.

    Attributes:
        envs: the clusters.
        compiled: whether they run compiled code.
        lock: held while the environment steps, is reset or closed.
        todo: uint8 (N,): STEP or 0, for :meth:`run`.
        actions: float64 (N, a), for the next step.
        observations: float32 (N, D), from the latest step.
        masks: uint8 (N, K).
        rewards: float64 (N,).
        terms: float64 (N, number of terms).
        outcomes: int64 (N,): RUNNING, TERMINATED or TRUNCATED.
        ignored: int64 (N,).
        times: float64 (N,), seconds.
    """

    def __init__(self, envs: list[Any], *, compiled: bool = True) -> None:
        """Take clusters that have no episode yet."""
        self.compiled = compiled
        self.lock = threading.Lock()
        self.envs, count, first = envs, len(envs), envs[0]
        self._low, self._high = map(np.array, first.bounds)
        self.todo = np.zeros(count, np.uint8)
        self.actions = np.zeros((count, len(self._low)))
        self.observations = np.zeros((count, len(first.observer.flat)), np.float32)
        self.masks = np.zeros((count, len(first.observer.mask)), np.uint8)
        self.rewards, self.times = np.zeros(count), np.zeros(count)
        self.terms = np.zeros((count, len(first.reward_terms)))
        self.outcomes, self.ignored = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._seeds = [0] * count

    def prepare(self, index: int, seed: int) -> None:
        """Choose the requests of the next episode of a cluster; :meth:`begin` starts it."""
        self._seeds[index] = seed

    def begin(self, indices: Iterable[int]) -> None:
        """Start the prepared episodes of some clusters."""
        for i in indices:
            self.envs[i].start(self._seeds[i])
            self.outcomes[i] = RUNNING
            self._record(i, 0)

    def run(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Step the clusters that ``todo`` marks.

        Args:
            meanwhile: is called once no action has been refused.

        Raises:
            ConfigError: an action is not in the action space; nothing has changed.
        """
        inside = ((self._low <= self.actions) & (self.actions <= self._high)).all(axis=1)
        wrong = (self.todo == STEP) & ~inside
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise outside(self.envs[i].action_space, self.actions[i], f" of environment {i}")
        for i in np.flatnonzero(self.todo).tolist():
            self.outcomes[i], ignored = self.envs[i].advance(self.actions[i])
            self._record(i, ignored)
        if meanwhile is not None:
            meanwhile()

    def _record(self, i: int, ignored: int) -> None:
        env = self.envs[i]
        observer, episode = env.observer, env.observer.episode[0]
        self.observations[i], self.masks[i] = observer.flat, observer.mask
        self.terms[i], self.rewards[i], self.times[i] = episode["terms"], episode["reward"], episode["since"]
        self.ignored[i] = ignored

    def renew_observations(self) -> None:
        """Continue with a copy of the observations, as the present ones have been returned."""
        self.observations = self.observations.copy()

    def observe(self, chosen: NDArray[np.bool_]) -> None:
        """Do nothing: the observations are up to date."""

    def close(self) -> None:
        """Free the memory of all clusters."""
        freed: Any = Closed()
        for env in self.envs:
            env.close()
        self.envs = freed

    def restore(self, index: int, state: Any) -> None:
        """Restore a state of a cluster."""
        self.envs[index].set_state(state)
        self._record(index, 0)

    def metrics(self, index: int) -> NDArray[np.float64]:
        """Return the metrics of the current episode of a cluster, float64, in the order of ``STANDARD_METRICS``."""
        return np.array(list(compute_metrics(self.envs[index].result(), STANDARD_METRICS).values()))


class ClusterVectorEnv(ServingVectorEnv):
    """N environments of clusters of one configuration, bit-equal to N separate ones.

    The arguments are those of :class:`~kvgym.envs.scheduling.vector_environment.ServingVectorEnv`, with those of the
    single environment instead of those of a worker.
    """

    single: ClassVar[type[ClusterEnv]]
    """Class of the single environment."""

    def _set_up(self, arguments: dict[str, Any], compiled: bool) -> None:
        if self.num_threads != 1:
            raise ConfigError(
                f"num_threads = {self.num_threads}; clusters are stepped in one thread, leave it out"
            )
        make: Any = self.single
        envs = [make(compiled=compiled, **arguments) for _ in range(self.num_envs)]
        self.config = envs[0].config
        self.episodes = ClusterEpisodes(envs, compiled=compiled)
        self.single_action_space, self.single_observation_space = (
            envs[0].action_space,
            envs[0].observation_space,
        )
        self._parts = envs[0].observer.parts

    def _state_of(self, i: int) -> Any:
        generator = self._generators[i].bit_generator.state
        ended, steps = bool(self._ended[i]), int(self._steps[i])
        return replace(self.episodes.envs[i].get_state(), generator=generator, ended=ended, steps=steps)

    def _check_state(self, i: int, state: Any) -> None:
        self.episodes.envs[i].check_state(state)

    def _restore(self, i: int, state: Any) -> None:
        self.episodes.restore(i, state)
