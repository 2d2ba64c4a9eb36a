"""``priority``: one number per request, asked when it arrives; Box(1), float64.

``answer`` determines what the number a is to the scheduler below:

- ``predicted_length``: the logarithm to base 2 of the output length that it takes as predicted, max(1, 2^a) tokens,
  rounded. It need not be a prediction: schedulers that prefer short requests take it as a priority, and those that
  plan memory with it as the memory to reserve. The scheduler is prepared for predictions that may be too short.
- ``optional_length``: the same, and below 0 no opinion: the request keeps what the workload or an earlier answer
  predicts, or has no prediction. For schedulers that use predictions where there are any.
- ``score``: an addition to its score of the request, see :class:`kvgym.policies.policy.CompiledPolicy`; the lowest
  score comes first. If the request is active, it takes effect when the scheduler next updates the score.
- ``class``: the class that it observes, rounded. Metrics and rewards go by the class in the workload.

Requests that arrive in one iteration are asked for one by one, in order of arrival, before the scheduler decides. With
``ask_every`` k, a request is asked for again when it has its first output token and every k-th; its class stays.

The scheduler decides at every iteration, with its memory in the environment's tables. With a workload's predictions
that may be too short, or its classes, or additions of 0 as answers, the schedule equals the one of
:func:`kvgym.simulate`, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.compiling.places import places
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
from kvgym.envs.scheduling.actions.rank import MOST_ADDED, USUALLY_ADDED, write_ones
from kvgym.envs.scheduling.components import ObservationPart, observation_kernel
from kvgym.envs.scheduling.opening import open_environment, open_rule
from kvgym.envs.scheduling.revealed import (
    COLUMNS,
    HIGHEST,
    LOG,
    log_share,
    saturate,
    slack,
    write_feature_columns,
)
from kvgym.envs.scheduling.tables import MOST_CLASSES, Env, Features
from kvgym.envs.scheduling.window import is_sorted, window_insert, window_remove
from kvgym.errors import ConfigError
from kvgym.policies.policy import CompiledPolicy, SystemInfo
from kvgym.simulator.tables import UNKNOWN, WAITING

LENGTH, SCORE, CLASS = 0, 1, 2


class Answer(NamedTuple):
    """What an answer is to the scheduler below.

    Attributes:
        code: LENGTH, SCORE or CLASS.
        meaning: the number, for tables.
        unit: its unit.
        low: its smallest value.
        high: its largest value.
        usual: the value from which agents start.
        change: its typical change.
        wanted: what the scheduler must do, for messages.
    """

    code: int
    meaning: str
    unit: str
    low: float
    high: float
    usual: float
    change: float
    wanted: str


ANSWERS = {
    "predicted_length": Answer(
        LENGTH, "logarithm to base 2 of the output length that the scheduler below takes as predicted",
        "log2 tokens", 0.0, float(HIGHEST), 8.0, 1.0, "uses predicted lengths",
    ),
    "optional_length": Answer(
        LENGTH, "the same; below 0 no opinion: the scheduler knows as much of the request as without the agent",
        "log2 tokens", -1.0, float(HIGHEST), -1.0, 1.0, "uses predicted lengths where there are any",
    ),
    "score": Answer(
        SCORE, "added to the score that the scheduler below gives the request; the lowest score comes first",
        "logarithm of work", -MOST_ADDED, MOST_ADDED, 0.0, USUALLY_ADDED, "ranks requests by scores",
    ),
    "class": Answer(
        CLASS, "class of the request that the scheduler below observes, rounded",
        "class", 0.0, MOST_CLASSES - 1.0, 0.5 * (MOST_CLASSES - 1), 1.0, "uses classes, but no class_rates",
    ),
}  # fmt: skip
"""Values of the environment argument ``answer``."""

OPTIONS = places(("ask_every", "answer", "additions", "additions_per_request"))
"""Options of the kind: ``ask_every``; the code of the answer; and where the scheduler has additions to its scores, at
``additions`` + ``additions_per_request`` times the number of requests."""

ASKED_FEATURES: Features = (
    ("prompt", f"tokens of its prompt, {LOG}"),
    ("arrives", "1 if it has just arrived, 0 if it is asked for again"),
    ("generated", f"output tokens generated, {LOG}; 0 when it arrives"),
    ("cached", "share of its prompt that is in the prefix cache"),
    ("predicted", f"its predicted output, {LOG}: the workload's, later the latest answer; 0 without"),
    ("ttft_slack", "time left to its TTFT target (scale: time_scale), in (-1, 1); 1 without a target"),
    *((f"class_{k}", f"1 if its class is {k}") for k in range(MOST_CLASSES)),
)
"""Features of the request that is asked for (key ``asked``)."""

LENGTHS_FEATURES: Features = (
    ("mean", f"mean log2 of the outputs that have ended / {HIGHEST}"),
    ("deviation", "their standard deviation (scale: 1)"),
    ("count", "their number (scale: 64)"),
    ("alike_mean", "the same mean for prompts of the same power of two as the asked request"),
    ("alike_count", "their number (scale: 16)"),
)
"""Features of ended outputs (key ``lengths``)."""

CLASS_LENGTHS_FEATURES: Features = (
    ("class_mean", f"mean log2 of the outputs that have ended of the asked request's class / {HIGHEST}"),
    ("class_count", "their number (scale: 16)"),
)
"""Features of ended outputs by class (key ``class_lengths``)."""

_ASKED, _LENGTHS, _OF_CLASS = map(places, (ASKED_FEATURES, LENGTHS_FEATURES, CLASS_LENGTHS_FEATURES))

SIZES = HIGHEST + 1
"""Sizes of prompts for which lengths of outputs are summed: powers of two, the last one open."""

# The kind's notes: arrived requests that have been asked for, or have gone to other workers; the first slot that has
# not been examined at this boundary; the sum of squares of log2 outputs; their number and sum for each size of
# prompts; and, if they are observed, the same for each class.
ASKED, PLACE, SQUARES, COUNTS = 0, 1, 2, 3
SUMS = COUNTS + SIZES
NUM_NOTES = SUMS + SIZES
CLASS_COUNTS, CLASS_SUMS = NUM_NOTES, NUM_NOTES + MOST_CLASSES


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
        if notes.shape[0] > NUM_NOTES and 0 <= r.class_id < MOST_CLASSES:
            notes[CLASS_COUNTS + r.class_id] += 1.0
            notes[CLASS_SUMS + r.class_id] += length


@jit
def asked_request(e: Env) -> int:
    """Return the request that is asked for next at this boundary, UNKNOWN if there is none."""
    run, notes, every = e.run, e.notes, int(e.settings.options[OPTIONS.ask_every])
    while notes[ASKED] < run.tracker.next_arrival:
        if run.requests[int(notes[ASKED])].worker == run.w.index:
            return int(notes[ASKED])
        notes[ASKED] += 1.0  # a router has sent it to another worker
    while every > 0 and notes[PLACE] < run.w.num_active:
        slot = run.active[int(notes[PLACE])]
        tokens = slot.num_output_tokens
        if slot.last_token_time == run.w.clock and (tokens == 1 or tokens % every == 0):
            return int(slot.request_id)
        notes[PLACE] += 1.0
    return UNKNOWN


@jit_inline
def set_length(e: Env, i: int, answer: float, arrives: bool) -> None:
    """Set the predicted length of request ``i``."""
    w, r = e.run.w, e.run.requests[i]
    length = np.int32(max(1.0, np.rint(2.0**answer)))
    w.outstanding_tokens += length - max(r.predicted_len, 0)
    by_key = is_sorted(e.settings)
    if arrives and by_key:
        window_remove(e.settings, e.episode, e.window, e.heap, e.run.requests, i)
    r.predicted_len = length
    if arrives:
        if by_key:  # its place may depend on its predicted length
            window_insert(e.settings, e.episode, e.window, e.heap, e.run.requests, i)
        for q in range(e.seen_waiting.shape[0]):
            if e.seen_waiting[q].request == i + 1:
                e.seen_waiting[q].request = 0  # its row has changed
    else:
        e.run.active[int(e.notes[PLACE])].predicted_len = length
        for a in range(e.seen_active.shape[0]):
            if e.seen_active[a].request == i + 1:
                e.seen_active[a].request = 0


@jit_inline
def take_answer(e: Env, where: Any, i: int, answer: float) -> None:
    """Pass the answer for request ``i`` to the scheduler below, and ask for the next one."""
    options, arrives = e.settings.options, e.notes[ASKED] == i
    if options[OPTIONS.answer] == LENGTH:
        if answer >= 0.0:
            set_length(e, i, answer, arrives)
    elif options[OPTIONS.answer] == SCORE:
        n = e.run.requests.shape[0]
        first = int(options[OPTIONS.additions]) + int(options[OPTIONS.additions_per_request]) * n
        open_rule(where).reals[first + i] = answer
    else:
        e.run.requests[i].class_id = np.int32(np.rint(answer))
    e.notes[ASKED if arrives else PLACE] += 1.0


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
        take_answer(e, where, i, action[0])
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
        out[_ASKED.arrives] = np.float32(1.0)
        out[_ASKED.cached] = np.float32(kv / max(r.prompt_len, 1))
    else:
        out[_ASKED.generated] = log_share(e.run.active[int(e.notes[PLACE])].num_output_tokens)
    out[_ASKED.prompt] = log_share(r.prompt_len)
    out[_ASKED.predicted] = log_share(max(r.predicted_len, 0))
    out[_ASKED.ttft_slack] = slack(r.arrival_time + r.ttft_slo - e.run.w.clock, e.settings.time_scale)
    if 0 <= r.class_id < MOST_CLASSES:
        out[_ASKED.class_0 + r.class_id] = np.float32(1.0)


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
        out[_LENGTHS.mean] = np.float32(min(mean / HIGHEST, 1.0))
        out[_LENGTHS.deviation] = saturate(math.sqrt(max(notes[SQUARES] / count - mean * mean, 0.0)), 1.0)
        out[_LENGTHS.count] = saturate(count, 64.0)
    if i != UNKNOWN:
        size = size_of(e.run.requests[i].prompt_len)
        alike = notes[COUNTS + size]
        if alike > 0.0:
            out[_LENGTHS.alike_mean] = np.float32(min(notes[SUMS + size] / alike / HIGHEST, 1.0))
            out[_LENGTHS.alike_count] = saturate(alike, 16.0)


@observation_kernel
def write_class_lengths(where: Any, out: Any) -> None:
    """Write statistics of ended outputs of the asked request's class."""
    e = open_environment(where)
    notes, i = e.notes, asked_request(e)
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)
    if i == UNKNOWN:
        return
    own = e.run.requests[i].class_id
    if 0 <= own < MOST_CLASSES and notes[CLASS_COUNTS + own] > 0.0:
        count = notes[CLASS_COUNTS + own]
        out[_OF_CLASS.class_mean] = np.float32(min(notes[CLASS_SUMS + own] / count / HIGHEST, 1.0))
        out[_OF_CLASS.class_count] = saturate(count, 16.0)


