"""Demonstrations: the steps of a scheduler in an environment, as observations, masks and actions to learn from.

:func:`demonstrate` runs a compiled policy inside an environment. One compiled loop per episode calls the policy at
every boundary, translates its decision into actions, records the steps that an agent would take, and advances with the
environment's own functions. A decision that the actions cannot express is an error, so that the schedule is exactly
the policy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.checked_build import watched
from kvgym.compiling.kernel import uncompiled
from kvgym.compiling.pointers import function_handle
from kvgym.compiling.records import as_records
from kvgym.envs.demonstrations.loop import demonstrate_episode
from kvgym.envs.scheduling.actions.expressing import (
    AT,
    REFUSED,
    NotExpressibleError,
    explain,
    explain_refusal,
)
from kvgym.envs.scheduling.actions.kind import ENCODE_SIGNATURE
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.episodes import Episodes
from kvgym.envs.scheduling.stepping import RUNNING, TERMINATED, TRUNCATED
from kvgym.errors import ConfigError, InvalidDecisionError, KVGymError, LivelockError, shown
from kvgym.metrics.catalogue import STANDARD_METRICS
from kvgym.policies.policy import CompiledPolicy, Policy, make_policy
from kvgym.policies.runner import check_needs, system_info
from kvgym.simulator.policy_interface import POLICY_SIGNATURE
from kvgym.simulator.tables import DECISION, STALLED, UNKNOWN
from kvgym.utils.arguments import explained
from kvgym.utils.resources import check_free
from kvgym.utils.user_code import calling


@dataclass(frozen=True)
class Demonstrations:
    """n steps of an environment, episode by episode; the last episode may be incomplete.

    Attributes:
        observations: float32 (n, D), flat, see :mod:`kvgym.envs.scheduling.observations`.
        masks: bool (n, K), which choices were possible, in sb3-contrib's layout.
        actions: int64 (n,) for Discrete actions, else (n, a); float64 for those of a Box.
        rewards: float64 (n,), until the next step.
        episode_starts: bool (n,), True at the first step of an episode.
        metrics: float64 (f, number of metrics), of each of the f complete episodes, in the order of
            :data:`~kvgym.metrics.STANDARD_METRICS`. They equal those of :func:`kvgym.simulate` on the same requests,
            except ``put_back`` and ``overflows``, because no action selects a request and returns it at once.
        completed: bool (f,), whether every request finished; False if the horizon came first.
        workload_seeds: int64 (number of episodes,), the seeds of their requests.
    """

    observations: NDArray[np.float32]
    masks: NDArray[np.bool_]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    episode_starts: NDArray[np.bool_]
    metrics: NDArray[np.float64]
    completed: NDArray[np.bool_]
    workload_seeds: NDArray[np.int64]

    def __len__(self) -> int:
        """Return n, the number of steps."""
        return len(self.actions)


@explained
def demonstrate(
    policy: str | CompiledPolicy, *, steps: int, seed: int = 0, compiled: bool = True, **arguments: Any
) -> Demonstrations:
    """Record the steps of a compiled policy in an environment.

    Episodes follow each other until there are enough steps. Their requests are those of a
    :class:`~kvgym.envs.scheduling.environment.ServingEnv` that is first reset with ``seed`` and then without: a
    generator seeded with ``seed`` draws the workload seed of each episode. This also seeds the policy, as in
    :func:`kvgym.simulate`.

    Args:
        policy: a compiled policy or its name, e.g. ``"mc_sf:protection=0.1"``.
        steps: n, steps to record; an ``admit_evict`` decision takes a step per choice.
        seed: seed of the episodes.
        compiled: False runs the same code as plain Python, for reading and debugging.
        **arguments: fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`, with ``observation="flat"``.
            With ``epochs="decision"`` skipped iterations are not recorded.

    Raises:
        ConfigError: an argument is invalid, ``information`` lacks what the policy needs, or the policy is not compiled.
        NotExpressibleError: the actions cannot express a decision; the message has a remedy.
        LivelockError: the policy makes no progress.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ConfigError(f"steps = {shown(steps)}; expected a whole number ≥ 1")
    config = EnvConfig.of(**arguments)
    chosen = _check(make_policy(policy), config)
    episodes = Episodes(config, 1, compiled=compiled)
    row = 4 * episodes.observations.shape[1] + episodes.masks.shape[1] + 8 * config.kind.size(config)
    check_free(int(steps) * row, f"{steps:,} steps of demonstrations", "choose fewer")
    found = Demonstrations(
        observations=np.zeros((steps, episodes.observations.shape[1]), np.float32),
        masks=np.zeros((steps, episodes.masks.shape[1]), bool),
        actions=np.zeros((steps, config.kind.size(config))),
        rewards=np.zeros(steps),
        episode_starts=np.zeros(steps, bool),
        metrics=np.zeros((0, len(STANDARD_METRICS))),
        completed=np.zeros(0, bool),
        workload_seeds=np.zeros(0, np.int64),
    )
    seeds, metrics, completed = [], [], []
    rng, report = np.random.default_rng(seed), np.zeros(5, np.int64)
    while report[AT] < steps:
        begun = int(report[AT])
        seeds.append(int(rng.integers(2**31)))
        outcome = _play(episodes, chosen, seeds[-1], found, report)
        found.episode_starts[begun] = True
        if outcome != RUNNING:
            metrics.append(episodes.metrics(0))
            completed.append(outcome == TERMINATED)
    return Demonstrations(
        observations=found.observations,
        masks=found.masks,
        actions=_as_in(config, found.actions),
        rewards=found.rewards,
        episode_starts=found.episode_starts,
        metrics=np.array(metrics).reshape(-1, len(STANDARD_METRICS)),
        completed=np.array(completed, bool),
        workload_seeds=np.array(seeds, np.int64),
    )


def _check(policy: Policy, config: EnvConfig) -> CompiledPolicy:
    """Return the policy if it can act in such an environment.

    Raises:
        ConfigError: the policy is not compiled, ``information`` lacks what it needs, or observations are not flat.
        NotExpressibleError: the kind of action cannot express decisions.
    """
    name = policy.info.name
    if not isinstance(policy, CompiledPolicy) or type(policy).schedule is not CompiledPolicy.schedule:
        raise ConfigError(
            f"policy {shown(name)} is not compiled; use kvgym.envs.play, which runs any policy in an environment"
        )
    if config.kind.encode is None:
        raise NotExpressibleError(
            f"policy {shown(name)}: {config.action} set parameters of a rule and cannot carry out single "
            "decisions; choose another kind of action"
        )
    missing = sorted(policy.info.needs - set(config.information))
    if missing:
        raise ConfigError(f"policy {shown(name)} needs {', '.join(missing)}; add it to information")
    if config.observation != "flat":
        raise ConfigError(
            f"demonstrations hold flat observations, not observation={shown(config.observation)}"
        )
    return policy


def _play(
    episodes: Episodes, policy: CompiledPolicy, seed: int, found: Demonstrations, report: NDArray[np.int64]
) -> int:
    """Record an episode from row ``report[AT]`` on; return RUNNING if the record is full, else its outcome.

    Raises:
        ConfigError: the requests lack what the policy needs, or none arrives before the horizon.
        NotExpressibleError: see :func:`demonstrate`.
        InvalidDecisionError: the policy made an invalid decision.
        LivelockError: the policy makes no progress.
    """
    episodes.start(0, seed)
    table, block = episodes.slots[0].table, episodes.slots[0].block
    assert table is not None
    if block["episode"][0]["over"] != RUNNING:
        raise ConfigError(f"no request of workload seed {seed} arrives before the episode's horizon")
    check_needs(policy, table)
    known = policy.info.needs | (policy.info.uses & set(episodes.config.information))
    with calling(policy, "policy", "reset"):
        policy.reset(system_info(episodes.system, table, seed, known))
    encode = episodes.kind.encode
    assert encode is not None
    functions = ((policy.kernel, POLICY_SIGNATURE), (encode, ENCODE_SIGNATURE))
    live = [(f.compiled if episodes.compiled else uncompiled(f), signature) for f, signature in functions]
    handles = [function_handle(f, signature, compiled=episodes.compiled) for f, signature in live]
    decision = np.zeros(1, DECISION)
    entry = (
        watched(demonstrate_episode.compiled, lambda: f"policy {policy.info.name!r}", episodes.check_memory)
        if episodes.compiled
        else uncompiled(demonstrate_episode)
    )
    outcome = int(
        entry(
            episodes.control[0],
            np.array(handles, np.int64).ravel(), decision if episodes.compiled else as_records(decision),
            np.zeros_like(block["admit"]), np.full_like(block["admit"], UNKNOWN), np.zeros_like(block["evict"]),
            policy.arguments(), found.observations, found.masks.view(np.uint8), found.actions,
            found.rewards, np.zeros(len(episodes.config.reward_terms)), report,
        )
    )  # fmt: skip
    if outcome <= REFUSED:
        what = explain_refusal(REFUSED - outcome, block["tracker"][0])
        raise InvalidDecisionError(f"policy {shown(policy.info.name)}, {_moment(episodes)}: {what}")
    if outcome < 0:
        raise NotExpressibleError(
            f"policy {shown(policy.info.name)}, {_moment(episodes)}: it {explain(outcome, episodes.config, report)}"
        )
    status = int(block["episode"][0]["status"])
    if outcome == TRUNCATED and status == STALLED:
        raise LivelockError(
            f"policy {shown(policy.info.name)}, {_moment(episodes)}: nothing new was computed for "
            f"{episodes.config.stall_limit} decisions; if it evicts and readmits the same requests for ever, give it "
            "a larger protection margin"
        )
    if outcome not in (RUNNING, TERMINATED, TRUNCATED):
        raise KVGymError(f"the engine stopped with status {status}; please report this")
    return outcome


def _moment(episodes: Episodes) -> str:
    worker: Any = episodes.slots[0].block["workers"][0]
    return f"iteration {int(worker['iteration'])}, t = {float(worker['clock']):.6g} s"


def _as_in(config: EnvConfig, actions: NDArray[np.float64]) -> NDArray[Any]:
    """Return actions in the form of their space; Discrete ones without the second axis."""
    space = config.action_space
    if isinstance(space, spaces.Box):
        return config.as_actions(actions)
    whole = actions.astype(np.int64)
    return whole[:, 0] if isinstance(space, spaces.Discrete) else whole
