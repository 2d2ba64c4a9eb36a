"""Policies in the environment, and agents as policies.

:func:`play` runs a policy in an environment if its actions can express the decisions; ``kvgym/Tokens-v0`` can express
all (:mod:`kvgym.envs.demonstrations.expressible` examines the others). :class:`AgentPolicy` is the reverse: it wraps
any model with Stable-Baselines3's ``predict`` as a policy for ``kvgym compare``, with the environment's compiled
functions for observations and actions.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.records import as_records
from kvgym.envs.playing import Player, Predictor, content_of, drawing_player
from kvgym.envs.scheduling.acting.deciding import agent_kernel
from kvgym.envs.scheduling.acting.run import Acting
from kvgym.envs.scheduling.actions.expressing import (
    NUM_ACTIVE,
    NUM_ADMIT,
    NUM_EVICT,
    REFUSED,
    REQUEST_ID,
    NotExpressibleError,
    explain,
    explain_refusal,
    refused,
)
from kvgym.envs.scheduling.actions.kind import MORE
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.memory import Block
from kvgym.envs.scheduling.opening import open_environment
from kvgym.envs.scheduling.reward_reference import episode_return
from kvgym.envs.scheduling.spaces import observation_space
from kvgym.errors import ConfigError, InvalidDecisionError, shown
from kvgym.policies.policy import KERNEL_SCHEDULES, Policy, PolicyInfo, SystemInfo, make_policy
from kvgym.policies.runner import SimulationResult, system_info
from kvgym.simulator.decision import STATUS_NAMES, Decision, enter_decision, read_decision
from kvgym.simulator.policy_interface import MemoryRoom, PolicyDecision, PolicyMemory
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.tables import DECISION, UNKNOWN
from kvgym.simulator.view import SystemView, simulation_of
from kvgym.utils.arguments import explained
from kvgym.utils.user_code import calling


def action_of(env: ServingEnv, decision: Decision) -> Iterator[Any]:
    """Yield the actions that carry out a decision, in order; the last one runs the batch.

    Each depends on the state after the previous one: step the environment before requesting the next.

    Args:
        env: the environment, at the start of a decision, ``epochs="iteration"``.
        decision: a policy's decision on ``env.view``.

    Raises:
        NotExpressibleError: the actions of this environment cannot express it.
        InvalidDecisionError: the decision is invalid.
    """
    kind, episodes = env.config.kind, env.episodes
    if kind.encode is None:
        raise NotExpressibleError(
            f"{kind.name} set parameters of a rule and cannot carry out single decisions; choose another kind of action"
        )
    block, where = episodes.slots[0].block, episodes.control[0]
    active: Any = block["active"][: env.view.num_active]
    tables = _tables_of(block, active, decision)
    encode, inside = uncompiled(kind.encode), uncompiled(open_environment)(where)
    action, report, done = np.zeros(kind.size(env.config)), np.zeros(5, np.int64), 0
    report[NUM_ADMIT], report[NUM_EVICT] = len(decision.admit), len(decision.evict)
    report[NUM_ACTIVE] = len(active)
    space, outcome = env.action_space, MORE
    refusal = uncompiled(refused)(inside, tables)
    if refusal != 0:
        active["planned"] = UNKNOWN
        raise InvalidDecisionError(explain_refusal(REFUSED - refusal, block["tracker"][0]))
    while outcome == MORE:
        report[REQUEST_ID] = UNKNOWN
        outcome = encode(where, tables, done, action, report)
        if outcome < 0:
            raise NotExpressibleError(f"the policy {explain(outcome, env.config, report)}")
        if isinstance(space, spaces.Discrete):
            yield int(action[0])
        elif isinstance(space, spaces.Box):
            yield env.config.as_actions(action)  # in float64, because waits are not exact in float32
        else:
            yield action.astype(space.dtype)
        done += 1


def _tables_of(block: Block, active: Any, decision: Decision) -> PolicyDecision:
    """Return a decision in new tables; plans for active requests go to the environment's tables."""
    size = len(block["admit"])
    record: Any = as_records(np.zeros(1, DECISION))
    tables = PolicyDecision(record[0], *(np.full(size, UNKNOWN, np.int32) for _ in range(3)))
    status = block["requests"]["status"]
    enter_decision(
        decision, tables, active, int(block["problem"][0]["num_requests"]),
        refuse=lambda what: InvalidDecisionError(f"the decision {what}"),
        status_of=lambda i: STATUS_NAMES[int(status[i])] if 0 <= i < len(status) else "unknown",
    )  # fmt: skip
    return tables


