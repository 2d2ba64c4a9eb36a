"""The compiled step: one function for one or many environments.

An environment is given by its row of control. The engine's own functions run on it; there is no second copy of the
dynamics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from kvgym.compiling.kernel import jit, jit_inline, kernel
from kvgym.compiling.places import places
from kvgym.compiling.pointers import function_at, take, view_at
from kvgym.compiling.tables import opener
from kvgym.envs.scheduling.actions.composing import settle, something_to_decide, start_decision
from kvgym.envs.scheduling.actions.kind import (
    APPLY_SIGNATURE,
    ASKS_SIGNATURE,
    BOUNDARY_SIGNATURE,
    FEATURES_SIGNATURE,
    MASK_SIGNATURE,
    MORE,
)
from kvgym.envs.scheduling.actions.reading import inside, write_rows
from kvgym.envs.scheduling.components import PART_SIGNATURE, TERM_SIGNATURE
from kvgym.envs.scheduling.memory import (
    ACTIONS,
    CALL_ARRAYS,
    CHECK,
    COUNT,
    FIRST,
    GIVEN,
    GIVEN_ACTIONS,
    LAST,
    NEXT,
    ORDER,
    PARTS,
    TAKEN,
    WIDTHS,
    WORK,
    Call,
)
from kvgym.envs.scheduling.observations import write_observation
from kvgym.envs.scheduling.opening import (
    f8_at,
    fetch_environment,
    i8_at,
    open_environment,
    open_term_memory,
    open_view,
)
from kvgym.envs.scheduling.revealed import shows_cache, update_hit_rate
from kvgym.envs.scheduling.tables import REWARD_TERMS, Env
from kvgym.envs.scheduling.window import window_update
from kvgym.simulator.boundary import next_boundary
from kvgym.simulator.engine import carry_out, clear_decision
from kvgym.simulator.tables import DECIDE, DONE, HORIZON, OK, STALLED

mask_at, apply_at = function_at(MASK_SIGNATURE), function_at(APPLY_SIGNATURE)
asks_at = function_at(ASKS_SIGNATURE)
boundary_at, features_at = function_at(BOUNDARY_SIGNATURE), function_at(FEATURES_SIGNATURE)
term_at, part_at = function_at(TERM_SIGNATURE), function_at(PART_SIGNATURE)

# Work of an environment, see `step_envs`.
STEP, START, BEGIN, COMPOSE, OBSERVE = 1, 2, 3, 4, 5

# Outcome of an environment's step.
RUNNING, TERMINATED, TRUNCATED, FAILED = 0, 1, 2, 3

TERM = places(REWARD_TERMS)
"""Places of the standard reward terms; the registered ones follow them."""

AT_ONCE = 2
"""Environments that a thread takes at a time."""

MANY = 512
"""Number of environments in a call at which their tables no longer fit into a core's own cache."""


@jit
def earn(e: Env, i: int) -> None:
    """Add the rewards of a finished request to the reward terms."""
    r, source, episode = e.run.requests[i], e.run.workload[i], e.episode
    ttft = r.first_token_time - source.arrival_time
    episode.ttft -= ttft
    in_time = r.finish_time - source.arrival_time <= source.e2e_slo
    if ttft <= source.ttft_slo and r.max_token_gap <= source.tbt_slo and in_time:
        episode.goodput += 1.0


@jit_inline
def account(
    e: Env, before: float, after: float, present: int, arrived: int, delivered: int, discarded: int
) -> None:
    """Add the reward terms of an iteration from ``before`` to ``after``.

    ``present`` requests were in the system all the time; new arrivals count from their arrival. After ``after`` the
    system was empty.
    """
    w, episode = e.run.w, e.episode
    episode.latency -= present * (after - before)
    for i in range(arrived, e.run.tracker.next_arrival):
        episode.latency -= w.clock - e.run.workload[i].arrival_time
    episode.tokens += w.total_delivered_tokens - delivered
    episode.evictions -= w.total_recomputed_tokens - discarded
    for j in range(w.num_finished):
        earn(e, e.run.finished[j])


