"""``priority``: one number per request, asked when it arrives; Box(1), float64.

The number a is the logarithm to base 2 of the output length that the scheduler below takes as predicted, max(1, 2^a)
tokens, rounded. It need not be a prediction: schedulers that prefer short requests take it as a priority, and those
that plan memory with it as the memory to reserve. Requests that arrive in one iteration are asked for one by one, in
order of arrival, before the scheduler decides. With ``ask_every`` k, a request is asked for again when it has its first
output token and every k-th.

The scheduler below is a compiled policy that uses predicted lengths. It decides at every iteration, with its memory in
the environment's tables, and is prepared for predictions that may be too short. With such predictions of a workload as
answers, the schedule equals that of :func:`kvgym.simulate`, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.envs.scheduling.actions.below import WithScheduler, decide
from kvgym.envs.scheduling.actions.kind import (
    COMPLETE,
    MORE,
    ActionConfig,
    ActionPart,
    apply_kernel,
    asks_kernel,
    boundary_kernel,
)
from kvgym.envs.scheduling.actions.rank import write_ones
from kvgym.envs.scheduling.components import ObservationPart, observation_kernel
from kvgym.envs.scheduling.opening import open_environment
from kvgym.envs.scheduling.revealed import (
    COLUMNS,
    HIGHEST,
    LOG,
    log_share,
    saturate,
    slack,
    write_feature_columns,
)
from kvgym.envs.scheduling.tables import MOST_CLASSES, Env
from kvgym.envs.scheduling.window import is_sorted, window_insert, window_remove
from kvgym.policy import Policy, SystemInfo
from kvgym.simulator.tables import UNKNOWN, WAITING

USUAL, USUAL_CHANGE = 8.0, 1.0
"""Answer from which agents start, 256 tokens, and its typical change."""

SIZES = HIGHEST + 1
"""Sizes of prompts for which lengths of outputs are summed: powers of two, the last one open."""

# The kind's notes: requests that have been asked for on arrival, the first slot that has not been examined at this
# boundary, the sum of squares of log2 outputs, and their number and sum for each size of prompts.
ASKED, PLACE, SQUARES, COUNTS = 0, 1, 2, 3
SUMS = COUNTS + SIZES
NUM_NOTES = SUMS + SIZES


@jit_inline
def size_of(prompt_len: int) -> int:
    """Return the size of a prompt: floor(log2), at most SIZES - 1."""
    return min(int(math.log2(prompt_len)), SIZES - 1)


@boundary_kernel
def note_lengths(where: Any) -> None:
    """Add the outputs that have ended to the sums."""
    e = open_environment(where)
    notes = e.notes
    notes[PLACE] = 0.0
    for j in range(e.run.w.num_finished):
        r = e.run.requests[e.run.finished[j]]
        length, size = math.log2(r.num_output_tokens), size_of(r.prompt_len)
        notes[SQUARES] += length * length
        notes[COUNTS + size] += 1.0
        notes[SUMS + size] += length


@jit
def asked_request(e: Env) -> int:
    """Return the request that is asked for next at this boundary, UNKNOWN if there is none."""
    run, notes, every = e.run, e.notes, int(e.settings.options[0])
    if notes[ASKED] < run.tracker.next_arrival:
        return int(notes[ASKED])
    while every > 0 and notes[PLACE] < run.w.num_active:
        slot = run.active[int(notes[PLACE])]
        tokens = slot.num_output_tokens
        if slot.last_token_time == run.w.clock and (tokens == 1 or tokens % every == 0):
            return int(slot.request_id)
        notes[PLACE] += 1.0
    return UNKNOWN


@jit_inline
def take_answer(e: Env, i: int, answer: float) -> None:
    """Set the predicted length of request ``i``, and ask for the next one."""
    w, r = e.run.w, e.run.requests[i]
    length = np.int32(max(1.0, np.rint(2.0**answer)))
    w.outstanding_tokens += length - max(r.predicted_len, 0)
    arrives, by_key = e.notes[ASKED] == i, is_sorted(e.settings)
    if arrives and by_key:
        window_remove(e.settings, e.episode, e.window, e.heap, e.run.requests, i)
    r.predicted_len = length
    if arrives:
        if by_key:  # its place may depend on its predicted length
            window_insert(e.settings, e.episode, e.window, e.heap, e.run.requests, i)
        e.notes[ASKED] += 1.0
        for q in range(e.seen_waiting.shape[0]):
            if e.seen_waiting[q].request == i + 1:
                e.seen_waiting[q].request = 0  # its row has changed
    else:
        e.run.active[int(e.notes[PLACE])].predicted_len = length
        e.notes[PLACE] += 1.0
        for a in range(e.seen_active.shape[0]):
            if e.seen_active[a].request == i + 1:
                e.seen_active[a].request = 0


@asks_kernel
def asks(where: Any) -> int:
    """Whether a request has arrived, or has a number of tokens at which it is asked for again."""
    return 1 if asked_request(open_environment(where)) != UNKNOWN else 0


@apply_kernel
def apply(where: Any, action: Any) -> int:
    """Take the answer, if one was asked for; let the scheduler decide after the last one."""
    e = open_environment(where)
    i = asked_request(e)
    if i != UNKNOWN:
        take_answer(e, i, action[0])
        if asked_request(e) != UNKNOWN:
            return MORE
    decide(e, where)
    return COMPLETE


@observation_kernel
def write_asked(where: Any, out: Any) -> None:
    """Write what is known of the request that is asked for."""
    e = open_environment(where)
    i = asked_request(e)
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)
    if i == UNKNOWN:
        return
    r, kv = e.run.requests[i], 0
    if r.status == WAITING:
        kv = r.num_kv_tokens
        out[1] = np.float32(1.0)
        out[3] = np.float32(kv / max(r.prompt_len, 1))
    else:
        out[2] = log_share(e.run.active[int(e.notes[PLACE])].num_output_tokens)
    out[0] = log_share(r.prompt_len)
    out[4] = log_share(max(r.predicted_len, 0))
    out[5] = slack(r.arrival_time + r.ttft_slo - e.run.w.clock, e.settings.time_scale)
    if 0 <= r.class_id < MOST_CLASSES:
        out[6 + r.class_id] = np.float32(1.0)


@observation_kernel
def write_lengths(where: Any, out: Any) -> None:
    """Write statistics of ended outputs: of all, and of those with prompts of the asked request's size."""
    e = open_environment(where)
    notes, i = e.notes, asked_request(e)
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)
    count = total = 0.0
    for size in range(SIZES):
        count += notes[COUNTS + size]
        total += notes[SUMS + size]
    if count > 0.0:
        mean = total / count
        out[0] = np.float32(min(mean / HIGHEST, 1.0))
        out[1] = saturate(math.sqrt(max(notes[SQUARES] / count - mean * mean, 0.0)), 1.0)
        out[2] = saturate(count, 64.0)
    if i != UNKNOWN:
        size = size_of(e.run.requests[i].prompt_len)
        alike = notes[COUNTS + size]
        if alike > 0.0:
            out[3] = np.float32(min(notes[SUMS + size] / alike / HIGHEST, 1.0))
            out[4] = saturate(alike, 16.0)


