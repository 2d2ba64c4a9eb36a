"""The Gymnasium environment that schedules one worker."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.closing import not_running, step_limit
from kvgym.envs.rebuilt import Rebuilt
from kvgym.envs.recordable import RANDOM, Act, Recordable
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.actions.reading import ActionReader, sample_mask
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.drawing import workload_seed
from kvgym.envs.scheduling.episode_tables import EpisodeTables
from kvgym.envs.scheduling.episodes import (
    RUNNING,
    STEP,
    TERMINATED,
    TRUNCATED,
    Episodes,
)
from kvgym.envs.scheduling.explaining import introduction
from kvgym.envs.scheduling.state import EnvState
from kvgym.errors import UnknownNameError
from kvgym.metrics.catalogue import STANDARD_METRICS
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.view import SystemView
from kvgym.utils.checks import check_seed


def greedy_action(config: EnvConfig, mask: NDArray[np.bool_]) -> Any:
    """Return the action that admits as much as fits into the next iteration and evicts nothing.

    Args:
        config: the environment's configuration.
        mask: from ``ServingEnv.action_masks()``.
    """
    greedy = config.kind.greedy(config, mask.astype(np.uint8))
    return config.as_actions(greedy).astype(np.float32) if config.unit_actions else greedy


class ServingEnv(Rebuilt, Recordable, gym.Env[Any, Any]):
    """Scheduling LLM inference on one worker with a limited KV cache.

    Description:
        Requests with a prompt and an unknown number of output tokens arrive over time. Every iteration of
        the worker processes one batch; every token a request generates grows its KV cache. The agent decides
        at iteration boundaries which requests to admit and which to evict. The dynamics are those of
        :func:`kvgym.simulate`: same engine, same batch times, same requests for the same workload seed.

    Action Space:
        It depends on the id: see ``help(env.unwrapped)`` or the environment's page. A choice outside the mask is a
        no-op: it adds nothing to the decision and is counted in ``info["ignored"]``. An action outside the space is
        an error and changes nothing.

    Observation Space:
        float32 with finite bounds; :mod:`kvgym.envs.scheduling.observations` describes every feature:

        - ``system`` (14,): memory, counts, next batch, arrival rate, time
        - ``profile`` (16,): future memory, 1 to 2^15 iterations ahead
        - ``queue`` (8 Q,): 8 features of each position of the queue window
        - ``active`` (7 W,), or (8 W,) with ``saved_duration``: features of each position of the active window

        ``observation="flat"`` concatenates them in this order; ``"dict"`` keeps the keys, which Gymnasium sorts, so
        that ``FlattenObservation`` gives a different order; ``"rllib"`` has the flat observation and a float32
        ``action_mask``.

    Rewards:
        Weighted sum of terms, each divided by ``reward_scale`` (default: requests per episode):
        ``latency`` = - time integral of the requests in the system, exact over skipped time, so that the
        undiscounted return of a completed episode is minus the mean end-to-end latency; ``ttft`` = - TTFT of
        requests that finish; ``tokens`` delivered; ``goodput`` = finished requests that met their SLOs;
        ``evictions`` = - KV tokens discarded; registered terms, see :mod:`kvgym.envs.scheduling.components`. All
        terms are in ``info["reward_terms"]``. With ``reward_reference`` the reward is relative to that policy's; the
        terms are not. See :mod:`kvgym.envs.scheduling.reward_reference`.

    Starting State:
        An empty worker at the first arrival. ``reset(seed=s)`` seeds the generator that draws the workload seed of
        each episode; ``reset(options={"workload_seed": k})`` uses the requests that ``kvgym compare`` has under
        seed k.

    Episode End:
        Terminated when every request has finished. Truncated at the horizon, or when no request has received
        a new token for ``stall_limit`` decisions; by ``gymnasium.make`` also after ``max_episode_steps``, which
        good agents do not reach in a default episode.

    Information:
        Every step: ``action_mask`` in the form that ``action_space.sample(mask=...)`` takes (int8 for Discrete and
        MultiBinary, a tuple of int8 for MultiDiscrete, None for a Box, which Gymnasium samples without a mask;
        :meth:`action_masks` shows which of its numbers have an effect), ``reward_terms`` float64 in the order of
        :attr:`reward_terms`, ``ignored`` int, ``time`` s. On the last step also ``metrics``, float64, in the order of
        :attr:`metric_names`, and ``completed``, whether every request has finished. The step at the id's
        ``max_episode_steps`` counts as a last step. If a wrapper or a custom limit ends the episode, call
        :meth:`metrics` for the metrics so far.

    Arguments:
        Keyword arguments are the fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`, all JSON-able, and
        ``render_mode``.
    """

    metric_names: ClassVar[tuple[str, ...]] = STANDARD_METRICS

    def __init__(self, *, render_mode: str | None = None, compiled: bool = True, **arguments: Any) -> None:
        """Create the environment; see :class:`~kvgym.envs.scheduling.config.EnvConfig` for the arguments."""
        self.set_render_mode(render_mode)
        self.config = EnvConfig.of(**arguments)
        self.__doc__ = introduction(self.config, ServingEnv)
        self._compiled = compiled
        self.episodes = Episodes(self.config, 1, compiled=compiled)
        self.action_space = self.episodes.space
        self.reward_terms = self.config.reward_terms
        self.observation_space = spaces.observation_space(self.config)
        self._parts = spaces.parts(self.config)
        self.tables = EpisodeTables(self.episodes)
        self.view = SystemView(self.tables)
        self._flat = self.config.observation == "flat"
        self._reader = ActionReader(self.action_space, self.episodes.actions[0], self.episodes)
        self._done = True
        self._steps, self._limit = 0, step_limit(None)
        self._recorder: Any = None

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
        with self.episodes.lock:
            super().reset(seed=None if seed is None else check_seed(seed))
            self.episodes.start(0, workload_seed(options, self.np_random))
            self._done = False
            self._steps, self._limit = 0, step_limit(self.spec)
            self.episodes.todo[0] = STEP
            if self.render_mode is not None:
                self._record(restart=True)
            return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action, see the class.

        Raises:
            gymnasium.error.ResetNeeded: the episode has ended or was never started.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            ConfigError: the action is not in the action space; nothing has changed.
        """
        with self.episodes.lock:
            if self._done:
                raise not_running(self.episodes.closed)
            episodes = self.episodes
            self._reader.read(action)
            episodes.run()
            outcome = int(episodes.outcomes[0])
            observation = episodes.observations[0].copy() if self._flat else self._observation()
            info = self._info()
            self._steps += 1
            if outcome != RUNNING or self._steps == self._limit:
                self._done = outcome != RUNNING
                info["metrics"] = episodes.metrics(0)
                info["completed"] = outcome == TERMINATED
            if self.render_mode is not None:
                self._record()
            return observation, float(episodes.rewards[0]), outcome == TERMINATED, outcome == TRUNCATED, info

    def close(self) -> None:
        """Free the memory of the environment. Saved states, results and returned arrays stay valid."""
        with self.episodes.lock:
            self._done = True
            self.episodes.close()
        super().close()

    def get_state(self) -> EnvState:
        """Return the state of the environment, for :meth:`set_state` of this environment or one like it.

        Raises:
            gymnasium.error.ResetNeeded: there has been no reset.
        """
        with self.episodes.lock:
            episode = self.episodes.save(0)
            return EnvState(self.config, episode, self.np_random.bit_generator.state, self._done, self._steps)

    def set_state(self, state: EnvState) -> tuple[Any, dict[str, Any]]:
        """Restore a state.

        Args:
            state: from :meth:`get_state` of an environment with the same arguments, or one of a vector environment's.

        Returns:
            Observation and information of that moment, in the form that :meth:`reset` returns.

        Raises:
            ConfigError: the state is invalid or damaged, or belongs to other arguments; nothing has changed.
        """
        with self.episodes.lock:
            EnvState.check(state, self.config)
            EnvState.check_rest(state)
            self.episodes.check_state(0, state.episode)
            self.episodes.restore(0, state.episode)
            self.np_random.bit_generator.state = state.generator
            self._done = state.ended
            self._steps, self._limit = state.steps, step_limit(self.spec)
            self.episodes.todo[0] = STEP
            if self.render_mode is not None:
                self._record(restart=True)
            return self._observation(), self._info()

    def _observation(self) -> Any:
        episodes = self.episodes
        return spaces.present(
            self.config.observation, self._parts, episodes.observations[0], episodes.masks[0]
        )

    def _info(self) -> dict[str, Any]:
        episodes = self.episodes
        mask = episodes.masks[0]
        return {
            "action_mask": sample_mask(self.action_space, mask),
            "reward_terms": episodes.terms[0].copy(),
            "ignored": int(episodes.ignored[0]),
            "time": float(episodes.times[0]),
        }

    # ------------------------------------------------------------ masks and results

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask as sb3-contrib reads it: bool, Discrete (n,), MultiBinary (2n,), MultiDiscrete (Σ nvec,).

        All False before the first reset.
        """
        return self.episodes.masks[0].astype(bool)

    def sample_mask(self) -> Any:
        """Return the mask in the form that ``action_space.sample(mask=...)`` takes, as in ``info["action_mask"]``."""
        return sample_mask(self.action_space, self.episodes.masks[0])

    def result(self) -> SimulationResult:
        """Return the records of the current episode, in the form that :func:`kvgym.simulate` returns.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        return self.episodes.result(0)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the current episode so far by name, see :func:`kvgym.compute_metrics`.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        return compute_metrics(self.result())

    # ------------------------------------------------------------ rendering

    @property
    def caption(self) -> str:
        """Scenario and kind of action, for the title of a picture."""
        return f"{self.episodes.scenario.name}, action {self.config.action}"

    def recording(self) -> Any:
        """Return a :class:`~kvgym.envs.rendering.recorder.WorkerRecorder` of the current episode, from now on."""
        from kvgym.envs.rendering.recorder import WorkerRecorder

        if self.tables.table is None:
            raise gym.error.ResetNeeded("there is nothing to record yet; call reset() first")
        return WorkerRecorder(self.tables)

    def scene(self) -> Any:
        """Return what is drawn of the current moment; environments without a render mode record nothing.

        Raises:
            gymnasium.error.ResetNeeded: nothing has been recorded.
        """
        if self._recorder is None:
            raise gym.error.ResetNeeded("there is nothing to render yet; call reset() first")
        return self._recorder.scene()

    def players(self) -> tuple[str, ...]:
        """Return the names of players that need no training; greedy admits what fits and evicts only if it must."""
        return ("greedy", RANDOM)

    def player(self, name: str, seed: int) -> Act:
        """Return the function of a player that chooses actions, see :meth:`players`.

        Raises:
            UnknownNameError: there is no player of this name.
        """
        if name == "greedy":
            return lambda observation, mask: greedy_action(self.config, mask)
        if name == RANDOM:
            return self.random_player(seed)
        raise UnknownNameError("policy", name, self.players())

    def _record(self, *, restart: bool = False) -> None:
        if restart or self._recorder is None:
            self._recorder = self.recording()
        self._recorder.take()