@jit_inline
def earn_terms(e: Env, where: Any, before: float) -> None:
    """Add the rewards of registered terms for an iteration that began at ``before``."""
    s, at = e.settings, 0
    for k in range(s.num_terms):
        term = term_at(s.term_functions[2 * k], s.term_functions[2 * k + 1])
        e.episode.terms[k] += term(where, before, open_term_memory(where, at, s.term_memory[k]))
        at += s.term_memory[k]


@jit_inline
def reset_terms(e: Env) -> None:
    """Set all reward terms to 0."""
    episode = e.episode
    episode.latency = episode.ttft = episode.tokens = episode.goodput = episode.evictions = 0.0
    for k in range(e.settings.num_terms):
        episode.terms[k] = 0.0


@jit
def owe_terms(e: Env) -> None:
    """Keep the reward terms before the first question for the first step."""
    episode, owed = e.episode, e.episode.owed
    owed[TERM.latency] = episode.latency
    owed[TERM.ttft] = episode.ttft
    owed[TERM.tokens] = episode.tokens
    owed[TERM.goodput] = episode.goodput
    owed[TERM.evictions] = episode.evictions
    for k in range(e.settings.num_terms):
        owed[len(TERM) + k] = episode.terms[k]
    reset_terms(e)


@jit
def pay_owed_terms(e: Env) -> None:
    """Add the reward terms from before the first question, once."""
    episode, owed = e.episode, e.episode.owed
    episode.latency += owed[TERM.latency]
    episode.ttft += owed[TERM.ttft]
    episode.tokens += owed[TERM.tokens]
    episode.goodput += owed[TERM.goodput]
    episode.evictions += owed[TERM.evictions]
    for k in range(e.settings.num_terms):
        episode.terms[k] += owed[len(TERM) + k]
    for k in range(len(TERM) + e.settings.num_terms):
        owed[k] = 0.0


@jit_inline
def update_rate(settings: Any, episode: Any, clock: float, arrived: int) -> None:
    """Update the estimate of the arrival rate: arrivals over time, with the time constant ``rate_memory``."""
    memory = settings.rate_memory
    count, elapsed = arrived - episode.rate_arrived, clock - episode.rate_clock
    episode.rate = (episode.rate * memory + count) / (memory + elapsed)
    episode.rate_arrived, episode.rate_clock = arrived, clock


@jit_inline
def begin(e: Env, where: Any) -> None:
    """Prepare a new decision at the worker's current boundary."""
    clear_decision(e.run)
    update_rate(e.settings, e.episode, e.run.w.clock, e.run.tracker.next_arrival)
    if shows_cache(e):
        update_hit_rate(e)
    if e.settings.boundary_function[0] != 0:
        at_boundary = boundary_at(e.settings.boundary_function[0], e.settings.boundary_function[1])
        at_boundary(where)
    window_update(e)
    start_decision(e)


@jit_inline
def advance(e: Env, where: Any) -> int:
    """Carry out the decision and advance to the next boundary; return the environment's outcome."""
    run, w, tracker = e.run, e.run.w, e.run.tracker
    before, present, arrived = w.clock, tracker.next_arrival - w.total_finished, tracker.next_arrival
    delivered, discarded = w.total_delivered_tokens, w.total_recomputed_tokens
    view = open_view(e)
    status = carry_out(run, view.batch_time, view.batch_params)
    e.episode.status = status
    if status != OK:
        return FAILED
    after = w.clock
    boundary = next_boundary(run)
    account(e, before, after, present, arrived, delivered, discarded)
    earn_terms(e, where, before)
    begin(e, where)
    if boundary == DONE:
        return TERMINATED
    if boundary == DECIDE:
        return RUNNING
    e.episode.status = boundary
    return TRUNCATED if boundary in (HORIZON, STALLED) else FAILED


@jit_inline
def is_asked(e: Env, where: Any) -> bool:
    """Whether the agent is asked at this boundary: as the kind says, else if there is something to decide."""
    function = e.settings.asks_function
    if function[0] != 0:
        asks = asks_at(function[0], function[1])
        return bool(asks(where) == 1)
    return something_to_decide(e)


