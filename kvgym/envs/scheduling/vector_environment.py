"""The native vector environment: one compiled call steps N environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from kvgym.envs.closing import not_running
from kvgym.envs.rebuilt import take_own
from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.actions.reading import ActionReader, sample_mask
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.drawing import reset_options
from kvgym.envs.scheduling.episodes import STEP, TERMINATED, TRUNCATED, Episodes
from kvgym.envs.scheduling.state import EnvState, SavedState
from kvgym.errors import ConfigError, shown
from kvgym.metrics.catalogue import STANDARD_METRICS
from kvgym.utils.checks import as_array, check_array, check_parts, check_seed, whole_number
from kvgym.workloads.table import RequestTable

OWN = ("_generators", "action_space", "spec")
"""Attributes that copies take over, in addition to the arguments and the states."""


class ServingVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments :class:`~kvgym.envs.scheduling.environment.ServingEnv`, bit-equal to N separate ones.

    Args:
        num_envs: N.
        autoreset_mode: Gymnasium's modes: NEXT_STEP (default; after an end the next step ignores the action
            and returns the first observation, reward 0), SAME_STEP (the step that ends an episode returns
            the first observation of the next; the last one is in ``info["final_obs"]``, its information in
            ``info["final_info"]``), DISABLED (reset by ``reset(options={"reset_mask": ...})``).
        max_episode_steps: steps after which an episode is truncated, as by ``TimeLimit``; None or -1 for no limit.
            ``gymnasium.make_vec`` passes the limit of the id by default.
        render_mode: not supported; render a single environment.
        compiled: False runs plain Python.
        group_size: g, a divisor of N; environments 0 to g - 1, g to 2g - 1, … are groups, and the k-th episodes of a
            group have the same requests. Differences between their returns are then due to the actions.
        num_threads: threads that step the environments; the results are bit-equal for any number. Worthwhile with
            long steps or hundreds of environments, and a free core for each thread, because the work is distributed at
            every step. While they step, one of them draws the requests of the episodes that begin with NEXT_STEP;
            metrics are computed in the calling thread.
        stagger: steps over which the ends of the first episodes after a reset are spread, so that later ones do not
            come together: the first episode of environment i is truncated after (i + 1) / N of them; 0 = it is not.
        **arguments: fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`.

    Per-step information: the arrays of the scalar environment's info with a leading axis, and ``_key``
    presence masks. ``info["metrics"]`` and ``info["completed"]`` are present for episodes that end, at any limit.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    metric_names: ClassVar[tuple[str, ...]] = STANDARD_METRICS
    saved: ClassVar[type[SavedState]] = EnvState

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        compiled: bool = True,
        group_size: int = 1,
        num_threads: int = 1,
        stagger: int = 0,
        **arguments: Any,
    ) -> None:
        num_envs = whole_number(num_envs, "num_envs", "a whole number ≥ 1")
        if render_mode is not None:
            raise ConfigError(
                "the vector environment does not render; use render_mode with a single environment"
            )
        unlimited = max_episode_steps is None or (
            isinstance(max_episode_steps, int | np.integer) and max_episode_steps == -1
        )
        num_threads = whole_number(num_threads, "num_threads", "a whole number ≥ 1")
        self.group_size = whole_number(group_size, "group_size", "a whole number ≥ 1")
        if num_envs % self.group_size:
            raise ConfigError(f"group_size = {group_size} does not divide num_envs = {num_envs}")
        self.stagger = whole_number(stagger, "stagger", "a number of steps ≥ 0", 0)
        self.num_envs = num_envs
        self.num_threads = num_threads
        self.render_mode = None
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            raise ConfigError(
                f"autoreset_mode = {shown(autoreset_mode)}; expected {', '.join(m.value for m in AutoresetMode)}"
            ) from None
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        self.max_episode_steps = (
            None
            if unlimited
            else whole_number(
                max_episode_steps, "max_episode_steps", "a whole number ≥ 1, or -1 for no limit"
            )
        )
        self._set_up(arguments, compiled)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._reader = ActionReader(
            self.single_action_space,
            self.episodes.actions,
            self.episodes if isinstance(self.episodes, Episodes) else None,
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._generators: list[np.random.Generator] = []
        self._started = False
        self._ended = np.ones(num_envs, bool)
        self._steps = np.zeros(num_envs, np.int64)
        self._limit = np.iinfo(np.int64).max if self.max_episode_steps is None else self.max_episode_steps
        self._limits = np.full(num_envs, self._limit)
        groups = np.arange(num_envs) // self.group_size + 1
        self._first_limits = -(-groups * self.stagger // groups[-1])

    def _set_up(self, arguments: dict[str, Any], compiled: bool) -> None:
        """Create the configuration, the episodes and the spaces of one environment."""
        self.config: Any = EnvConfig.of(**arguments)
        self.episodes: Any = Episodes(
            self.config, self.num_envs, compiled=compiled, threads=min(self.num_threads, self.num_envs)
        )
        self.single_action_space = self.episodes.space
        self.reward_terms = self.config.reward_terms
        self.single_observation_space = spaces.observation_space(self.config)
        self._parts = spaces.parts(self.config)

    @property
    def load(self) -> tuple[float, float]:
        """Range of the factor on arrival rates of future episodes, see :class:`EnvConfig`; can be set."""
        return self.episodes.load

    @load.setter
    def load(self, value: tuple[float, float]) -> None:
        self.config = EnvConfig.of(**{**self.config.model_dump(), "load": np.asarray(value).tolist()})
        self.episodes.load = self.config.load

    @property
    def tables(self) -> tuple[RequestTable, ...]:
        """Requests of the current episodes, true output lengths included: to fit a network to, not for a policy.

        Raises:
            gymnasium.error.ResetNeeded: there are no episodes yet.
        """
        tables = tuple(slot.table for slot in self.episodes.slots if slot.table is not None)
        if len(tables) < self.num_envs:
            raise not_running(False)
        return tables

    # ------------------------------------------------------------ resetting

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes.

        Args:
            seed: s seeds environment i with s + i; or one seed per environment; None keeps the generators. A group has
                the seed of its first environment.
            options: ``reset_mask``, bool (N,), restarts only these; ``workload_seed``, an integer or one per
                environment, uses the requests of that seed.

        Raises:
            ConfigError: an unknown option, a mask of another form, or a seed that is not a whole number ≥ 0.
        """
        with self.episodes.lock:
            given = reset_options(options, "reset_mask", "workload_seed")
            mask = as_array(given.get("reset_mask", np.ones(self.num_envs, bool)), "reset_mask")
            if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
                raise ConfigError(f"reset_mask needs {self.num_envs} booleans, at least one of them True")
            self._seed(seed, mask)
            self._started = True
            self.episodes.renew_observations()
            if not mask.all():
                self.episodes.observe(~mask)
            chosen = np.flatnonzero(mask).tolist()
            self._prepare(chosen, given.get("workload_seed"))
            self._start(chosen)
            self._ended[mask] = False
            if self.stagger:
                self._limits[mask] = np.minimum(self._limit, self._first_limits)[mask]
            return self._observation(), self._only(self._info(), mask)

    def _seed(self, seed: int | Sequence[int | None] | None, mask: NDArray[np.bool_]) -> None:
        each = isinstance(seed, Iterable) or seed is None
        seeds = self._seeds_of(seed, "seed") if each else [check_seed(seed) + i for i in range(self.num_envs)]
        if not self._generators:
            self._generators = [gym.utils.seeding.np_random(None)[0] for _ in range(self.num_envs)]
            for k, generator in enumerate(self._generators):
                generator.bit_generator.state = self._generators[self._first_of(k)].bit_generator.state
        for i in np.flatnonzero(mask):
            given = seeds[self._first_of(int(i))]
            if given is not None:
                self._generators[i], _ = gym.utils.seeding.np_random(given)

    def _first_of(self, i: int) -> int:
        """Return the first environment of the group of environment ``i``."""
        return i - i % self.group_size

    def _seeds_of(self, given: Any, what: str) -> list[int | None]:
        """Return one seed for each environment, from one for all or one for each; None where none is given."""
        several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
        seeds = list(given) if several else [given] * self.num_envs
        if len(seeds) != self.num_envs:
            raise ConfigError(f"{what}: {len(seeds)} seeds for {self.num_envs} environments")
        return [None if one is None else check_seed(one, what) for one in seeds]

    def _prepare(self, indices: list[int], workload_seeds: Any = None) -> None:
        """Draw the requests of new episodes of the given environments."""
        seeds = self._seeds_of(workload_seeds, "workload_seed")
        for i in indices:
            drawn, fixed = int(self._generators[i].integers(2**31)), seeds[i]
            self.episodes.prepare(i, drawn if fixed is None else fixed)

    def _start(self, indices: list[int]) -> None:
        """Start the prepared episodes of the given environments."""
        self.episodes.begin(indices)
        self._steps[indices] = 0
        self._limits[indices] = self._limit

    # ------------------------------------------------------------ stepping

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment; the class describes what happens when an episode ends.

        Args:
            actions: (N,) for Discrete, (N, a) otherwise.

        Raises:
            gymnasium.error.ResetNeeded: nothing was reset yet, or an ended environment with autoreset disabled.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            ConfigError: an action is not in the action space; nothing has changed.
        """
        with self.episodes.lock:
            if not self._generators or not self._started:
                raise not_running(self.closed)
            episodes, mode = self.episodes, self.autoreset_mode
            self._reader.read(actions)
            restarting = self._ended
            begun = np.flatnonzero(restarting).tolist() if np.count_nonzero(restarting) else []
            if begun and mode == AutoresetMode.DISABLED:
                raise gym.error.ResetNeeded(f"environments {begun} have ended; reset them with a reset_mask")
            episodes.renew_observations()
            episodes.todo[:] = np.where(restarting, 0, STEP)
            episodes.run(
                partial(self._prepare, begun) if begun else None
            )  # may refuse an action, first of all
            self._steps += 1
            if begun:
                self._start(begun)
            rewards = episodes.rewards.copy()
            terminated = episodes.outcomes == TERMINATED
            truncated = episodes.outcomes == TRUNCATED
            if begun:
                rewards[restarting] = 0.0
                terminated[restarting] = truncated[restarting] = False
            if self.max_episode_steps is not None or self.stagger:
                truncated |= self._steps >= self._limits
            ended = terminated | truncated
            info = self._info(ended=ended)
            if mode == AutoresetMode.SAME_STEP and np.count_nonzero(ended):
                info = self._restart_now(ended, info)
                self._ended[:] = False
            else:
                self._ended = ended
            return self._observation(), rewards, terminated, truncated, info

    def _restart_now(self, ended: NDArray[np.bool_], last: dict[str, Any]) -> dict[str, Any]:
        """Start new episodes within the step; return the information of the step."""
        final = self._observation()
        observations, chosen = np.full(self.num_envs, None, object), np.flatnonzero(ended).tolist()
        for i in chosen:
            row = {k: v[i].copy() for k, v in final.items()} if isinstance(final, dict) else final[i].copy()
            observations[i] = row  # a copy, because the next episode overwrites it
        self._prepare(chosen)
        self._start(chosen)
        info = self._info()
        info["final_obs"], info["_final_obs"] = observations, ended.copy()
        info["final_info"], info["_final_info"] = self._only(last, ended), ended.copy()
        return info

    @staticmethod
    def _only(info: dict[str, Any], rows: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the information of some rows, zero elsewhere."""
        out: dict[str, Any] = {}
        for key, value in info.items():
            if key.startswith("_"):
                continue
            there = info[f"_{key}"] & rows
            array = np.zeros_like(value) if value.dtype != object else np.full_like(value, None)
            array[there] = value[there]
            out[key], out[f"_{key}"] = array, there
        return out

    # ------------------------------------------------------------ saved states

    def get_state(self) -> tuple[Any, ...]:
        """Return the state of every environment.

        Raises:
            gymnasium.error.ResetNeeded: there has been no reset.
        """
        with self.episodes.lock:
            self.episodes.renew_observations()
            self.episodes.observe(np.ones(self.num_envs, bool))
            return tuple(self._state_of(i) for i in range(self.num_envs))

    def _state_of(self, i: int) -> Any:
        return EnvState(
            self.config,
            self.episodes.save(i),
            self._generators[i].bit_generator.state,
            bool(self._ended[i]),
            int(self._steps[i]),
        )

    def set_state(self, states: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
        """Restore one state per environment, e.g. a single environment's in all: ``[env.get_state()] * N``.

        Args:
            states: one per environment, from any environments with the same arguments.

        Returns:
            Observations and information of these moments, in the form that :meth:`reset` returns.

        Raises:
            ConfigError: the number of states is wrong, or one is invalid, damaged or from other arguments; nothing
                has changed.
        """
        with self.episodes.lock:
            if not isinstance(states, Sequence) or len(states) != self.num_envs:
                given = f"{len(states)} states" if isinstance(states, Sequence) else shown(states)
                raise ConfigError(
                    f"{given} for {self.num_envs} environments; expected a sequence with one for each"
                )
            for i, state in enumerate(states):
                self.saved.check(state, self.config)
                self.saved.check_rest(state)
                self._check_state(i, state)
            self._seed(None, self._ended)  # makes generators, if there are none yet
            self.episodes.renew_observations()
            for i, state in enumerate(states):
                self._restore(i, state)
                self._generators[i].bit_generator.state = state.generator
                self._ended[i], self._steps[i] = state.ended, state.steps
            self._limits[:] = self._limit
            self._started = True
            return self._observation(), self._info()

    def _check_state(self, i: int, state: Any) -> None:
        self.episodes.check_state(i, state.episode)

    def _restore(self, i: int, state: Any) -> None:
        self.episodes.restore(i, state.episode)

    # ------------------------------------------------------------ observations and information

    def _observation(self) -> Any:
        observations, masks = self.episodes.observations, self.episodes.masks
        return spaces.present(self.config.observation, self._parts, observations, masks, fresh=True)

    def _every_step(self) -> dict[str, Any]:
        """Return the information that every step has for every environment."""
        episodes = self.episodes
        return {
            "action_mask": sample_mask(self.single_action_space, episodes.masks),
            "reward_terms": episodes.terms.copy(),
            "ignored": episodes.ignored.copy(),
            "time": episodes.times.copy(),
        }

    def _info(self, ended: NDArray[np.bool_] | None = None) -> dict[str, Any]:
        episodes = self.episodes
        info = self._every_step()
        info.update(zip([f"_{key}" for key in info], np.ones((len(info), self.num_envs), bool), strict=True))
        if ended is not None and np.count_nonzero(ended):
            metrics = np.zeros((self.num_envs, len(self.metric_names)))
            for i in np.flatnonzero(ended):
                metrics[i] = episodes.metrics(int(i))
            info["metrics"], info["_metrics"] = metrics, ended.copy()
            info["completed"], info["_completed"] = (episodes.outcomes == TERMINATED) & ended, ended.copy()
        return info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the masks as sb3-contrib reads them, bool (N, K)."""
        return self.episodes.masks.astype(bool)

    def sample_mask(self) -> tuple[NDArray[np.int8], ...] | None:
        """Return the masks in the form that ``action_space.sample(mask=...)`` takes.

        None unless actions are Discrete, because Gymnasium samples no other batches with a mask.
        ``info["action_mask"]`` has the masks of the single environments, for ``single_action_space.sample(mask=...)``.
        """
        if not isinstance(self.single_action_space, gym.spaces.Discrete):
            return None
        return tuple(sample_mask(self.single_action_space, self.episodes.masks))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration, the generators and, after a reset, the states."""
        try:
            states = self.get_state()
        except gym.error.ResetNeeded:
            states = None
        return {
            "arguments": {
                "num_envs": self.num_envs,
                "autoreset_mode": self.autoreset_mode,
                "max_episode_steps": self.max_episode_steps,
                "compiled": self.episodes.compiled,
                "group_size": self.group_size,
                "num_threads": self.num_threads,
                **({"stagger": self.stagger} if self.stagger else {}),
                **self.config.model_dump(),
            },
            "own": {name: getattr(self, name) for name in OWN},
            "states": states,
            **({"limits": self._limits.copy()} if self.stagger else {}),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the environment in its own memory.

        Raises:
            ConfigError: the pickled state is damaged.
        """
        parts = {"arguments": dict, "own": dict, "states": (tuple, type(None))}
        limits = {"limits": np.ndarray} if isinstance(state, dict) and "limits" in state else {}
        check_parts(state, {**parts, **limits}, "the saved environment")
        self.__init__(**state["arguments"])  # type: ignore[misc]
        take_own(self, state["own"], OWN)
        if state["states"] is not None:
            self.set_state(state["states"])
        if limits:
            self._limits[:] = check_array(state["limits"], self._limits, "limits of the saved environment")

    def close_extras(self, **kwargs: Any) -> None:
        """Free the memory of all environments. Saved states and returned arrays stay valid."""
        if hasattr(self, "episodes"):  # a constructor may have failed
            with self.episodes.lock:
                self._started = False
                self.episodes.close()
