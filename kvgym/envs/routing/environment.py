"""The Gymnasium environment in which the agent is the router of a cluster."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.closing import Closed, not_running, step_limit
from kvgym.envs.rebuilt import Rebuilt
from kvgym.envs.recordable import RANDOM, Act, Recordable
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.observer import Observer, feature_names, observation_space, shortest_queue
from kvgym.envs.routing.players import router_player
from kvgym.envs.routing.state import RoutingState, check_packed, pack, unpack
from kvgym.envs.scheduling.actions.reading import ActionReader, outside, sample_mask
from kvgym.envs.scheduling.drawing import workload_seed
from kvgym.envs.scheduling.state import frozen
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.errors import ConfigError, LivelockError, UnknownNameError, shown
from kvgym.metrics import compute_metrics, metric_names
from kvgym.policy import CompiledPolicy
from kvgym.routing import DEFAULT_ROUTER, ROUTERS, make_router
from kvgym.runner import SimulationResult, check_needs, known_to, result_of, system_info
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.view import ClusterView
from kvgym.utils.checks import check_array, check_one_of, check_parts, check_seed
from kvgym.utils.user_code import calling

_FLAGS: dict[str, Any] = {
    "_over": bool,
    "_done": bool,
    "_livelock": bool,
    "_owed": (np.ndarray, type(None)),
    "_request": int,
}
"""Attributes that are part of a state, and what they are."""


class RoutingEnv(Rebuilt, Recordable, gym.Env[Any, Any]):
    """``kvgym/Route-v0``: routing requests to workers, each of which has a scheduler and a KV cache of its own.

    Description:
        Requests arrive over time. Each goes to a worker at once and stays there; with prefill and decode workers
        apart it is routed a second time, when its prefill has ended. The agent is asked for the worker; a
        scheduler of the library (``policy``) decides on every worker whom to admit and whom to evict. The
        dynamics are those of :func:`kvgym.simulate` with a router.

    Action Space:
        ``Discrete(r)`` over the r workers. Requests that have only one worker to go to are not asked about. A
        worker outside the mask is no-one's choice: the request goes to the candidate with the fewest unfinished
        requests (ties: the lowest index), and ``info["ignored"]`` is 1. An action outside the space is an error.

    Observation Space:
        float32 in [0, 1], see :mod:`kvgym.envs.routing.features` for every feature:

        - ``system`` (5,): requests in the system, arrival rate, time
        - ``request`` (12,): the request to be routed, as far as ``information`` allows
        - ``workers`` (11 r,): 11 features of each worker

        ``observation="flat"`` puts them one after the other in this order, ``"dict"`` keeps the keys, and
        ``"rllib"`` is the flat one beside a float32 ``action_mask``.

    Rewards:
        The terms of :class:`~kvgym.envs.scheduling.environment.ServingEnv`, weighted and divided by ``reward_scale``
        (default: requests per episode), for the time from one question to the next: ``latency`` = - time
        integral of the requests in the system, ``ttft`` = - TTFT of requests that finish, ``tokens`` delivered,
        ``goodput`` = finished requests that met their SLOs, ``evictions`` = - KV tokens thrown away. The
        undiscounted return of the latency term is minus the mean end-to-end latency. With the last question
        answered the cluster runs to its end, and the last reward has all that is left; the first reward
        includes the time before the first question.

    Starting State:
        Empty workers at the first arrival. ``reset(seed=s)`` seeds the generator the workload seed of each
        episode is drawn from; ``reset(options={"workload_seed": k})`` starts the requests, and the schedulers'
        random numbers, of seed k.

    Episode End:
        Terminated when every request has finished. Truncated at the horizon, or when the schedulers make no
        progress (a livelock); by ``gymnasium.make`` also after ``max_episode_steps``.

    Information:
        Every step: ``action_mask`` int8, ``reward_terms`` float64 (5,) in the order of :attr:`reward_terms`,
        ``ignored`` int, ``time`` s, ``request`` int, the request to be routed (-1 at the end). On the last
        step also ``metrics``, float64, in the order of :attr:`metric_names`, and ``completed``, whether every request
        has finished; the last step is also the one at the ``max_episode_steps`` that the id declares. Where another
        wrapper ends an episode, or ``gymnasium.make`` with a limit of its own, :meth:`metrics` has the figures of the
        episode so far.

    Arguments:
        Keyword arguments are the fields of :class:`~kvgym.envs.routing.config.RoutingConfig`, all JSON-able, and
        ``render_mode``.

    Version History:
        - v0: first version.

    Attributes:
        config: the configuration.
        scenario: the cluster scenario it describes, for :func:`kvgym.compare`.
        system: the cluster, with the horizon of the episodes.
        workload: where requests come from.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}  # noqa: RUF012
    reward_terms: ClassVar[tuple[str, ...]] = REWARD_TERMS
    metric_names: ClassVar[tuple[str, ...]] = metric_names()

    def __init__(self, *, render_mode: str | None = None, compiled: bool = True, **arguments: Any) -> None:
        """Set the environment up; see :class:`~kvgym.envs.routing.config.RoutingConfig` for the arguments."""
        if render_mode is not None:
            check_one_of(render_mode, "render_mode", self.metadata["render_modes"])
        self.render_mode = render_mode
        self.config = RoutingConfig.of(**arguments)
        self._compiled = compiled
        self._policy = self.config.make_policy()
        self.scenario = self.config.make_scenario()
        self.workload = self.scenario.make_workload()
        first = self.workload.sample(0)
        self.config.check_information(first)
        check_needs(self._policy, first)
        self.system = self.config.make_system(self.scenario, self.workload, len(first))
        settings = self.config.make_settings(self.system, len(first), self.workload.mean_rate)
        self._prefill, self._count = self.system.num_prefill_workers, len(self.system.all_workers)
        self._lonely = 1 in (self._prefill, self._count - self._prefill)  # a stage without a choice
        self.observer = Observer(self.config, settings, self._count)
        self.action_space = spaces.Discrete(self._count)
        self._action = np.zeros(1)
        self._reader = ActionReader(self.action_space, self._action)
        self.observation_space = observation_space(self.config, self._count)
        self.simulation: ClusterSimulation | None = None
        self._done = self._over = True
        self._livelock = False
        self._steps, self._limit = 0, step_limit(None)
        self._recording: Any = None
        self._owed: Any = None
        self._request = -1
        self._seed = 0

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name of each place of the flat observation."""
        return feature_names(self._count)

    # ------------------------------------------------------------ episodes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seeds the random generator.
            options: ``{"workload_seed": k}`` takes the requests of seed k instead of drawing one.

        Raises:
            ConfigError: a seed that is not a whole number ≥ 0, or another option.
        """
        super().reset(seed=None if seed is None else check_seed(seed))
        self._start(workload_seed(options, self.np_random))
        return self.observer.present(), self._info(0)

    def _start(self, seed: int) -> None:
        """Begin the episode of a workload seed, and go to its first question."""
        if isinstance(self.simulation, Closed):
            raise not_running(True)
        self._seed = seed
        table = self.scenario.sample(self.workload, seed, self.system.usable_capacity)
        needs = known_to(self._policy, table)
        self._policies = [copy.copy(self._policy) for _ in range(self._count)]
        for k, policy in enumerate(self._policies):
            with calling(policy, "policy", "reset"):
                policy.reset(system_info(self.system, table, seed, needs, k))
        self.simulation = ClusterSimulation(
            self.system, table, None, needs=needs, policy_name=self._policy.info.name, compiled=self._compiled
        )
        self.simulation.set_policies(self._policies)
        self.observer.attach(self.simulation)
        self._recording = None
        self._done = self._livelock = False
        self._steps, self._limit = 0, step_limit(self.spec)
        self._go_on(None)
        # Where a stage has one worker, time may pass before the first question; the first step earns it.
        self._owed = self.observer.episode.copy() if self._lonely else None
        self.observer.episode["terms"], self.observer.episode["reward"] = 0.0, 0.0

    def _go_on(self, worker: int | None) -> None:
        """Send the request in question to a worker (None: there is none yet) and go to the next question."""
        simulation = self.simulation
        assert simulation is not None
        # Whoever records looks in between, too: all that follows the last question is a single step.
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
                elif self._lonely and len(simulation.cluster_view.candidates) == 1:
                    self._over = simulation.assign(simulation.cluster_view.candidates[0], budget=budget)
                else:
                    break
        except LivelockError:
            self._over = self._livelock = True
        self._request = self.observer.look(self._over)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send the request in question to worker ``action`` and go on to the next question, see the class.

        Raises:
            gymnasium.error.ResetNeeded: the episode has ended or was never started.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            ConfigError: the action is not in the action space; nothing has changed.
            InvalidDecisionError: the workers' scheduler decided something impossible.
        """
        if self._done or self.simulation is None:
            raise not_running(isinstance(self.simulation, Closed))
        self._reader.read(action)
        if not 0 <= self._action[0] < self._count:
            raise outside(self.action_space, self._action)
        ignored = 0
        if not self._over:  # an episode that is over when it begins ends with its first step
            worker = int(self._action[0])
            if not self.observer.mask[worker]:
                worker, ignored = shortest_queue(self.view), 1
            self._go_on(worker)
        if self._owed is not None:
            for name in ("terms", "reward"):
                self.observer.episode[name] += self._owed[name]
            self._owed = None
        info = self._info(ignored)
        reward = float(self.observer.episode["reward"][0])
        self._steps += 1
        if not self._over and self._steps != self._limit:
            return self.observer.present(), reward, False, False, info
        self._done = self._over
        result = self.result()
        terminated = result.completed and not self._livelock
        info["metrics"] = np.array(list(compute_metrics(result).values()))
        info["completed"] = terminated
        return self.observer.present(), reward, terminated, self._over and not terminated, info

    def close(self) -> None:
        """Free the memory of the environment. Saved states, results and what it returned stay as they are."""
        freed: Any = Closed()
        self.simulation = self.observer = self._policies = freed
        self._done = True
        self._recording = None
        super().close()

    # ------------------------------------------------------------ going back

    def get_state(self) -> RoutingState:
        """Return the state of the environment, which :meth:`set_state` goes back to, here or in one like it.

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
        """Go on from a state.

        Args:
            state: of :meth:`get_state` of an environment with the same arguments.

        Returns:
            Observation and information of that moment, as :meth:`reset` does.

        Raises:
            ConfigError: the arguments are others, or it is no state or a damaged one; the environment may then be at
                the beginning of the episode that it names.
        """
        self.check_state(state)
        if self.simulation is None or self._seed != state.seed:
            self._start(state.seed)
        assert self.simulation is not None
        check_packed(state.memory, self.simulation.changing() + self.observer.changing())
        state.check_seal()
        if not -1 <= state.flags["_request"] < len(self.simulation.table):
            raise ConfigError(f"the state is damaged: no request {shown(state.flags['_request'])}")
        unpack(state.memory, self.simulation.changing() + self.observer.changing())
        self.np_random.bit_generator.state = state.generator
        for name, value in state.flags.items():
            setattr(self, name, value)
        self._steps, self._limit = state.steps, step_limit(self.spec)
        self._recording = None
        return self.observer.present(), self._info(0)

    def check_state(self, state: Any) -> None:
        """Check that something is a state of an environment with the same arguments, but for its tables.

        Raises:
            ConfigError: it is none, or damaged.
        """
        RoutingState.check(state, self.config)
        RoutingState.check_rest(state)
        check_seed(state.seed, "seed of the state")
        check_parts(state.flags, _FLAGS, "the state")
        if state.flags["_owed"] is not None:
            check_array(state.flags["_owed"], self.observer.episode, "the state: _owed")

    def _info(self, ignored: int) -> dict[str, Any]:
        episode = self.observer.episode
        return {
            "action_mask": self.sample_mask(),
            "reward_terms": episode["terms"][0].copy(),
            "ignored": ignored,
            "time": float(episode["since"][0]),
            "request": self._request,
        }

    # ------------------------------------------------------------ looking

    @property
    def view(self) -> ClusterView:
        """What a router sees of the present moment.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        return self.simulation.cluster_view

    @property
    def policy(self) -> CompiledPolicy:
        """The workers' scheduler."""
        return self._policy

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to route."""
        return self._over

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask as sb3-contrib reads it, bool (r,)."""
        return self.observer.mask.astype(bool)

    def sample_mask(self) -> NDArray[np.int8]:
        """Return the mask in the form that ``action_space.sample(mask=...)`` takes, as ``info["action_mask"]`` is."""
        found: NDArray[np.int8] = sample_mask(self.action_space, self.observer.mask)
        return found

    def result(self) -> SimulationResult:
        """Return the records of the present episode, as :func:`kvgym.simulate` does; the arrays are copies."""
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is no episode yet; call reset() first")
        found = result_of(self.simulation, self._policies[0])
        return replace(
            found,
            worker=found.worker.copy(),
            gap_counts=found.gap_counts.copy(),
            gap_sums=found.gap_sums.copy(),
        )

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the present episode so far by name, see :func:`kvgym.compute_metrics`.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        return compute_metrics(self.result())

    # ------------------------------------------------------------ rendering

    @property
    def caption(self) -> str:
        """Scenario, workers and their scheduler, for the title of a picture."""
        apart = f"{self._prefill} prefill and {self._count - self._prefill} decode"
        workers = f"{apart if self._prefill else self._count} workers"
        return f"{self.scenario.name}, {workers} under {self._policy.info.name}"

    def recording(self) -> Any:
        """Return what follows the present episode from now on.

        Returns:
            A :class:`~kvgym.envs.rendering.routing_recorder.RoutingRecorder`, which until the next ``reset`` also
            looks at the cluster between two questions.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """
        from kvgym.envs.rendering.routing_recorder import RoutingRecorder

        if self.simulation is None:
            raise gym.error.ResetNeeded("there is nothing to record yet; call reset() first")
        self._recording = RoutingRecorder(self.simulation, self._scene)
        return self._recording

    def players(self) -> tuple[str, ...]:
        """Return what plays without training: the registered routers, and random inside the mask."""
        return (DEFAULT_ROUTER, *(name for name in ROUTERS if name != DEFAULT_ROUTER), RANDOM)

    def player(self, name: str, seed: int) -> Act:
        """Return what chooses actions, see :meth:`players`, or any other router, as in ``"name:key=value"``.

        Raises:
            UnknownNameError: nothing of that name plays here.
            ConfigError: an unknown option or a value out of range.
        """
        if name == RANDOM:
            return self.random_player(seed)
        try:
            router = make_router(name)
        except UnknownNameError:
            raise UnknownNameError("policy", name, self.players()) from None
        return router_player(self, router, seed=seed)

    def _scene(self) -> Any:
        from kvgym.envs.rendering.routing import scene_of

        assert self.simulation is not None
        return scene_of(self.simulation, self.observer, self.config.information, over=self._over)

    def render(self) -> Any:
        """Return a picture (uint8 H x W x 3) or a text of the present moment, by render mode."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='rgb_array' or 'ansi' in gymnasium.make")
            return None
        if self.simulation is None:
            raise gym.error.ResetNeeded("there is nothing to render yet; call reset() first")
        if self.render_mode == "ansi":
            return self._scene().text()
        from kvgym.envs.rendering.routing_frame import draw_moment

        return draw_moment(self._scene())