@jit_inline
def reach_question(e: Env, where: Any, action: Any, apply: Any) -> int:
    """Advance from the start of an episode to the first question; return RUNNING, or FAILED."""
    episode = e.episode
    while episode.over == RUNNING and not is_asked(e, where):
        apply(where, action)  # nothing is asked: the scheduler below decides
        episode.over = advance(e, where)
    owe_terms(e)
    return FAILED if episode.over == FAILED else RUNNING


@jit_inline
def step_one(e: Env, where: Any, action: Any, apply: Any) -> int:
    """Step one environment, and set its reward terms to those of this step; return its outcome."""
    s, episode = e.settings, e.episode
    reset_terms(e)
    if s.asks_function[0] != 0:
        pay_owed_terms(e)
    episode.num_ignored = episode.held = 0
    if episode.over != RUNNING:
        return episode.over
    if apply(where, action) == MORE:
        return RUNNING  # the decision is still being composed; no time passes
    while True:
        outcome = advance(e, where)
        if outcome != RUNNING:
            return outcome
        if s.hold > 0:
            episode.held += 1
            if episode.held == s.hold:
                return outcome
            apply(where, action)
        elif s.asks_function[0] != 0:
            if is_asked(e, where):
                return outcome
            apply(where, action)
        elif s.skip == 0 or something_to_decide(e):
            return outcome
        else:
            settle(e)


@jit_inline
def observe(e: Env, where: Any, observation: Any, mask: Any) -> None:
    """Write the observation and the mask."""
    s, view = e.settings, open_view(e)
    write_observation(e, observation, view.batch_time, view.batch_params)
    if s.features_function[0] != 0:
        write_features = features_at(s.features_function[0], s.features_function[1])
        write_features(where, observation[: s.usual_size])
    at = s.usual_size
    for k in range(s.num_parts):
        write_part = part_at(s.part_functions[2 * k], s.part_functions[2 * k + 1])
        write_part(where, observation[at : at + s.part_sizes[k]])
        at += s.part_sizes[k]
    write_mask = mask_at(s.mask_function[0], s.mask_function[1])
    write_mask(where, mask)


@jit_inline
def total_reward(e: Env, terms: Any) -> float:
    """Write the reward terms, divided by the reward scale, and return their weighted sum."""
    episode, s = e.episode, e.settings
    terms[TERM.latency] = episode.latency / s.reward_scale
    terms[TERM.ttft] = episode.ttft / s.reward_scale
    terms[TERM.tokens] = episode.tokens / s.reward_scale
    terms[TERM.goodput] = episode.goodput / s.reward_scale
    terms[TERM.evictions] = episode.evictions / s.reward_scale
    reward = 0.0
    for k in range(len(TERM)):
        reward += s.weights[k] * terms[k]
    for k in range(s.num_terms):
        terms[len(TERM) + k] = episode.terms[k] / s.reward_scale
        reward += s.term_weights[k] * terms[len(TERM) + k]
    return reward


_i1_rows_at, _i8_rows_at, _f4_rows_at = view_at("i1", 2), view_at("i8", 2), view_at("f4", 2)

open_call: Callable[[Any, int], Call] = opener(
    Call,
    "def open_call(order, count):",
    "Open the first ``count`` rows of the arrays of a call.",
    [
        table.opening_rows(f"order[{k}]", "count", f"order[{WIDTHS + k}]")
        for k, table in enumerate(CALL_ARRAYS.values())
    ],
)


@jit_inline
def process_one(e: Env, where: Any, what: int, action: Any, apply: Any) -> int:
    """Process the entry of an environment in ``todo``; return its outcome."""
    episode = e.episode
    if what == STEP:
        return step_one(e, where, action, apply)
    if what == START:
        boundary = next_boundary(e.run)
        episode.over = RUNNING if boundary == DECIDE else TERMINATED if boundary == DONE else TRUNCATED
        begin(e, where)
        if e.settings.asks_function[0] != 0:
            return reach_question(e, where, action, apply)
        return RUNNING  # an episode that is over at its start ends with its first step
    if what == BEGIN:
        begin(e, where)
        return 1 if is_asked(e, where) else 0
    episode.num_ignored = 0
    return apply(where, action)


