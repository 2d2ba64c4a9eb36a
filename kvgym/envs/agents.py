"""Schedulers in the environment, and agents as schedulers.

:func:`action_of` turns a policy's decision into the environment's actions, so that any policy can act in it.
:class:`AgentPolicy` is the other way round: whatever has Stable-Baselines3's ``predict`` becomes a policy
that ``kvgym compare`` runs beside the others, with observations and actions of the same compiled functions.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import numpy as np

from kvgym.envs.scheduling import spaces
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.episodes import action_size, mask_size
from kvgym.envs.scheduling.memory import Sizes
from kvgym.envs.scheduling.observations import observation_size
from kvgym.envs.scheduling.stepping import BEGIN, COMPOSE, step_envs
from kvgym.envs.scheduling.tables import EPISODE, REWARD_TERMS
from kvgym.errors import KVGymError
from kvgym.policy import Decision, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.runner import SimulationResult, system_info
from kvgym.simulator.addresses import function_handle
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.cluster_tables import ROWS
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.tables import RUN, UNKNOWN
from kvgym.simulator.view import SystemView


class NotExpressibleError(KVGymError):
    """A decision has no counterpart among the actions of an environment."""


def action_of(env: ServingEnv, decision: Decision) -> list[Any]:
    """Return the actions that carry out a decision, in order; the last one runs the batch.

    Args:
        env: the environment, at the start of a decision, ``epochs="iteration"``.
        decision: what a policy decided from ``env.view``.

    Raises:
        NotExpressibleError: the actions of this environment cannot say it.
    """
    config, block = env.config, env.episodes.slots[0].block
    if decision.tokens or decision.wait_until is not None:
        raise NotExpressibleError(f"{config.action} has no pausing, chunking or waiting")
    if config.action == "knobs":
        raise NotExpressibleError("knobs set parameters of a rule; they cannot carry out single decisions")
    window = block["window"][: int(block["episode"][0]["num_window"])].tolist()
    active = block["active"]["request_id"][: int(block["workers"][0]["num_active"])].tolist()[::-1]
    if config.action == "admit_evict":
        return _one_by_one(env, decision, window, active)
    if window[: len(decision.admit)] != list(decision.admit):
        raise NotExpressibleError(
            f"admits {list(decision.admit)}; the queue window begins with {window[:4]} …"
        )
    if config.action == "admit_count":
        if list(decision.evict) != active[: len(decision.evict)] or (
            decision.evict and config.overflow != "lifo"
        ):
            raise NotExpressibleError("admit_count evicts by its overflow rule only")
        return [len(decision.admit)]
    flags = np.zeros(config.queue_window + config.active_window, np.int8)
    flags[: len(decision.admit)] = 1
    for i in decision.evict:
        position = active.index(i)
        if position >= config.active_window:
            raise NotExpressibleError(f"evicts request {i}, which is not in the active window")
        flags[config.queue_window + position] = 1
    return [flags]


def _one_by_one(env: ServingEnv, decision: Decision, window: list[int], active: list[int]) -> list[Any]:
    """Spell a decision out in admit/evict choices; positions move up as requests are chosen."""
    config, block = env.config, env.episodes.slots[0].block
    following, cursor = block["requests"]["queue_next"], int(block["episode"]["cursor"][0])
    if config.queue_order != "queue" and len(decision.admit) > len(window):
        raise NotExpressibleError("admits more than the queue window holds; use a longer queue_window")
    actions: list[Any] = []
    for i in decision.evict:
        position = active.index(i)
        if position >= config.active_window:
            raise NotExpressibleError(f"evicts request {i}, which is not in the active window")
        actions.append(config.queue_window + position)
        active.remove(i)
    for i in decision.admit:
        if i not in window:
            raise NotExpressibleError(f"admits request {i}, which is not in the queue window")
        actions.append(window.index(i))
        window.remove(i)
        if config.queue_order == "queue" and cursor != UNKNOWN:
            window.append(cursor)
            cursor = int(following[cursor])
    return [*actions, config.queue_window + config.active_window]


def play(env: ServingEnv, policy: str | Policy, *, workload_seed: int = 0) -> tuple[SimulationResult, float]:
    """Let a policy act in an environment for one episode.

    Args:
        env: the environment, unwrapped; its ``information`` must include what the policy needs.
        policy: a policy or its name.
        workload_seed: seed of the requests and of the policy, as in ``kvgym compare``.

    Returns:
        The records of the episode, and the undiscounted return.

    Raises:
        NotExpressibleError: the environment's actions cannot express a decision.
    """
    policy = make_policy(policy)
    missing = policy.info.needs - set(env.config.information)
    if missing:
        raise NotExpressibleError(f"{policy.info.name} needs {sorted(missing)}; add them to information")
    env.reset(seed=workload_seed, options={"workload_seed": workload_seed})
    table = env.episodes.slots[0].table
    assert table is not None
    policy.reset(system_info(env.episodes.system, table, workload_seed, policy.info.needs))
    total, ended = 0.0, bool(env.episodes.outcomes[0])
    while not ended:
        for action in action_of(env, policy.schedule(env.view)):
            _, reward, terminated, truncated, _ = env.step(action)
            total += reward
            ended = terminated or truncated
    return env.result(), total


class Predictor(Protocol):
    """What an agent is: Stable-Baselines3's ``predict``, with or without ``action_masks``."""

    def predict(self, observation: Any, *, deterministic: bool = ...) -> tuple[Any, Any]:
        """Return an action and a state."""
        ...


