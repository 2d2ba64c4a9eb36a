"""The Gymnasium environment in which the agent scales a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.envs.closing import Closed, not_running, step_limit
from kvgym.envs.clusters.environment import ClusterEnv, compiled_policy
from kvgym.envs.recordable import RANDOM, Act
from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scaling.observer import (
    SCALING_TERMS,
    ScalingObserver,
    action_space,
    feature_names,
    observation_space,
)
from kvgym.envs.scaling.players import autoscaler_player
from kvgym.envs.scaling.state import ScalingState, check_actions
from kvgym.envs.scheduling.state import frozen
from kvgym.errors import LivelockError, UnknownNameError
from kvgym.policies.runner import Renewal, check_needs, scaling_of
from kvgym.policies.scaling import AUTOSCALERS, Autoscaler, AutoscalerInfo, make_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.utils.checks import check_seed
from kvgym.utils.seeding import stream_seed
from kvgym.workloads.table import RequestTable

_PAUSES = 1_000
"""Decisions of workers between two moments of a recording."""


class _Outside(Autoscaler):
    """Stands for the agent: says when it is asked, and what is observed."""

    def __init__(self, needs: frozenset[str] = frozenset()) -> None:
        self.info = AutoscalerInfo(  # type: ignore[misc]
            name="agent", summary="the actions of the environment", needs=needs
        )

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the present targets; the run pauses instead of asking."""
        return [pool.target for pool in view.pools]