@jit_inline
def in_own_units(settings: Any, action: Any, converted: Any) -> Any:
    """Return an action in the units of its kind: as given, or ``converted`` from numbers in [-1, 1]."""
    if settings.action_range == 0:
        return action
    size = action.shape[0]
    bounds = f8_at(settings.action_range, 2 * size)
    for k in range(size):
        low, high = bounds[k], bounds[size + k]
        converted[k] = min(max((low + high) / 2 + (high - low) / 2 * action[k], low), high)
    return converted


@jit_inline
def convert_given(order: Any, actions: Any) -> None:
    """Convert the unconverted actions of all environments to float64."""
    first, last, size, place = order[FIRST], order[LAST], order[WIDTHS + ACTIONS], order[GIVEN_ACTIONS]
    if order[GIVEN] == 1:
        write_rows(_i1_rows_at(place, last, size), actions, first)
    elif order[GIVEN] == 2:
        write_rows(_i8_rows_at(place, last, size), actions, first)
    elif order[GIVEN] == 3:
        write_rows(_f4_rows_at(place, last, size), actions, first)


@kernel(types.int64(types.int64[::1]), "environment", nogil=True)
def step_envs(order: Any) -> int:
    """Step or start environments.

    ``todo`` of each environment is 0 to skip it, or STEP. START starts the episode prepared in its tables,
    and OBSERVE writes observation and mask again. For a simulation that runs elsewhere, BEGIN prepares a
    decision and COMPOSE adds one action to it, which has been in force for EPISODE.held iterations.
    ``outcomes`` are RUNNING, TERMINATED, TRUNCATED or FAILED; for BEGIN 1 if there is something to decide;
    for COMPOSE 1 if the decision is complete. All environments have the settings of the first one.

    Args:
        order: int64, the addresses of the arrays and the environments to process, see
            :class:`~kvgym.envs.scheduling.memory.Arrays`. Calls for the parts of a vector may run concurrently.

    Returns:
        0; 1 + the index of the last environment with a decision that the engine refused; or, with nothing changed,
        - 1 - the index of an environment with an action outside the space.
    """
    first, last = order[FIRST], order[LAST]
    call = open_call(order, order[COUNT])
    control, todo, actions = call.control, call.todo, call.actions
    s = open_environment(control[0]).settings
    if order[WORK] & CHECK:
        convert_given(order, actions)
        bounds = f8_at(s.action_bounds, 2 * order[WIDTHS + ACTIONS])
        for n in range(first, last):
            if (todo[n] == STEP or todo[n] == COMPOSE) and not inside(bounds, s.whole_actions, actions[n]):
                return -1 - n
    if order[WORK] == CHECK:
        return 0
    apply = apply_at(s.apply_function[0], s.apply_function[1])
    if order[PARTS] == 1:
        i8_at(order[TAKEN], 1)[0] = 0
    failed, part = 0, order
    for _ in range(order[PARTS]):  # its own part first
        end = part[LAST]
        many = end - part[FIRST] >= MANY
        while True:
            start = part[FIRST] + take(part[TAKEN], AT_ONCE)
            if start >= end:
                break
            for n in range(start, min(start + AT_ONCE, end)):
                if many and n + 2 < end:
                    fetch_environment(control[n + 1], control[n + 2])
                if todo[n] == 0:
                    continue
                where = control[n]
                e = open_environment(where)
                if todo[n] != OBSERVE:
                    action = in_own_units(s, actions[n], call.converted[n])
                    call.outcomes[n] = process_one(e, where, todo[n], action, apply)
                    call.rewards[n] = total_reward(e, call.terms[n])
                    call.ignored[n] = e.episode.num_ignored
                    call.times[n] = e.run.w.clock
                    if call.outcomes[n] == FAILED:
                        failed = max(failed, n + 1)
                observe(e, where, call.observations[n], call.masks[n])
        part = i8_at(part[NEXT], ORDER)
    return failed