class AgentPolicy(Policy):
    """An agent trained in an environment, as a policy for ``simulate`` and ``compare``.

    Args:
        model: has ``predict(observation, deterministic=True)``; ``action_masks=`` is passed if it takes it.
        name: label in results.
        **arguments: the environment arguments the agent was trained with.
    """

    info = PolicyInfo(name="agent", summary="a learned policy", evicts=True)

    def __init__(self, model: Predictor, *, name: str = "agent", **arguments: Any) -> None:
        self.model = model
        self.config = EnvConfig.of(**arguments)
        self.info = PolicyInfo(  # type: ignore[misc]
            name=name,
            summary=f"{type(model).__name__} acting by {self.config.action}",
            needs=frozenset(self.config.information),
            chunks_prefill=self.config.action == "knobs",
            pauses=self.config.action == "knobs",
            evicts=True,
        )
        self._masked = "action_masks" in inspect.signature(model.predict).parameters
        self._simulation: Simulation | None = None
        # The scales of the observation stay those of training, on whatever system the agent runs.
        scenario = self.config.make_scenario()
        workload = scenario.make_workload()
        self._settings = self.config.make_settings(
            scenario.make_system().batch_time, len(workload.sample(0)), workload.mean_rate
        )

    def hyperparameters(self) -> dict[str, Any]:
        """Return nothing: the name tells agents apart."""
        return {}

    def reset(self, system: SystemInfo) -> None:
        """Forget the run before."""
        self._simulation = None
        self._hold = 0
        self._held: Any = None

    def _attach(self, simulation: Simulation) -> None:
        """Point the compiled functions at the simulation's tables, and make room for their own."""
        config = self.config
        n = len(simulation.table)
        sizes = Sizes(n, simulation.active.shape[1], config.queue_window, n + 2, 0)
        own: dict[str, Any] = {
            "episode": np.zeros(1, EPISODE),
            "window": np.zeros(config.queue_window, np.int32),
            "heap": np.zeros(n + 2, np.int64),
        }
        own["episode"]["cursor"] = UNKNOWN
        k = self._worker = simulation.current  # in a cluster every worker has a copy of this policy
        tables = [
            own[name]
            if name in own
            else getattr(simulation, name)[k : k + 1]
            if name in (*ROWS, "problem", "workers")
            else getattr(simulation, name)
            for name, _, _ in sizes.layout()
        ]
        self._own = own
        self._own_settings = self._settings.copy()
        self._own_settings["rate_scale"] *= len(simulation.workers)  # what arrives, arrives for all workers
        self._addresses = np.array([[t.ctypes.data for t in tables]], np.int64)
        self._lengths = np.array([[t.size for t in tables]], np.int64)
        self._observations = np.zeros(
            (1, observation_size(config.queue_window, config.active_window)), np.float32
        )
        self._masks = np.zeros((1, mask_size(config)), np.uint8)
        self._outcomes, self._todo = np.zeros(1, np.int64), np.zeros(1, np.uint8)
        self._actions = np.zeros((1, action_size(config)), np.int64)
        batch_time = simulation.system.all_workers[k].batch_time
        self._kernel = batch_time.kernel.compiled
        self._batch_params = np.array(batch_time.params(), np.float64)
        self._arguments = (
            self._addresses, self._lengths, int(self._own_settings.ctypes.data), self._todo, self._actions,
            self._observations, self._masks, np.zeros(1), np.zeros((1, len(REWARD_TERMS))), self._outcomes,
            np.zeros(1, np.int64), np.zeros(1),
            *function_handle(self._kernel, BATCH_TIME_SIGNATURE, compiled=True), self._batch_params,
        )  # fmt: skip
        self._simulation = simulation

    def _run(self, what: int) -> bool:
        self._todo[0] = what
        step_envs.compiled(*self._arguments)
        return bool(self._outcomes[0])

    def schedule(self, view: SystemView) -> Decision:
        """Ask the agent, as often as its kind of action needs, and return the decision."""
        simulation = view.simulation
        if simulation is not self._simulation:
            self._attach(simulation)
        config = self.config
        anything = self._run(BEGIN)
        if config.action == "knobs" and self._hold > 0:
            self._hold -= 1
            self._actions[0] = self._held
            self._run(COMPOSE)
        elif config.epochs == "decision" and not anything and config.action != "knobs":
            self._actions[0] = (
                0 if config.action != "admit_evict" else config.queue_window + config.active_window
            )
            self._run(COMPOSE)
        else:
            complete = False
            while not complete:
                self._actions[0] = self._predict()
                complete = self._run(COMPOSE)
            self._hold, self._held = config.hold - 1, self._actions[0].copy()
        return self._decision(simulation, self._worker)

    def _predict(self) -> Any:
        observation = spaces.present(self.config, self._observations[0], self._masks[0])
        if self._masked:
            masks = self._masks[0].astype(bool)
            action, _ = self.model.predict(observation, deterministic=True, action_masks=masks)  # type: ignore[call-arg]
        else:
            action, _ = self.model.predict(observation, deterministic=True)
        return np.asarray(action).reshape(-1)

    @staticmethod
    def _decision(simulation: Simulation, worker: int) -> Decision:
        """Read the composed decision of a worker off the tables."""
        d: Any = simulation.decision[worker]
        active: Any = simulation.active[worker, : int(simulation.worker["num_active"])]
        admit = simulation.admit[worker, : int(d["num_admit"])].tolist()
        evict = [int(active[k]["request_id"]) for k in simulation.evict[worker, : int(d["num_evict"])]]
        tokens: dict[int, int] = {}
        if d["explicit"]:
            planned = zip(active["request_id"].tolist(), active["planned"].tolist(), strict=True)
            tokens = {i: t for i, t in planned if t >= 0}
            given = simulation.admit_tokens[worker, : len(admit)].tolist()
            tokens |= {i: t for i, t in zip(admit, given, strict=True) if t != UNKNOWN}
        return Decision(
            admit=admit,
            evict=evict,
            tokens=tokens,
            wait_until=None if d["act"] == RUN else float(d["wait_until"]),
        )