class ScalingEnv(ClusterEnv):
    """``kvgym/Scale-v0``: how many workers each pool of a fleet has.

    Description:
        Requests arrive over hours, at a rate that changes. Workers can be started, which takes their start-up time, and
        stopped, which takes until they have served what they have; they are billed from the order to start until they
        are off. At every control interval the agent says how many workers each pool should have. A router and a
        scheduler on each worker (``policy``) do the rest. The dynamics are those of :func:`kvgym.simulate` with an
        autoscaler.

    Action Space:
        ``MultiDiscrete`` with a number for each pool. With ``action="change"``, 0 … 2 m stand for a change of its
        target by -m … m workers; with ``action="target"``, a number is the target, 0 … most. Targets outside of
        least … most are masked, and those that need more starts than the budget allows, even with the other pools at
        their least sizes. What does not fit now starts when GPUs are free. A masked number is replaced by
        the nearest valid one, and ``info["ignored"]`` is 1. An action outside the space is an error.

    Observation Space:
        float32 in [0, 1]; :mod:`kvgym.policies.fleet_features` describes every feature:

        - ``fleet`` (10,): arrival rates, lengths, first tokens, budget, time of day
        - ``pools`` (15 p,): 15 features of each of the p pools

        ``observation="flat"`` concatenates them in this order, ``"dict"`` keeps the keys, and ``"rllib"`` has the
        flat observation and a float32 ``action_mask``.

    Rewards:
        Minus the cost from one action to the next, in GPU-hours, divided by ``reward_scale``: ``workers`` = billed time
        by the prices of the pools, ``missed`` = the fleet's penalty for every request that misses one of its targets,
        when that is certain. Requests that have not finished at the end count as missed. The undiscounted return is
        minus the metric ``fleet_cost``, whatever the interval.

    Starting State:
        The workers with which the pools begin, without requests. An episode is a random stretch of the load (argument
        ``window``). ``reset(seed=s)`` seeds the generator that draws the workload seed of each episode;
        ``reset(options={"workload_seed": k})`` uses the requests, start-up times and random numbers of seed k.

    Episode End:
        Terminated when every request has finished. Truncated at the horizon, or when the schedulers make no
        progress (a livelock); by ``gymnasium.make`` also after ``max_episode_steps``. Workers are billed until then.

    Information:
        Every step: ``action_mask``, a tuple of int8 arrays, ``reward_terms`` float64 (2,) in the order of
        :attr:`reward_terms`, ``ignored`` int, ``time`` s. On the last step also ``metrics``, float64, in the order of
        :attr:`metric_names`, and ``completed``, whether every request finished. If another limit of steps ends the
        episode, call :meth:`metrics` for the metrics so far.

    Arguments:
        Keyword arguments are the fields of :class:`~kvgym.envs.scaling.config.ScalingConfig`, all JSON-able, and
        ``render_mode``.

    Attributes:
        config: the configuration.
        scenario: the scenario of the fleet that it describes, for :func:`kvgym.compare`.
        system: the fleet, with the horizon of the episodes.
        workload: the source of requests.
    """

    reward_terms: ClassVar[tuple[str, ...]] = SCALING_TERMS

    def __init__(self, *, render_mode: str | None = None, compiled: bool = True, **arguments: Any) -> None:
        """Create the environment; see :class:`~kvgym.envs.scaling.config.ScalingConfig` for the arguments."""
        self.set_render_mode(render_mode)
        self.config = ScalingConfig.of(**arguments)
        self._compiled = compiled
        self.scenario = self.config.make_scenario()
        self._policy = compiled_policy(self.config.policy or str(self.scenario.policies[0]))
        self._router = self.config.make_router(self.scenario)
        self.workload = self.scenario.make_workload()
        first = self.workload.sample(0)
        check_needs(self._policy, first)
        self.system = self.config.make_system(self.scenario, self.workload, len(first))
        fleet = self.system.fleet
        assert fleet is not None
        self.fleet = fleet
        self.observer = ScalingObserver(self.config, fleet, self.workload)
        self._actions: list[list[int]] = []
        self._begins = 0.0
        self._view: FleetView | None = None
        self._outside = _Outside()
        self._ready(action_space(self.config, fleet), observation_space(self.config, fleet))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each number of the flat observation."""
        return feature_names(len(self.fleet.pools))

    # ------------------------------------------------------------ episodes

    def _requests(self, seed: int) -> RequestTable:
        table, self._begins = self.config.stretch(super()._requests(seed), seed)
        return table

    def _simulate(self, table: RequestTable, needs: frozenset[str], seed: int) -> ClusterSimulation:
        self._router.reset(len(self.system.all_workers), stream_seed(seed, "routing"))
        renewal = Renewal(self.system, table, seed, needs, tuple(self._policies))
        scaling = replace(scaling_of(self.fleet, self._outside, seed, renewal), pauses=True)
        return ClusterSimulation(
            self.system, table, self._router, needs=needs, policy_name=self._policy.info.name, compiled=self._compiled,
            scaling=scaling,
        )  # fmt: skip

    def _begin(self) -> None:
        assert self.simulation is not None
        self.observer.attach(self.simulation, self._begins)
        self._actions = []
        self._continue(None)

    def _continue(self, targets: Sequence[int] | None) -> None:
        """Set the targets (None: there are none yet) and run to the next question."""
        simulation = self.simulation
        assert simulation is not None
        changing = simulation.changing_fleet
        assert changing is not None
        budget = None if self._recording is None else _PAUSES
        try:
            if targets is not None:
                changing.follow_targets(self.view, targets)
            self._over = simulation.run(budget=budget)
            while not self._over and not changing.lacks_targets:
                self._recording.take()
                self._over = simulation.run(budget=budget)
        except LivelockError:
            self._over = self._livelock = True
        self._view = changing.view()
        self.observer.update(self._view, self.result() if self._over else None)

    def advance(self, action: NDArray[np.float64]) -> tuple[int, int]:
        """Set the targets of an action, see :class:`~kvgym.envs.clusters.environment.ClusterEnv`."""
        ignored = False
        self._actions.append([int(x) for x in action.tolist()])
        if not self._over:  # an episode without requests ends with its first step
            targets, ignored = self.observer.targets(action)
            self._continue(targets)
        return self._outcome(), int(ignored)

    @property
    def view(self) -> FleetView:
        """The fleet as an autoscaler observes it.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        if isinstance(self.simulation, Closed) or self._view is None:
            raise not_running(True)
        return self._view

    def reveal(self, needs: frozenset[str]) -> None:
        """Observe more than the counters of workers in :attr:`view`, from the next episode on.

        Args:
            needs: of :data:`~kvgym.policies.scaling.AUTOSCALER_NEEDS`; agents observe none of it.
        """
        self._outside = _Outside(needs)

    # ------------------------------------------------------------ saved states

    def get_state(self) -> ScalingState:
        """Return the state of the environment, for :meth:`set_state` of this environment or one like it.

        Raises:
            gymnasium.error.ResetNeeded: there has been no reset.
        """
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        if isinstance(self.simulation, Closed):
            raise not_running(True)
        actions = np.array(self._actions, np.int64).reshape(-1, len(self.fleet.pools))
        return ScalingState(
            self.config,
            self._seed,
            frozen(actions),
            self.np_random.bit_generator.state,
            self._done,
            self._steps,
        )

    def set_state(self, state: ScalingState) -> tuple[Any, dict[str, Any]]:
        """Restore a state, by taking its actions again.

        Args:
            state: from :meth:`get_state` of an environment with the same arguments.

        Returns:
            Observation and information of that moment, in the form that :meth:`reset` returns.

        Raises:
            ConfigError: the state is invalid or damaged, or belongs to other arguments.
        """
        self.check_state(state)
        state.check_seal()
        self.start(state.seed)
        ignored = 0
        for action in state.memory:
            _, ignored = self.advance(action)
        self.np_random.bit_generator.state = state.generator
        self._steps, self._limit = state.steps, step_limit(self.spec)
        return self.observer.present(), self._info(ignored)

    def check_state(self, state: Any) -> None:
        """Check that ``state`` belongs to an environment with the same arguments.

        Raises:
            ConfigError: it is not such a state, or damaged.
        """
        ScalingState.check(state, self.config)
        ScalingState.check_rest(state)
        check_seed(state.seed, "seed of the state")
        check_actions(state.memory, self.bounds)

    # ------------------------------------------------------------ rendering and players

    @property
    def caption(self) -> str:
        """Scenario, pools and their scheduler, for the title of a picture."""
        pools = " + ".join(f"{pool.least} to {pool.most}" for pool in self.fleet.pools)
        return f"{self.scenario.name}, {pools} workers under {self._policy.info.name}"

    def _make_recorder(self) -> Any:
        from kvgym.envs.rendering.fleets import FleetRecorder

        return FleetRecorder(self.simulation, self._policies[0])

    def players(self) -> tuple[str, ...]:
        """Return the names of players that need no training: a constant size, the other autoscalers, and random."""
        return ("fixed", *(name for name in AUTOSCALERS if name not in ("fixed", "plan")), RANDOM)

    def player(self, name: str, seed: int) -> Act:
        """Return the function of a player that chooses actions: one of :meth:`players`, or ``"autoscaler:key=value"``.

        Raises:
            UnknownNameError: there is no player of this name.
            ConfigError: an unknown option or a value out of range.
        """
        if name == RANDOM:
            return self.random_player(seed)
        try:
            autoscaler = make_autoscaler(name)
        except UnknownNameError:
            raise UnknownNameError("policy", name, self.players()) from None
        return autoscaler_player(self, autoscaler, seed=seed)