@observation_kernel
def write_asked_columns(where: Any, out: Any) -> None:
    """Write the feature columns of the request that is asked for."""
    e = open_environment(where)
    i = asked_request(e)
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)
    if i != UNKNOWN:
        write_feature_columns(e, i, out, 0)


ASKED_PART = ObservationPart(
    "asked",
    write_asked,
    (
        ("prompt", f"tokens of its prompt, {LOG}"),
        ("arrives", "1 if it has just arrived, 0 if it is asked for again"),
        ("generated", f"output tokens generated, {LOG}; 0 when it arrives"),
        ("cached", "share of its prompt that is in the prefix cache"),
        ("predicted", f"its predicted output, {LOG}: the workload's, later the latest answer; 0 without"),
        ("ttft_slack", "time left to its TTFT target (scale: time_scale), in (-1, 1); 1 without a target"),
        *((f"class_{k}", f"1 if its class is {k}") for k in range(MOST_CLASSES)),
    ),
    low=-1.0,
)
LENGTHS_PART = ObservationPart(
    "lengths",
    write_lengths,
    (
        ("mean", f"mean log2 of the outputs that have ended / {HIGHEST}"),
        ("deviation", "their standard deviation (scale: 1)"),
        ("count", "their number (scale: 64)"),
        ("alike_mean", "the same mean for prompts of the same power of two as that of the asked request"),
        ("alike_count", "their number (scale: 16)"),
    ),
)


COLUMNS_PART = ObservationPart("columns", write_asked_columns, COLUMNS, low=-1.0)


class Priority(WithScheduler):
    """A number for each request that arrives, which the scheduler below takes as its output length."""

    name = "priority"
    examples = "'ranked' or 'mc_sf'"
    answers = frozenset({"predicted_length"})
    unsuited = "cannot take the answers; expected a compiled policy that uses predicted lengths"
    own_options = ("scheduler", "ask_every")
    plans = True
    defaults = {  # noqa: RUF012
        "scheduler": "ranked",
        "information": (),
        "queue_window": 1,
        "active_window": 1,
        "unit_actions": True,
    }
    num_notes = NUM_NOTES
    observed = (ASKED_PART, LENGTHS_PART)
    observed_with = {"features": COLUMNS_PART}  # noqa: RUF012
    at_boundary = note_lengths
    asks = asks
    write_mask = write_ones
    apply = apply

    def suits(self, policy: Policy) -> bool:
        """Return whether a compiled policy can be below: it uses predicted lengths."""
        return "predicted_length" in policy.info.needs | policy.info.uses

    def informed(self, system: SystemInfo) -> SystemInfo:
        """Return what the scheduler gets before an episode: answers may be long, and too short."""
        return replace(system, max_predicted_len=2**HIGHEST, underestimates=self.answers)

    def options(self, config: ActionConfig) -> tuple[float, ...]:
        """Return ``ask_every``."""
        return (float(config.ask_every),)

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return Box(1) in [0, 17], float64."""
        return spaces.Box(0.0, float(HIGHEST), (1,), np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the number."""
        meaning = "logarithm to base 2 of the output length that the scheduler below takes as predicted"
        return (ActionPart("0", meaning, "log2 tokens", 0.0, float(HIGHEST)),)

    def mask_size(self, config: ActionConfig) -> int:
        """Return 1; every number is possible at any time."""
        return 1

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return 256 tokens, and a factor of two as the typical change."""
        return np.array([USUAL]), np.array([USUAL_CHANGE])

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the same length for all."""
        return np.array([USUAL])
