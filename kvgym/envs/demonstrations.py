"""What a scheduler does, as steps of an environment: observations, masks and actions to learn from.

:func:`demonstrate` runs a compiled policy inside an environment. One compiled loop per episode asks the policy
at every boundary, turns its decision into actions, records the steps at which an agent would have been asked,
and goes on with the environment's own functions. Nothing is rounded to what the actions can say: a decision
that they cannot carry out is an error, so that the schedule is the policy's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from kvgym.envs.agents import NotExpressibleError
from kvgym.envs.scheduling.actions import (
    apply_choice,
    apply_count,
    apply_flags,
    can_admit,
    number_fitting,
    settle,
    something_to_decide,
    write_mask,
)
from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.episodes import Episodes, action_size
from kvgym.envs.scheduling.memory import Sizes
from kvgym.envs.scheduling.observations import write_observation
from kvgym.envs.scheduling.stepping import (
    RUNNING,
    TERMINATED,
    TRUNCATED,
    advance,
    batch_time_at,
    decision_at,
    episode_at,
    f8_at,
    i4_at,
    i8_at,
    load_at,
    log_at,
    problem_at,
    requests_at,
    settings_at,
    slots_at,
    total_reward,
    tracker_at,
    worker_at,
    workload_at,
)
from kvgym.envs.scheduling.tables import ADMIT_COUNT, ADMIT_EVICT, MARKED, REWARD_TERMS
from kvgym.envs.scheduling.window import Env
from kvgym.errors import ConfigError, KVGymError, LivelockError
from kvgym.metrics import metric_names
from kvgym.policy import CompiledPolicy, Policy, make_policy
from kvgym.runner import check_needs, system_info
from kvgym.simulator.addresses import function_at, function_handle
from kvgym.simulator.apply_decision import full_tokens, planned_tokens
from kvgym.simulator.batch_time import BATCH_TIME_SIGNATURE
from kvgym.simulator.boundary import Run
from kvgym.simulator.compiled import jit, jit_inline, kernel, uncompiled
from kvgym.simulator.rule import MEMORY, POLICY_SIGNATURE, RuleDecision, RuleMemory, view_of
from kvgym.simulator.tables import (
    DECISION,
    GAP_BINS,
    REQUEUE_ARRIVAL,
    RUN,
    STALLED,
    UNKNOWN,
    as_records,
)

policy_at = function_at(POLICY_SIGNATURE)

# Why a decision has no counterpart among the actions; negative where outcomes of steps are not.
WAITS, CHUNKS, OUTSIDE, ORDER, EVICTION, INACTIVE, IDLE, UNASKED, UNFIT = -1, -2, -3, -4, -5, -6, -7, -8, -9

# Places of the array in which the loop returns where it is.
AT, REQUEST_ID, NUM_ADMIT, NUM_EVICT, NUM_ACTIVE = 0, 1, 2, 3, 4


@jit
def position_in_window(e: Env, i: int) -> int:
    """Return where request ``i`` stands in the queue window, UNKNOWN if it does not."""
    for q in range(e.episode.num_window):
        if e.window[q] == i:
            return q
    return UNKNOWN


@jit
def position_in_active(e: Env, k: int) -> int:
    """Return the position of slot ``k`` among the active ones not yet evicted, latest first."""
    position = 0
    for j in range(k + 1, e.run.w.num_active):
        if e.run.active[j].planned != MARKED:
            position += 1
    return position


@jit
def in_full(e: Env, d: Any, admit: Any, admit_tokens: Any, evict: Any) -> int:
    """Return 0 if a decision runs a batch with everybody in full, else the reason; takes its plans back."""
    num_active, num_requests = e.run.w.num_active, e.run.problem.num_requests
    if d.act != RUN:
        return WAITS
    if d.num_admit > admit.shape[0] or d.num_evict > num_active:
        return UNFIT
    for j in range(d.num_admit):
        if not 0 <= admit[j] < num_requests:
            return UNFIT
        left = e.run.requests[admit[j]].num_prefill_left
        if planned_tokens(d, admit_tokens[j], left) != full_tokens(left):
            return CHUNKS
    for j in range(d.num_evict):
        if not 0 <= evict[j] < num_active or e.run.active[evict[j]].planned == MARKED:
            return UNFIT
        e.run.active[evict[j]].planned = MARKED  # not in the batch: nothing else is planned for it
    for k in range(num_active):
        slot = e.run.active[k]
        left = slot.num_prefill_left
        if slot.planned != MARKED and planned_tokens(d, slot.planned, left) != full_tokens(left):
            return CHUNKS
        slot.planned = UNKNOWN
    return 0


@jit
def next_choice(e: Env, d: Any, admit: Any, evict: Any, done: int, action: Any, where: Any) -> int:
    """Write the admit/evict choice that follows ``done`` others; 0, or the reason why there is none."""
    queue, active = e.settings.queue_window, e.settings.active_window
    if done < d.num_evict:
        position = position_in_active(e, evict[done])
        if position >= active:
            where[REQUEST_ID] = e.run.active[evict[done]].request_id
            return INACTIVE
        action[0] = queue + position
    elif done < d.num_evict + d.num_admit:
        i = admit[done - d.num_evict]
        where[REQUEST_ID] = i
        q = position_in_window(e, i)
        if q == UNKNOWN:
            return OUTSIDE
        if not can_admit(e, i):
            return UNFIT
        action[0] = q
    else:
        action[0] = queue + active
    return 0


@jit
def count_of(e: Env, d: Any, admit: Any, action: Any, where: Any) -> int:
    """Write the number of admissions; 0, or the reason why they are not the first of the window."""
    for j in range(d.num_admit):
        where[REQUEST_ID] = admit[j]
        if j >= e.episode.num_window:
            return OUTSIDE
        if e.window[j] != admit[j]:
            return OUTSIDE if position_in_window(e, admit[j]) == UNKNOWN else ORDER
    if d.num_admit > number_fitting(e):
        return UNFIT if d.num_evict == 0 else EVICTION
    action[0] = d.num_admit
    return 0


@jit
def flags_of(e: Env, d: Any, admit: Any, evict: Any, action: Any, where: Any) -> int:
    """Write the flags of a decision; 0, or the reason why they cannot say it."""
    queue, active = e.settings.queue_window, e.settings.active_window
    for k in range(queue + active):
        action[k] = 0
    for j in range(d.num_evict):
        position = e.run.w.num_active - 1 - evict[j]
        if position >= active:
            where[REQUEST_ID] = e.run.active[evict[j]].request_id
            return INACTIVE
        action[queue + position] = 1
    last = UNKNOWN
    for j in range(d.num_admit):
        where[REQUEST_ID] = admit[j]
        q = position_in_window(e, admit[j])
        if q == UNKNOWN:
            return OUTSIDE
        if q < last:
            return ORDER
        action[q] = 1
        last = q
    return 0


@jit
def choose(e: Env, d: Any, admit: Any, evict: Any, done: int, action: Any, where: Any) -> int:
    """Write the action that carries a decision out, or the next of them; 0, or the reason why there is none."""
    where[REQUEST_ID] = UNKNOWN
    if e.settings.action == ADMIT_EVICT:
        return next_choice(e, d, admit, evict, done, action, where)
    if e.settings.action == ADMIT_COUNT:
        return count_of(e, d, admit, action, where)
    return flags_of(e, d, admit, evict, action, where)


@jit_inline
def apply_chosen(e: Env, action: Any) -> bool:
    """Add an action to the decision being composed; True if the decision is complete."""
    e.episode.num_ignored = 0
    if e.settings.action == ADMIT_EVICT:
        return apply_choice(e, action[0])
    if e.settings.action == ADMIT_COUNT:
        apply_count(e, action[0])
    else:
        apply_flags(e, action)
    return True


@jit
def difference(e: Env, d: Any, admit: Any, evict: Any) -> int:
    """Return 0 if the environment is about to do what the policy decided, else what differs.

    The order of evictions matters only where it decides who is queued before whom.
    """
    own = e.run.decision
    if own.act != RUN:
        return IDLE
    if own.num_evict != d.num_evict:
        return EVICTION
    for j in range(d.num_evict):
        same = e.run.evict[j] == evict[j]
        if e.run.problem.requeue == REQUEUE_ARRIVAL:
            same = e.run.active[evict[j]].planned == MARKED
        if not same:
            return EVICTION
    if own.num_admit != d.num_admit:
        return UNFIT
    for j in range(d.num_admit):
        if e.run.admit[j] != admit[j]:
            return ORDER
    return 0


_I4, _I8, _F8, _U8 = types.int32[::1], types.int64[::1], types.float64[::1], types.uint8[::1]
_I8_2D, _F4_2D, _U8_2D = types.int64[:, ::1], types.float32[:, ::1], types.uint8[:, ::1]


@kernel(
    types.int64(
        _I8, _I8, types.int64, _I8, types.Array(numba.from_dtype(DECISION), 1, "C"), _I4, _I4, _I4, MEMORY,
        _F8, _F4_2D, _U8_2D, _I8_2D, _F8, _F8, _I8,
    )
)  # fmt: skip
def demonstrate_episode(
    at: Any, size: Any, settings_address: int, handles: Any, decision: Any, admit: Any, admit_tokens: Any,
    evict: Any, memory: RuleMemory, batch_params: Any, observations: Any, masks: Any, actions: Any,
    rewards: Any, terms: Any, where: Any,
) -> int:  # fmt: skip
    """Play an episode that has been started under a policy, until it ends or the record is full.

    Args:
        at: int64 (NUM_TABLES,), see :class:`~kvgym.envs.scheduling.memory.Block`.
        size: the same.
        settings_address: where the SETTINGS record lies.
        handles: int64 (4,), of the policy and of the batch-time kernel, see
            :func:`~kvgym.simulator.addresses.function_handle`.
        decision: DECISION (1,), what the policy writes to; so are the three that follow, int32 (A,).
        admit: request ids.
        admit_tokens: tokens of each.
        evict: slots.
        memory: hyperparameters and memory of the policy.
        batch_params: float64, parameters of the batch-time kernel.
        observations: float32 (n, D), written from row ``where[AT]`` on; so are the three that follow.
        masks: uint8 (n, K).
        actions: int64 (n, a).
        rewards: float64 (n,).
        terms: float64 (5,), scratch.
        where: int64 (5,), written: the next free row, and the request and the numbers an error is about.

    Returns:
        RUNNING if the record is full, TERMINATED, TRUNCATED, FAILED, or the reason why a decision of the policy
        is not among the actions.
    """
    run = Run(
        problem_at(at[0], 1)[0], tracker_at(at[1], 1)[0], worker_at(at[2], 1)[0], decision_at(at[3], 1)[0],
        load_at(at[4], 1)[0], workload_at(at[8], size[8]), requests_at(at[9], size[9]),
        slots_at(at[10], size[10]), i4_at(at[11], size[11]), i4_at(at[12], size[12]), i4_at(at[13], size[13]),
        i4_at(at[14], size[14]), i4_at(at[15], size[15]), i4_at(at[16], size[16]), i8_at(at[17], size[17]),
        f8_at(at[18], size[18]), log_at(at[19], size[19]),
    )  # fmt: skip
    settings = settings_at(settings_address, 1)[0]
    e = Env(run, settings, episode_at(at[5], 1)[0], i4_at(at[6], size[6]), i8_at(at[7], size[7]))
    policy = policy_at(handles[0], handles[1])
    batch_time = batch_time_at(handles[2], handles[3])
    d, episode = decision[0], e.episode
    outcome, pending = RUNNING, UNKNOWN  # the row whose reward is still being earned
    first = True  # an episode begins with a step, whatever there is to decide
    while True:
        asked = outcome != RUNNING or first or e.settings.skip == 0 or something_to_decide(e)
        if asked and pending != UNKNOWN:
            rewards[pending] = total_reward(e, terms)
            pending = UNKNOWN
        if outcome != RUNNING or (asked and where[AT] == observations.shape[0]):
            return outcome
        first = False
        d.act, d.explicit, d.num_admit, d.num_evict, d.wait_until = RUN, 0, 0, 0, np.inf
        policy(view_of(run), RuleDecision(d, admit, admit_tokens, evict), memory)
        where[NUM_ADMIT], where[NUM_EVICT], where[NUM_ACTIVE] = d.num_admit, d.num_evict, run.w.num_active
        reason = in_full(e, d, admit, admit_tokens, evict)
        if reason != 0:
            return reason
        done, complete = 0, not asked
        while not complete:
            row = where[AT]
            if row == observations.shape[0]:
                return RUNNING  # in the middle of a decision
            reason = choose(e, d, admit, evict, done, actions[row], where)
            if reason != 0:
                return reason
            write_observation(e, observations[row], batch_time, batch_params)
            write_mask(e, masks[row])
            complete = apply_chosen(e, actions[row])
            episode.latency = episode.ttft = episode.tokens = episode.goodput = episode.evictions = 0.0
            rewards[row] = total_reward(e, terms)
            pending = row
            where[AT] += 1
            done += 1
        settle(e)
        reason = difference(e, d, admit, evict)
        if reason != 0:
            return reason if asked or reason == IDLE else UNASKED
        outcome = advance(e, batch_time, batch_params)


@dataclass(frozen=True)
class Demonstrations:
    """Steps of an environment, n of them, one episode after the other; the last episode may be cut off.

    Attributes:
        observations: float32 (n, D), flat, see :mod:`kvgym.envs.scheduling.observations`.
        masks: bool (n, K), which choices were possible, as sb3-contrib lays them out.
        actions: int64 (n,) for Discrete actions, else (n, a).
        rewards: float64 (n,), until the next step.
        episode_starts: bool (n,), True at the first step of an episode.
        metrics: float64 (f, number of metrics), of each episode that came to its end, in the order of
            :func:`~kvgym.metrics.metric_names`; those of :func:`kvgym.simulate` on the same requests.
        completed: bool (f,), whether every request of it finished; False where the horizon came first.
        workload_seeds: int64 (number of episodes,), the seeds of their requests.
    """

    observations: NDArray[np.float32]
    masks: NDArray[np.bool_]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]
    episode_starts: NDArray[np.bool_]
    metrics: NDArray[np.float64]
    completed: NDArray[np.bool_]
    workload_seeds: NDArray[np.int64]

    def __len__(self) -> int:
        """Return n, the number of steps."""
        return len(self.actions)


class _Episodes(Episodes):
    """Episodes whose token gaps are counted as finely as in a simulation, so that metrics are the same."""

    def _sizes(self, num_requests: int) -> Sizes:
        return super()._sizes(num_requests)._replace(gap_bins=GAP_BINS)


def demonstrate(
    policy: str | CompiledPolicy, *, steps: int, seed: int = 0, compiled: bool = True, **arguments: Any
) -> Demonstrations:
    """Record what a compiled policy does in an environment.

    Episodes follow each other until there are enough steps. Their requests are those of a
    :class:`~kvgym.envs.scheduling.environment.ServingEnv` that is reset with ``seed`` once and then without: the
    seed of each episode's requests is drawn from a generator seeded with ``seed``. It also seeds the policy, as
    in :func:`kvgym.simulate`.

    Args:
        policy: a compiled policy or its name, e.g. ``"mc_sf:protection=0.1"``.
        steps: n, steps to record; an ``admit_evict`` decision takes a step per choice.
        seed: of the episodes.
        compiled: False runs the same code as plain Python, for reading and debugging.
        **arguments: fields of :class:`~kvgym.envs.scheduling.config.EnvConfig`, with ``observation="flat"``.
            With ``epochs="decision"`` only steps at which an agent is asked are recorded.

    Raises:
        ConfigError: a wrong argument; ``information`` lacks what the policy needs; the policy is not compiled.
        NotExpressibleError: the actions cannot carry out a decision; the message says what would help.
        LivelockError: the policy makes no progress.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ConfigError(f"steps = {steps!r}; expected a whole number ≥ 1")
    config = EnvConfig.of(**arguments)
    chosen = _check(make_policy(policy), config)
    episodes = _Episodes(config, 1, compiled=compiled)
    found = Demonstrations(
        observations=np.zeros((steps, episodes.observations.shape[1]), np.float32),
        masks=np.zeros((steps, episodes.masks.shape[1]), bool),
        actions=np.zeros((steps, action_size(config)), np.int64),
        rewards=np.zeros(steps),
        episode_starts=np.zeros(steps, bool),
        metrics=np.zeros((0, len(metric_names()))),
        completed=np.zeros(0, bool),
        workload_seeds=np.zeros(0, np.int64),
    )
    seeds, metrics, completed = [], [], []
    rng, where = np.random.default_rng(seed), np.zeros(5, np.int64)
    while where[AT] < steps:
        begun = int(where[AT])
        seeds.append(int(rng.integers(2**31)))
        outcome = _play(episodes, chosen, seeds[-1], found, where)
        found.episode_starts[begun] = True
        if outcome != RUNNING:
            metrics.append(episodes.metrics(0))
            completed.append(outcome == TERMINATED)
    return Demonstrations(
        observations=found.observations,
        masks=found.masks,
        actions=found.actions if config.action == "flags" else found.actions[:, 0],
        rewards=found.rewards,
        episode_starts=found.episode_starts,
        metrics=np.array(metrics).reshape(-1, len(metric_names())),
        completed=np.array(completed, bool),
        workload_seeds=np.array(seeds, np.int64),
    )