@explained
def play(
    env: gym.Env[Any, Any], policy: str | Policy, *, workload_seed: int = 0, within_actions: bool = True
) -> tuple[SimulationResult, float]:
    """Run a policy in an environment for one episode.

    Args:
        env: the environment; its ``information`` must include what the policy needs. Wrappers are bypassed.
        policy: a policy or its name.
        workload_seed: seed of the requests and of the policy, as in ``kvgym compare``.
        within_actions: carry out the decisions by actions of the environment. False runs the policy on the same
            requests with the engine, without the limits of actions, windows and information: the result to beat. The
            environment's episode then stays as it is, and the return sums the same rewards.

    Returns:
        The records of the episode, and the undiscounted return.

    Raises:
        ConfigError: the environment does not schedule one worker, or the requests lack what the policy needs.
        NotExpressibleError: the environment's actions cannot express a decision.
        LivelockError: the policy makes no progress; only without ``within_actions``.
    """
    env = served(env)
    policy = make_policy(policy)
    if not within_actions:
        return _play_unlimited(env, policy, workload_seed)
    try:
        return play_by_actions(env, policy, workload_seed)
    except NotExpressibleError as error:
        raise NotExpressibleError(f"{error}; or play(..., within_actions=False) needs no actions") from None


def _play_unlimited(env: ServingEnv, policy: Policy, seed: int) -> tuple[SimulationResult, float]:
    episodes, config = env.episodes, env.config
    table = episodes.requests(seed)

    def returned(result: SimulationResult) -> float:
        return episode_return(result, config.reward, episodes.reward_scale)

    result = episodes.simulate(policy, table, seed)
    total = returned(result)
    if episodes.reference is not None:
        expected = returned(episodes.simulate(episodes.reference, table, seed))
        total = (total - expected) / (abs(expected) or 1.0)
    return result, total


def play_by_actions(
    env: ServingEnv, policy: Policy, workload_seed: int, *, through: gym.Env[Any, Any] | None = None
) -> tuple[SimulationResult, float]:
    """Carry out a policy's decisions by actions, see :func:`play`; steps a wrapper of the environment if given."""
    outer = env if through is None else through
    missing = policy.info.needs - set(env.config.information)
    if missing:
        raise NotExpressibleError(f"{policy.info.name} needs {sorted(missing)}; add them to information")
    outer.reset(seed=workload_seed, options={"workload_seed": workload_seed})
    table = env.episodes.slots[0].table
    assert table is not None
    known = policy.info.needs | (policy.info.uses & set(env.config.information))
    with calling(policy, "policy", "reset"):
        policy.reset(system_info(env.episodes.system, table, workload_seed, known))
    total, ended = 0.0, bool(env.episodes.outcomes[0])
    while not ended:
        with calling(policy, "policy", "schedule"):
            decision = policy.schedule(env.view)
        for action in action_of(env, decision):
            _, reward, terminated, truncated, _ = outer.step(action)
            total += float(reward)
            ended = terminated or truncated
    return env.result(), total


def served(env: gym.Env[Any, Any]) -> ServingEnv:
    """Return the environment inside wrappers.

    Raises:
        ConfigError: it does not schedule one worker.
    """
    inner = env.unwrapped
    if not isinstance(inner, ServingEnv):
        raise ConfigError(
            f"expected an environment that schedules a worker, such as kvgym/Tokens-v0; got {shown(env)}"
        )
    return inner


def _check_model(model: Any, config: EnvConfig, name: str) -> None:
    """Refuse a model that cannot act in an environment with this configuration."""
    if not callable(getattr(model, "predict", None)):
        raise ConfigError(
            f"agent {shown(name)}: expected a model with predict(observation, deterministic=True), such as "
            f"MaskablePPO.load(…); got {shown(model)}. Agents of kvgym train: kvgym.load_agent(path)"
        )
    for what, wanted in (("observation", observation_space(config)), ("action", config.action_space)):
        trained = getattr(model, f"{what}_space", None)
        if trained is not None and _form(trained) != _form(wanted):
            raise ConfigError(
                f"agent {shown(name)}: it was trained with {what}s {shown(trained)}, but these arguments make "
                f"{shown(wanted)}; pass AgentPolicy the arguments of the training environment (action, windows, "
                "information, features …)"
            )


def _form(space: spaces.Space[Any]) -> Any:
    """Return the properties that a network requires of a space; bounds may differ with the hardware."""
    if isinstance(space, spaces.Dict):
        return {name: _form(part) for name, part in space.items()}
    sizes = getattr(space, "nvec", getattr(space, "n", 0))
    return type(space).__name__, space.shape, np.asarray(sizes).tolist()


def _advice(config: EnvConfig, deterministic: bool) -> str:
    """Return what to do if an agent makes no progress."""
    train = "train longer"
    if config.kind.forces_admission and not config.must_admit:
        train += " or with must_admit=True"
    if not deterministic:
        return train.capitalize()
    return f"Draw its actions by MODEL:deterministic=false or AgentPolicy(deterministic=False), or {train}"


