"""The Gymnasium environment in which the agent routes the requests of a cluster."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.closing import step_limit
from kvgym.envs.clusters.environment import ClusterEnv, compiled_policy
from kvgym.envs.recordable import RANDOM, Act
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.observer import Observer, feature_names, observation_space, shortest_queue
from kvgym.envs.routing.players import router_player
from kvgym.envs.routing.state import RoutingState, check_packed, pack, unpack
from kvgym.envs.scheduling.state import frozen
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.errors import ConfigError, LivelockError, UnknownNameError, shown
from kvgym.policies.routing import DEFAULT_ROUTER, ROUTERS, make_router
from kvgym.policies.runner import check_needs
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.view import ClusterView
from kvgym.utils.checks import check_array, check_parts, check_seed
from kvgym.workloads.table import RequestTable

_FLAGS: dict[str, Any] = {
    "_over": bool,
    "_done": bool,
    "_livelock": bool,
    "_owed": (np.ndarray, type(None)),
    "request": int,
}
"""Attributes that are part of a state, and their types."""


class RoutingEnv(ClusterEnv):
    """``kvgym/Route-v0``: routing requests to workers, each with its scheduler and KV cache.

    Description:
        Requests arrive over time. Each is sent to a worker at once and stays there; with separate prefill and decode
        workers it is routed again after its prefill. The agent chooses the worker; on every worker a built-in
        scheduler (``policy``) decides which requests to admit and which to evict. The dynamics are those of
        :func:`kvgym.simulate` with a router.

    Action Space:
        ``Discrete(r)`` over the r workers. Requests with a single candidate are routed without a step. If the action
        is outside the mask, the request goes to the candidate with the fewest unfinished requests (ties: the lowest
        index), and ``info["ignored"]`` is 1. An action outside the space is an error.

    Observation Space:
        float32 in [0, 1]; :mod:`kvgym.envs.routing.features` describes every feature:

        - ``system`` (5,): requests in the system, arrival rate, time
        - ``request`` (12,): the request to be routed, with the revealed ``information``
        - ``workers`` (11 r,): 11 features of each worker
        - ``caches`` (5 r,): with the argument ``caches``, 5 more features of each worker: what it has of the request,
          which is known late by the system's ``cache_staleness``, and how fast it is

        ``observation="flat"`` concatenates them in this order, ``"dict"`` keeps the keys, and ``"rllib"`` has the
        flat observation and a float32 ``action_mask``.

    Rewards:
        The terms of :class:`~kvgym.envs.scheduling.environment.ServingEnv`, weighted and divided by ``reward_scale``
        (default: requests per episode), from one choice to the next: ``latency`` = - time integral of the requests in
        the system, ``ttft`` = - TTFT of requests that finish, ``tokens`` delivered, ``goodput`` = finished requests
        that met their SLOs, ``evictions`` = - KV tokens discarded. The undiscounted return of the latency term is
        minus the mean end-to-end latency. After the last choice the cluster runs to its end, which the last reward
        covers; the first reward includes the time before the first choice.

    Starting State:
        Empty workers at the first arrival. ``reset(seed=s)`` seeds the generator that draws the workload seed of
        each episode; ``reset(options={"workload_seed": k})`` uses the requests, and the schedulers' random numbers,
        of seed k.

    Episode End:
        Terminated when every request has finished. Truncated at the horizon, or when the schedulers make no
        progress (a livelock); by ``gymnasium.make`` also after ``max_episode_steps``.

    Information:
        Every step: ``action_mask`` int8, ``reward_terms`` float64 (5,) in the order of :attr:`reward_terms`,
        ``ignored`` int, ``time`` s, ``request`` int, the request to be routed (-1 at the end). On the last
        step also ``metrics``, float64, in the order of :attr:`metric_names`, and ``completed``, whether every request
        has finished. The step at the id's ``max_episode_steps`` counts as a last step. If a wrapper or a custom limit
        ends the episode, call :meth:`metrics` for the metrics so far.

    Arguments:
        Keyword arguments are the fields of :class:`~kvgym.envs.routing.config.RoutingConfig`, all JSON-able, and
        ``render_mode``.

    Attributes:
        config: the configuration.
        scenario: the cluster scenario it describes, for :func:`kvgym.compare`.
        system: the cluster, with the horizon of the episodes.
        workload: the source of requests.
    """

    reward_terms: ClassVar[tuple[str, ...]] = REWARD_TERMS

    def __init__(self, *, render_mode: str | None = None, compiled: bool = True, **arguments: Any) -> None:
        """Create the environment; see :class:`~kvgym.envs.routing.config.RoutingConfig` for the arguments."""
        self.set_render_mode(render_mode)
        self.config = RoutingConfig.of(**arguments)
        self._compiled = compiled
        self._policy = compiled_policy(self.config.policy)
        self.scenario = self.config.make_scenario()
        self.workload = self.scenario.make_workload()
        first = self.workload.sample(0)
        self.config.check_information(first)
        check_needs(self._policy, first)
        self.system = self.config.make_system(self.scenario, self.workload, len(first))
        settings = self.config.make_settings(self.system, len(first), self.workload.mean_rate)
        self._prefill, self._count = self.system.num_prefill_workers, len(self.system.all_workers)
        stages = self._prefill, self._count - self._prefill
        self._has_forced_stage = 1 in stages  # a stage with a single worker
        self.observer = Observer(self.config, settings, self._count)
        self._owed: Any = None
        self.request = -1
        self._ready(spaces.Discrete(self._count), observation_space(self.config, self._count))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each number of the flat observation."""
        return feature_names(self.config, self._count)

    # ------------------------------------------------------------ episodes

    def _simulate(self, table: RequestTable, needs: frozenset[str], seed: int) -> ClusterSimulation:
        return ClusterSimulation(
            self.system, table, None, needs=needs, policy_name=self._policy.info.name, compiled=self._compiled
        )

    def _begin(self) -> None:
        self._continue(None)
        # If a stage has one worker, time may pass before the first choice; its reward belongs to the first step.
        self._owed = self.observer.episode.copy() if self._has_forced_stage else None
        self.observer.episode["terms"], self.observer.episode["reward"] = 0.0, 0.0

    def _continue(self, worker: int | None) -> None:
        """Send the pending request to a worker (None: there is none yet) and run to the next choice."""
        simulation = self.simulation
        assert simulation is not None
        # A recording needs the moments in between: after the last choice, a single step runs to the end.
        budget = None if self._recording is None else self._count
        try:
            if worker is None:
                self._over = simulation.run(budget=budget)
            else:
                self._over = simulation.assign(worker, budget=budget)
            while not self._over:
                if simulation.pending is None:
                    self._recording.take()
                    self._over = simulation.run(budget=budget)
                elif self._has_forced_stage and len(simulation.cluster_view.candidates) == 1:
                    self._over = simulation.assign(simulation.cluster_view.candidates[0], budget=budget)
                else:
                    break
        except LivelockError:
            self._over = self._livelock = True
        self.request = self.observer.update(self._over)

    def advance(self, action: NDArray[np.float64]) -> tuple[int, int]:
        """Send the pending request to a worker, see :class:`~kvgym.envs.clusters.environment.ClusterEnv`."""
        assert self.simulation is not None
        worker, ignored = int(action[0]), 0
        if not self._over:  # an episode without any choice ends with its first step
            if not self.observer.mask[worker]:
                worker, ignored = shortest_queue(self.view), 1
            self._continue(worker)
        if self._owed is not None:
            for name in ("terms", "reward"):
                self.observer.episode[name] += self._owed[name]
            self._owed = None
        return self._outcome(), ignored

    # ------------------------------------------------------------ saved states

    def get_state(self) -> RoutingState:
        """Return the state of the environment, for :meth:`set_state` of this environment or one like it.

        Raises:
            gymnasium.error.ResetNeeded: there has been no reset.
        """
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return RoutingState(
            self.config,
            self._seed,
            frozen(pack(self.simulation.changing() + self.observer.changing())),
            self.np_random.bit_generator.state,
            {name: getattr(self, name) for name in _FLAGS},
            self._done,
            self._steps,
        )

    def set_state(self, state: RoutingState) -> tuple[Any, dict[str, Any]]:
        """Restore a state.

        Args:
            state: from :meth:`get_state` of an environment with the same arguments.

        Returns:
            Observation and information of that moment, in the form that :meth:`reset` returns.

        Raises:
            ConfigError: the state is invalid or damaged, or belongs to other arguments; the environment may then be
                at the beginning of the state's episode.
        """
        self.check_state(state)
        if self.simulation is None or self._seed != state.seed:
            self.start(state.seed)
        assert self.simulation is not None
        check_packed(state.memory, self.simulation.changing() + self.observer.changing())
        state.check_seal()
        if not -1 <= state.flags["request"] < len(self.simulation.table):
            raise ConfigError(f"the state is damaged: no request {shown(state.flags['request'])}")
        unpack(state.memory, self.simulation.changing() + self.observer.changing())
        self.np_random.bit_generator.state = state.generator
        for name, value in state.flags.items():
            setattr(self, name, value)
        self._steps, self._limit = state.steps, step_limit(self.spec)
        self._recording = None
        return self.observer.present(), self._info(0)

    def check_state(self, state: Any) -> None:
        """Check that ``state`` belongs to an environment with the same arguments; its tables are not checked.

        Raises:
            ConfigError: it is not such a state, or damaged.
        """
        RoutingState.check(state, self.config)
        RoutingState.check_rest(state)
        check_seed(state.seed, "seed of the state")
        check_parts(state.flags, _FLAGS, "the state")
        if state.flags["_owed"] is not None:
            check_array(state.flags["_owed"], self.observer.episode, "the state: _owed")

    def _info(self, ignored: int) -> dict[str, Any]:
        return {**super()._info(ignored), "request": self.request}

    # ------------------------------------------------------------ masks and results

    @property
    def view(self) -> ClusterView:
        """The cluster as a router observes it.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return self.simulation.cluster_view

    # ------------------------------------------------------------ rendering

    @property
    def caption(self) -> str:
        """Scenario, workers and their scheduler, for the title of a picture."""
        apart = f"{self._prefill} prefill and {self._count - self._prefill} decode"
        workers = f"{apart if self._prefill else self._count} workers"
        return f"{self.scenario.name}, {workers} under {self._policy.info.name}"

    def _make_recorder(self) -> Any:
        from kvgym.envs.rendering.recorder import ClusterRecorder

        return ClusterRecorder(self.simulation, lambda: self.observer.choice(self.request))

    def players(self) -> tuple[str, ...]:
        """Return the names of players that need no training: the registered routers, and random inside the mask."""
        return (DEFAULT_ROUTER, *(name for name in ROUTERS if name != DEFAULT_ROUTER), RANDOM)

    def player(self, name: str, seed: int) -> Act:
        """Return the function of a player that chooses actions: one of :meth:`players`, or ``"router:key=value"``.

        Raises:
            UnknownNameError: there is no player of this name.
            ConfigError: an unknown option or a value out of range.
        """
        if name == RANDOM:
            return self.random_player(seed)
        try:
            router = make_router(name)
        except UnknownNameError:
            raise UnknownNameError("policy", name, self.players()) from None
        return router_player(self, router, seed=seed)