def _check(policy: Policy, config: EnvConfig) -> CompiledPolicy:
    """Return the policy if it can act in such an environment.

    Raises:
        ConfigError: it is not compiled, or not told what it needs; observations are not flat.
        NotExpressibleError: the kind of action cannot carry out decisions.
    """
    name = policy.info.name
    if not isinstance(policy, CompiledPolicy) or type(policy).schedule is not CompiledPolicy.schedule:
        raise ConfigError(
            f"policy {name!r} is not compiled; kvgym.envs.agents.play lets any policy act in an environment"
        )
    if config.action == "knobs":
        raise NotExpressibleError(
            f"policy {name!r}: knobs set parameters of a rule and cannot carry out single decisions; choose another "
            "kind of action"
        )
    missing = sorted(policy.info.needs - set(config.information))
    if missing:
        raise ConfigError(f"policy {name!r} needs {', '.join(missing)}; add it to information")
    if config.observation != "flat":
        raise ConfigError(f"demonstrations hold flat observations, not observation={config.observation!r}")
    return policy


def _play(
    episodes: Episodes, policy: CompiledPolicy, seed: int, found: Demonstrations, where: NDArray[np.int64]
) -> int:
    """Record an episode from row ``where[AT]`` on; returns RUNNING if the record is full, else how it ended.

    Raises:
        ConfigError: the requests lack what the policy needs, or none arrives in time.
        NotExpressibleError: see :func:`demonstrate`.
        LivelockError: the policy makes no progress.
    """
    episodes.start(0, seed)
    table, block = episodes.slots[0].table, episodes.slots[0].block
    assert table is not None
    if block["episode"][0]["over"] != RUNNING:
        raise ConfigError(f"no request of workload seed {seed} arrives before the episode's horizon")
    check_needs(policy, table)
    policy.reset(system_info(episodes.system, table, seed, policy.info.needs))
    functions = (policy.kernel, episodes.system.batch_time.kernel)
    live = [f.compiled if episodes.compiled else uncompiled(f) for f in functions]
    handles = [
        *function_handle(live[0], POLICY_SIGNATURE, compiled=episodes.compiled),
        *function_handle(live[1], BATCH_TIME_SIGNATURE, compiled=episodes.compiled),
    ]
    decision = np.zeros(1, DECISION)
    entry = demonstrate_episode.compiled if episodes.compiled else uncompiled(demonstrate_episode)
    outcome = int(
        entry(
            episodes.addresses[0], episodes.lengths[0], int(episodes.settings.ctypes.data),
            np.array(handles, np.int64), decision if episodes.compiled else as_records(decision),
            np.zeros_like(block["admit"]), np.full_like(block["admit"], UNKNOWN), np.zeros_like(block["evict"]),
            policy.arguments(), episodes.batch_params, found.observations, found.masks.view(np.uint8), found.actions,
            found.rewards, np.zeros(len(REWARD_TERMS)), where,
        )
    )  # fmt: skip
    if outcome < 0:
        raise NotExpressibleError(_explain(outcome, policy, episodes, where))
    status = int(block["episode"][0]["status"])
    if outcome == TRUNCATED and status == STALLED:
        raise LivelockError(
            f"policy {policy.info.name!r}, {_moment(episodes)}: nothing new has been computed for "
            f"{episodes.config.stall_limit} decisions; if it evicts and readmits the same requests for ever, it "
            "needs a larger protection margin"
        )
    if outcome not in (RUNNING, TERMINATED, TRUNCATED):
        raise KVGymError(f"the engine stopped with status {status}; please report this")
    return outcome