class AgentPolicy(Policy):
    """An agent trained in an environment, as a policy for ``simulate`` and ``compare``.

    Args:
        model: object with ``predict(observation, deterministic=True)``, which returns an action and a state; gets
            ``action_masks=`` and ``state=`` if it accepts them. The state is from the last call on the same worker,
            None at the start of a run.
        name: label in results.
        deterministic: take the agent's most probable actions; False draws them, from the seed of the run.
        **arguments: the environment arguments with which the agent was trained.

    Raises:
        ConfigError: an argument is invalid, the model has no ``predict``, or its ``observation_space`` or
            ``action_space`` differs from the one of an environment with these arguments.
    """

    info = PolicyInfo(name="agent", summary="a learned policy", evicts=True)
    kernel = agent_kernel

    def __init__(
        self, model: Predictor, *, name: str = "agent", deterministic: bool = True, **arguments: Any
    ) -> None:
        self.model, self.deterministic = model, deterministic
        self._info: SystemInfo | None = None
        self.config = EnvConfig.of(**arguments)
        _check_model(model, self.config, name)
        self.info = PolicyInfo(  # type: ignore[misc]
            name=name,
            summary=f"{type(model).__name__} acting by {self.config.action}",
            needs=self.config.needed,
            uses=frozenset((*self.config.uses, *(["session"] if self.config.kind.follows_turns else []))),
            chunks_prefill=self.config.kind.plans,
            pauses=self.config.kind.plans,
            evicts=True,
            livelock_advice=_advice(self.config, deterministic),
        )
        self._acting: Acting | None = None
        self._place: tuple[weakref.ref[Simulation], int] | None = None
        # The agent keeps the observation scales of its training on any system.
        scenario = self.config.make_scenario()
        workload = scenario.make_workload()
        self._training = (scenario.make_system().batch_time, len(workload.sample(0)), workload.mean_rate)

    def hyperparameters(self) -> dict[str, Any]:
        """Return ``deterministic`` if it is False; otherwise the name identifies the agent."""
        return {} if self.deterministic else {"deterministic": False}

    def content(self) -> dict[str, Any]:
        """Return the identity of the agent: its environment and a hash of its model."""
        return {"environment": str(self.config), "model": content_of(self.model), **self.hyperparameters()}

    def __getstate__(self) -> dict[str, Any]:
        """Drop what belongs to a run: a copy, or another process, has addresses of its own."""
        return {**vars(self), "_acting": None, "_place": None}

    def reset(self, system: SystemInfo) -> None:
        """Prepare for a new run."""
        self._acting, self._info = None, system
        self._act = Player(self.model) if self.deterministic else drawing_player(self.model, system.seed)

    @property
    def room(self) -> MemoryRoom | None:
        """Sizes of the run that :meth:`reset` prepared for; None before the first reset."""
        info = self._info
        if info is None:
            return None
        needs = self.info.needs
        return MemoryRoom(info.kv_capacity, info.max_requests, info.block_size, len(info.classes), needs)

    def attach(self, simulation: Simulation, worker: int) -> None:
        """Decide for a worker of a simulation from now on."""
        self._place, self._acting = (weakref.ref(simulation), worker), None

    def _in_run(self) -> Acting:
        """Return what the agent is in the run that it was attached to, since its last reset."""
        if self._acting is None:
            place, worker = self._place or (lambda: None, 0)
            simulation = place()
            if simulation is None or self._info is None:
                raise ConfigError(
                    f"agent {shown(self.info.name)} was not reset for this run; use kvgym.simulate"
                )
            owner = shown(self.info.name)
            self._acting = Acting(
                self.config, self._act, self._training, self._info, simulation, worker, owner
            )
        return self._acting

    def arguments(self) -> PolicyMemory:
        """Return the memory of the kernel."""
        return self._in_run().memory

    def check_failure(self) -> None:
        """Raise the exception with which the agent answered the last question, if any."""
        failure = None if self._acting is None else self._acting.failure()
        if failure is not None:
            with calling(self, "policy", "schedule"):
                raise failure

    def schedule(self, view: SystemView) -> Decision:
        """Return the decision that the agent's actions compose, one or more of them."""
        simulation = simulation_of(view)
        k = simulation.current  # in a cluster every worker has a copy of this policy
        if self._place is None or self._place[0]() is not simulation:
            self.attach(simulation, k)
        if not self._in_run().compose():
            self.check_failure()
        made = PolicyDecision(
            *(getattr(simulation, name)[k] for name in ("decision", "admit", "admit_tokens", "evict"))
        )
        return read_decision(made, simulation.active[k, : int(simulation.worker["num_active"])])


KERNEL_SCHEDULES.add(AgentPolicy.schedule)