@observation_kernel
def write_asked_columns(where: Any, out: Any) -> None:
    """Write the feature columns of the request that is asked for."""
    e = open_environment(where)
    i = asked_request(e)
    for k in range(out.shape[0]):
        out[k] = np.float32(0.0)
    if i != UNKNOWN:
        write_feature_columns(e, i, out, 0)


ASKED_PART = ObservationPart("asked", write_asked, ASKED_FEATURES, low=-1.0)
LENGTHS_PART = ObservationPart("lengths", write_lengths, LENGTHS_FEATURES)
CLASS_LENGTHS = "class_lengths"
CLASS_LENGTHS_PART = ObservationPart(CLASS_LENGTHS, write_class_lengths, CLASS_LENGTHS_FEATURES)
COLUMNS_PART = ObservationPart("columns", write_asked_columns, COLUMNS, low=-1.0)


class Priority(WithScheduler):
    """A number for each request that arrives, which the scheduler below takes as length, score or class."""

    name = "priority"
    examples = "'ranked'"
    own_options = ("scheduler", "answer", "ask_every")
    plans = True
    defaults = {  # noqa: RUF012
        "scheduler": "ranked",
        "answer": "predicted_length",
        "information": (),
        "queue_window": 1,
        "active_window": 1,
        "unit_actions": True,
    }
    observed = (ASKED_PART, LENGTHS_PART)
    observed_with = {CLASS_LENGTHS: CLASS_LENGTHS_PART, "features": COLUMNS_PART}  # noqa: RUF012
    at_boundary = note_lengths
    asks = asks
    write_mask = write_ones
    apply = apply

    def check(self, config: ActionConfig) -> None:
        """Check the configuration.

        Raises:
            ConfigError: the scheduler cannot be below, or options do not fit together.
        """
        if config.answer is None:
            raise ConfigError(f"action 'priority' needs an answer; expected one of {', '.join(ANSWERS)}")
        super().check(config)
        if config.answer == "class" and config.ask_every:
            raise ConfigError(
                f"ask_every = {config.ask_every} with answer 'class': a request keeps its class; leave ask_every out"
            )

        if CLASS_LENGTHS in config.features and "class" not in config.information:
            raise ConfigError(f"feature {CLASS_LENGTHS!r} needs 'class' in information")

    def num_notes(self, config: ActionConfig) -> int:
        """Return the length of the notes."""
        return NUM_NOTES + (2 * MOST_CLASSES if CLASS_LENGTHS in config.features else 0)

    def answer(self, config: ActionConfig) -> Answer:
        """Return what the number is to the scheduler below."""
        return ANSWERS[config.answer or "predicted_length"]

    def suits(self, policy: CompiledPolicy, config: ActionConfig) -> bool:
        """Return whether a compiled policy can be below: it uses the answers."""
        observed = policy.info.needs | policy.info.uses
        if config.answer == "score":
            return policy.additions is not None
        if config.answer == "optional_length":
            return "predicted_length" in policy.info.uses
        return config.answer in observed and not (config.answer == "class" and "class_rates" in observed)

    def wanted(self, config: ActionConfig) -> str:
        """Return what is wrong with a scheduler that does not suit, and what is expected."""
        return f"cannot take the answers; expected a compiled policy that {self.answer(config).wanted}"

    def answers(self, config: ActionConfig) -> frozenset[str]:
        """Return the need of the scheduler that the answers meet."""
        if self.answer(config).code == LENGTH:
            return frozenset({"predicted_length"})
        return frozenset({str(config.answer)} - {"score"})

    def informed(self, system: SystemInfo, config: ActionConfig) -> SystemInfo:
        """Return what the scheduler gets before an episode: predictions may be long, and too short."""
        if self.answer(config).code != LENGTH:
            return system
        return replace(system, max_predicted_len=2**HIGHEST, underestimates=self.answers(config))

    def options(self, config: ActionConfig) -> tuple[float, ...]:
        """Return ``ask_every``, the code of the answer, and where the scheduler has additions to its scores."""
        return (
            float(config.ask_every), self.answer(config).code, *(self.scheduler_below(config).additions or ())
        )  # fmt: skip

    def space(self, config: ActionConfig) -> spaces.Box:
        """Return Box(1) between the bounds of the answer, float64."""
        answer = self.answer(config)
        return spaces.Box(answer.low, answer.high, (1,), np.float64)

    def parts(self, config: ActionConfig) -> tuple[ActionPart, ...]:
        """Return the meaning of the number."""
        answer = self.answer(config)
        return (ActionPart("0", answer.meaning, answer.unit, answer.low, answer.high),)

    def mask_size(self, config: ActionConfig) -> int:
        """Return 1; every number is possible at any time."""
        return 1

    def usual(self, config: ActionConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the answer from which agents start, and its typical change."""
        answer = self.answer(config)
        return np.array([answer.usual]), np.array([answer.change])

    def greedy(self, config: ActionConfig, mask: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the same answer for all."""
        return self.usual(config)[0]
