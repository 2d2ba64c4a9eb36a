"""The base class of environments in which an agent decides for a cluster, and schedulers for each worker."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.closing import Closed, not_running, step_limit
from kvgym.envs.rebuilt import Rebuilt
from kvgym.envs.recordable import Recordable
from kvgym.envs.scheduling.actions.reading import ActionReader, action_bounds, outside, sample_mask
from kvgym.envs.scheduling.drawing import workload_seed
from kvgym.envs.scheduling.stepping import RUNNING, TERMINATED, TRUNCATED
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.catalogue import STANDARD_METRICS
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import CompiledPolicy, make_policy
from kvgym.policies.runner import SimulationResult, known_to, result_of, system_info
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.utils.checks import check_seed
from kvgym.utils.user_code import calling
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload


def compiled_policy(spec: str) -> CompiledPolicy:
    """Return the scheduler of the workers.

    Raises:
        ConfigError: it is not compiled.
    """
    policy = make_policy(spec)
    if not isinstance(policy, CompiledPolicy) or type(policy).schedule is not CompiledPolicy.schedule:
        raise ConfigError(
            f"policy {shown(spec)} is plain Python; the workers of this environment need a compiled one"
        )
    return policy


class ClusterEnv(Rebuilt, Recordable, gym.Env[Any, Any]):
    """Episodes of a cluster that runs compiled from one action to the next.

    Subclasses set the attributes below in their constructors, then call :meth:`_ready`. Their observers have ``flat``
    float32 (D,), ``mask`` uint8 (K,), and ``episode``, a record (1,) with the time ``since``, and ``terms`` and
    ``reward`` since the previous observation.

    Attributes:
        config: the configuration.
        scenario: the scenario that it describes.
        system: the cluster, with the horizon of the episodes.
        workload: the source of requests.
        observer: observes the cluster.
        bounds: least and greatest values of the numbers of an action.
        simulation: the present episode; None before the first.
    """

    metric_names: ClassVar[tuple[str, ...]] = STANDARD_METRICS

    config: Any
    scenario: Scenario
    system: System
    workload: Workload
    observer: Any
    simulation: ClusterSimulation | None
    _policy: CompiledPolicy

    def _ready(self, action_space: gym.Space[Any], observation_space: gym.Space[Any]) -> None:
        """Set the spaces, and that there is no episode yet."""
        self.action_space, self.observation_space = action_space, observation_space
        self.bounds = action_bounds(action_space).reshape(2, -1).tolist()
        self._action = np.zeros(len(self.bounds[0]))
        self._reader = ActionReader(action_space, self._action)
        self.simulation = None
        self._policies: list[CompiledPolicy] = []
        self._done = self._over = True
        self._livelock = False
        self._steps, self._limit = 0, step_limit(None)
        self._recording: Any = None
        self._seed = 0

    # ------------------------------------------------------------ episodes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seeds the random generator.
            options: ``{"workload_seed": k}`` uses the requests of seed k instead of a drawn seed.

        Raises:
            ConfigError: a seed that is not a whole number ≥ 0, or an unknown option.
        """
        super().reset(seed=None if seed is None else check_seed(seed))
        self.start(workload_seed(options, self.np_random))
        return self.observer.present(), self._info(0)

    def start(self, seed: int) -> None:
        """Start the episode of a workload seed, and run to its first action."""
        if isinstance(self.simulation, Closed):
            raise not_running(True)
        self._seed = seed
        table = self._requests(seed)
        needs = known_to(self._policy, table)
        self._policies = [copy.copy(self._policy) for _ in self.system.all_workers]
        for k, policy in enumerate(self._policies):
            with calling(policy, "policy", "reset"):
                policy.reset(system_info(self.system, table, seed, needs, k))
        self.simulation = self._simulate(table, needs, seed)
        self.simulation.set_policies(self._policies)
        self.observer.attach(self.simulation)
        self._recording = None
        self._done = self._livelock = False
        self._steps, self._limit = 0, step_limit(self.spec)
        self._begin()

    def _requests(self, seed: int) -> RequestTable:
        """Return the requests of a seed."""
        return self.scenario.sample(self.workload, seed, self.system.usable_capacity)

    @abstractmethod
    def _simulate(self, table: RequestTable, needs: frozenset[str], seed: int) -> ClusterSimulation:
        """Return the run of an episode, not yet started."""

    @abstractmethod
    def _begin(self) -> None:
        """Run to the first action."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out an action and run to the next one, see the class.

        Raises:
            gymnasium.error.ResetNeeded: the episode has ended or was never started.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            ConfigError: the action is not in the action space; nothing has changed.
            InvalidDecisionError: a worker's scheduler made an invalid decision.
        """
        if self._done or self.simulation is None:
            raise not_running(isinstance(self.simulation, Closed))
        self._reader.read(action)
        given = self._action.tolist()  # a few numbers: comparing them in Python is faster
        if not all(
            low <= x <= high for low, x, high in zip(self.bounds[0], given, self.bounds[1], strict=True)
        ):
            raise outside(self.action_space, self._action)
        outcome, ignored = self.advance(self._action)
        info = self._info(ignored)
        reward = float(self.observer.episode["reward"][0])
        if outcome != RUNNING or self._steps == self._limit:
            info["metrics"] = np.array(list(compute_metrics(self.result(), STANDARD_METRICS).values()))
            info["completed"] = outcome == TERMINATED
        return self.observer.present(), reward, outcome == TERMINATED, outcome == TRUNCATED, info

    @abstractmethod
    def advance(self, action: NDArray[np.float64]) -> tuple[int, int]:
        """Do what a step does; the observer has its results.

        Args:
            action: its numbers, within the space, (a,).

        Returns:
            RUNNING, TERMINATED or TRUNCATED; and 1 if the action was ignored, else 0.
        """

    def _outcome(self) -> int:
        """Count a step, and return whether the episode goes on."""
        assert self.simulation is not None
        self._steps += 1
        self._done = self._over
        if not self._over:
            return RUNNING
        finished = bool((self.simulation.requests["status"] == FINISHED).all())
        return TERMINATED if finished and not self._livelock else TRUNCATED

    def close(self) -> None:
        """Free the memory of the environment. Saved states, results and returned arrays stay valid."""
        freed: Any = Closed()
        self.simulation = self.observer = self._policies = freed
        self._done = True
        self._recording = None
        super().close()

    def _info(self, ignored: int) -> dict[str, Any]:
        episode = self.observer.episode
        return {
            "action_mask": self.sample_mask(),
            "reward_terms": episode["terms"][0].copy(),
            "ignored": ignored,
            "time": float(episode["since"][0]),
        }

    # ------------------------------------------------------------ masks and results

    @property
    def policy(self) -> CompiledPolicy:
        """The workers' scheduler."""
        return self._policy

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to decide."""
        return self._over

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask as sb3-contrib reads it, bool (K,)."""
        mask: NDArray[np.bool_] = self.observer.mask.astype(bool)
        return mask

    def sample_mask(self) -> Any:
        """Return the mask in the form that ``action_space.sample(mask=...)`` takes, as in ``info["action_mask"]``."""
        return sample_mask(self.action_space, self.observer.mask)

    def result(self) -> SimulationResult:
        """Return the records of the current episode, in the form of :func:`kvgym.simulate`; the arrays are copies."""
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return result_of(self.simulation, self._policies[0])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the current episode so far by name, see :func:`kvgym.compute_metrics`.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        return compute_metrics(self.result())

    # ------------------------------------------------------------ rendering

    def recording(self) -> Any:
        """Return a :class:`~kvgym.envs.rendering.recorder.Recorder` of the current episode, from now on.

        Until the next ``reset`` it also records moments between two actions.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        self._recording = self._recorder()
        return self._recording

    def scene(self) -> Any:
        """Return what is drawn of the current moment.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        return self._recorder().scene()

    def _recorder(self) -> Any:
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is nothing to render yet; call reset() first")
        return self._make_recorder()

    @abstractmethod
    def _make_recorder(self) -> Any:
        """Return a recorder of the current episode."""
