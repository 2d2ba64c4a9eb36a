"""Settings and per-episode state of the environments, as records for compiled code."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from kvgym.compiling.tables import WHOLE, Table
from kvgym.simulator.boundary import Run

# Order of the queue window (SETTINGS.order).
ORDER_QUEUE, ORDER_PREDICTED, ORDER_PROMPT, ORDER_VOLUME, ORDER_ATTAINED, ORDER_RANK = 0, 1, 2, 3, 4, 5

# What happens when the coming iteration does not fit (SETTINGS.overflow).
OVERFLOW_LIFO, OVERFLOW_CLEAR = 0, 1

MARKED = -2
"""Stored in SLOT.planned while a decision is being composed: this request will be evicted."""

REWARD_TERMS = ("latency", "ttft", "tokens", "goodput", "evictions")
"""Names of the reward terms, in the order of EPISODE and of ``info["reward_terms"]``."""

MOST_COMPONENTS = 8
"""Registered reward terms, and parts of observations, that an environment takes."""

PROFILE_BINS = 16
"""Future-memory bins: 1, 2, 4, ... 2^15 iterations ahead."""

MOST_CLASSES = 8
"""Classes whose rates and mean lengths an observation shows."""

SETTINGS = np.dtype(
    [
        ("mask_function", "i8", (2,)),  # where the kernels of the kind of action lie
        ("apply_function", "i8", (2,)),
        ("boundary_function", "i8", (2,)),  # 0 where the kind has none
        ("features_function", "i8", (2,)),  # 0 where no features of it are shown
        ("batch_time_function", "i8", (2,)),
        ("batch_params", "i8", (2,)),  # where the parameters of the batch-time kernel lie, and how many
        ("options", "f8", (16,)),  # numbers of the kind of action
        ("action_bounds", "i8"),  # where the bounds of its numbers lie
        ("whole_actions", "i8"),  # 1: they are whole
        ("queue_window", "i8"),
        ("active_window", "i8"),
        ("order", "i8"),
        ("overflow", "i8"),
        ("show", "i8"),  # bits of what observations show, see revealed.SHOW
        ("queue_features", "i8"),  # numbers per row
        ("active_features", "i8"),
        ("skip", "i8"),  # 1: only stop where there is something to decide
        ("hold", "i8"),  # iterations an action stays in force; 0: it is for one decision
        ("idle_time", "f8"),  # s, longest wait of a worker with nothing to run
        ("time_scale", "f8"),  # s, at which waiting times and ages are half-way
        ("duration_scale", "f8"),  # s, at which batch durations are half-way
        ("rate_scale", "f8"),  # 1/s, at which the arrival rate is half-way
        ("rate_memory", "f8"),  # s, time constant of the estimate of the arrival rate
        ("reward_scale", "f8"),
        ("weights", "f8", (len(REWARD_TERMS),)),
        ("num_terms", "i8"),  # registered reward terms
        ("term_functions", "i8", (2 * MOST_COMPONENTS,)),  # where their kernels lie
        ("term_memory", "i8", (MOST_COMPONENTS,)),  # how many numbers each remembers
        ("term_weights", "f8", (MOST_COMPONENTS,)),
        ("usual_size", "i8"),  # numbers of an observation before its registered parts
        ("num_parts", "i8"),
        ("part_functions", "i8", (2 * MOST_COMPONENTS,)),
        ("part_sizes", "i8", (MOST_COMPONENTS,)),
    ],
    align=True,
)
"""Settings all environments of a vector share."""

EPISODE = np.dtype(
    [
        ("need", "i8"),  # memory of the coming iteration under the decision being composed, allocated tokens
        ("num_window", "i8"),
        ("cursor", "i8"),  # first waiting request behind the window, when the window follows the queue
        ("num_ignored", "i8"),  # parts of the last action that were not possible
        ("held", "i8"),  # iterations that the last action has been in force
        ("valid", "i8"),  # whether it is in the mask, where the kind of action looks only once
        ("rate", "f8"),  # estimate of the arrival rate, 1/s
        ("rate_clock", "f8"),  # when and
        ("rate_arrived", "i8"),  # after how many arrivals it was made
        ("latency", "f8"),
        ("ttft", "f8"),
        ("tokens", "f8"),
        ("goodput", "f8"),
        ("evictions", "f8"),
        ("terms", "f8", (MOST_COMPONENTS,)),  # the registered ones
        ("over", "i8"),  # not 0: the episode was over when it began, with this outcome
        ("status", "i8"),  # outcome of the last engine step
        ("classes", "f8", (3 * MOST_CLASSES,)),  # rate, mean prompt and mean output of each
        ("bins", "i8", (PROFILE_BINS,)),  # scratch of the future-memory profile
        (
            "returned",
            "i8",
        ),  # requests that had come back to the queue at the last boundary, see `window_update`
        ("admitted", "i8"),  # requests that had been admitted by then
        ("taken", "i8"),  # taken out of the window since
    ],
    align=True,
)
"""State of an episode that is not the simulator's."""

SEEN = np.dtype(
    [
        ("request", "i8"),  # 1 + the request that the rest is of; 0: none
        ("num_prefill_left", "i4"),
        ("num_kv_tokens", "i4"),
        ("num_output_tokens", "i4"),
        ("predicted_len", "i4"),
        ("arrival_time", "f8"),
        ("slo", "f8"),  # TTFT target of one that waits, TBT target of one that is active
    ],
    align=True,
)
"""What observations show of a request and does not change where it is, kept together: its row lies far from others."""


class Env(NamedTuple):
    """The tables of one environment: the simulator's, and those that the fields here declare.

    ``window`` and ``heap`` hold the waiting requests, see :mod:`kvgym.envs.scheduling.window`; ``seen_waiting`` (Q,)
    and ``seen_active`` (W,) are of the requests that an observation shows; ``terms`` is what registered reward terms
    remember. Lengths are those of :class:`~kvgym.envs.scheduling.memory.Sizes`.
    """

    run: Run
    settings: Any
    episode: Annotated[Any, Table(EPISODE, touched=WHOLE)]
    window: Annotated[Any, Table("i4", "window", touched=WHOLE)]
    heap: Annotated[Any, Table("i8", "heap")]
    seen_waiting: Annotated[Any, Table(SEEN, "window", touched=WHOLE)]
    seen_active: Annotated[Any, Table(SEEN, "shown", touched=WHOLE)]
    terms: Annotated[Any, Table("f8", "terms")]