def _moment(episodes: Episodes) -> str:
    worker: Any = episodes.slots[0].block["workers"][0]
    return f"iteration {int(worker['iteration'])}, t = {float(worker['clock']):.6g} s"


_POLICY_ORDER = "the order of the policy as queue_order, e.g. 'predicted' for the shortest predicted first"


def _explain(reason: int, policy: CompiledPolicy, episodes: Episodes, where: NDArray[np.int64]) -> str:
    """Return what a policy decided that the actions cannot say, and what would help."""
    config, request = episodes.config, int(where[REQUEST_ID])
    evicted, active = int(where[NUM_EVICT]), int(where[NUM_ACTIVE])
    if reason == WAITS:
        what = "waits; no kind of action does"
    elif reason == CHUNKS:
        what = "pauses a request or processes part of a prompt; no kind of action but knobs does"
    elif reason == OUTSIDE:
        what = (
            f"admits request {request}, which is not in the queue window (queue_window={config.queue_window}, "
            f"queue_order={config.queue_order!r}); a longer queue_window would show it, or {_POLICY_ORDER}"
        )
    elif reason == ORDER:
        what = (
            f"admits request {request} out of the order of the queue window (queue_order={config.queue_order!r}); "
            f"action='admit_evict' would allow it, or {_POLICY_ORDER}"
        )
    elif reason == EVICTION:
        remedy = "action='admit_evict'"
        if evicted == active and config.overflow == "lifo":
            remedy = f"overflow='clear' or {remedy}"
        if 0 < evicted < active and config.overflow == "clear":
            remedy = f"overflow='lifo' or {remedy}"
        what = (
            f"evicts {evicted} of {active} active requests, otherwise than action={config.action!r} with "
            f"overflow={config.overflow!r} does; {remedy} may allow it"
        )
    elif reason == INACTIVE:
        what = (
            f"evicts request {request}, which is not in the active window; a longer active_window than "
            f"{config.active_window} would show it"
        )
    elif reason == IDLE:
        what = "runs an empty batch on an empty worker; the environment waits there instead"
    elif reason == UNASKED:
        what = "evicts or admits where the environment does not ask; epochs='iteration' would ask"
    else:
        what = f"admits {int(where[NUM_ADMIT])} requests that do not fit into the coming iteration"
    return f"policy {policy.info.name!r}, {_moment(episodes)}: it {what}"
