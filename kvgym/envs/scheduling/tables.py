"""Record types of the environments: settings and per-episode state for compiled code."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from kvgym.compiling.tables import WHOLE, Table
from kvgym.simulator.boundary import Run

Features = tuple[tuple[str, str], ...]
"""A declaration of features: name and meaning of each, in the order of an observation."""

# Order of the queue window (SETTINGS.order).
ORDER_QUEUE, ORDER_PREDICTED, ORDER_PROMPT, ORDER_VOLUME, ORDER_ATTAINED, ORDER_RANK = 0, 1, 2, 3, 4, 5

# How to evict when the next iteration does not fit (SETTINGS.overflow).
OVERFLOW_LIFO, OVERFLOW_CLEAR = 0, 1

MARKED = -2
"""Value of SLOT.planned while a decision is being composed: this request will be evicted."""

REWARD_TERMS = ("latency", "ttft", "tokens", "goodput", "evictions")
"""Names of the reward terms, in the order of EPISODE and of ``info["reward_terms"]``."""

MOST_COMPONENTS = 8
"""Upper limit of registered reward terms, and of registered observation parts, of an environment."""

PROFILE_BINS = 16
"""Future-memory bins: 1, 2, 4, ... 2^15 iterations ahead."""

MOST_CLASSES = 8
"""Upper limit of classes with rates and mean lengths in an observation."""

SETTINGS = np.dtype(
    [
        ("mask_function", "i8", (2,)),  # handles of the kernels of the kind of action
        ("apply_function", "i8", (2,)),
        ("boundary_function", "i8", (2,)),  # 0: the kind has none
        ("features_function", "i8", (2,)),  # 0: its features are not observed
        ("asks_function", "i8", (2,)),  # 0: asked at every boundary, or as `skip` says
        ("scheduler_function", "i8", (2,)),  # 0: the kind has no scheduler below
        ("batch_time_function", "i8", (2,)),
        ("batch_params", "i8", (2,)),  # address and number of the parameters of the batch-time kernel
        ("options", "f8", (16,)),  # options of the kind of action
        ("action_bounds", "i8"),  # address of the bounds of actions
        ("whole_actions", "i8"),  # 1: actions are whole numbers
        ("action_range", "i8"),  # address of the kind's own bounds if actions are in [-1, 1], else 0
        ("must_admit", "i8"),  # 1: the mask makes an empty worker admit a request
        ("queue_window", "i8"),
        ("active_window", "i8"),
        ("order", "i8"),
        ("overflow", "i8"),
        ("show", "i8"),  # bits of optional features, see revealed.SHOW
        ("queue_features", "i8"),  # numbers per row
        ("active_features", "i8"),
        ("skip", "i8"),  # 1: skip iterations with nothing to decide
        ("hold", "i8"),  # iterations for which an action stays in force; 0: for one decision
        ("idle_time", "f8"),  # s, longest wait of a worker with nothing to run
        ("time_scale", "f8"),  # s, scale of waiting times and ages
        ("duration_scale", "f8"),  # s, scale of batch durations
        ("rate_scale", "f8"),  # 1/s, scale of the arrival rate
        ("rate_memory", "f8"),  # s, time constant of the estimate of the arrival rate
        ("reward_scale", "f8"),
        ("weights", "f8", (len(REWARD_TERMS),)),
        ("num_terms", "i8"),  # registered reward terms
        ("term_functions", "i8", (2 * MOST_COMPONENTS,)),  # handles of their kernels
        ("term_memory", "i8", (MOST_COMPONENTS,)),  # size of the memory of each
        ("term_weights", "f8", (MOST_COMPONENTS,)),
        ("usual_size", "i8"),  # number of standard features, before the registered parts
        ("num_parts", "i8"),
        ("part_functions", "i8", (2 * MOST_COMPONENTS,)),
        ("part_sizes", "i8", (MOST_COMPONENTS,)),
    ],
    align=True,
)
"""Settings that all environments of a vector share."""

EPISODE = np.dtype(
    [
        ("need", "i8"),  # memory of the next iteration as decided so far, allocated tokens
        ("num_window", "i8"),
        ("cursor", "i8"),  # first waiting request behind the window, when the window follows the queue
        ("num_ignored", "i8"),  # parts of the last action that were not possible
        ("held", "i8"),  # iterations for which the last action has been in force
        ("valid", "i8"),  # whether it is in the mask, for kinds of action that check only once
        ("rate", "f8"),  # estimate of the arrival rate, 1/s
        ("rate_clock", "f8"),  # s, time of the estimate
        ("rate_arrived", "i8"),  # arrivals until then
        (
            "recent_known",
            "f8",
        ),  # tokens of requests at their start, tokens; older starts weigh less, see `revealed`
        ("recent_hits", "f8"),  # those of them found in the prefix cache
        ("counted_known", "i8"),  # totals that are counted in them
        ("counted_hits", "i8"),
        ("latency", "f8"),
        ("ttft", "f8"),
        ("tokens", "f8"),
        ("goodput", "f8"),
        ("evictions", "f8"),
        ("terms", "f8", (MOST_COMPONENTS,)),  # registered terms
        (
            "owed",
            "f8",
            (len(REWARD_TERMS) + MOST_COMPONENTS,),
        ),  # terms before the first question, see `stepping`
        ("over", "i8"),  # not 0: the episode was over at its start, with this outcome
        ("status", "i8"),  # outcome of the last engine step
        ("classes", "f8", (3 * MOST_CLASSES,)),  # rate, mean prompt and mean output of each
        ("bins", "i8", (PROFILE_BINS,)),  # scratch for future memory
        (
            "returned",
            "i8",
        ),  # requests that had returned to the queue by the last boundary, see `window_update`
        ("admitted", "i8"),  # requests that had been admitted by then
        ("taken", "i8"),  # requests taken out of the window since
    ],
    align=True,
)
"""State of an episode in addition to the simulator's."""

SEEN = np.dtype(
    [
        ("request", "i8"),  # 1 + the request of the other fields; 0: none
        ("num_prefill_left", "i4"),
        ("num_kv_tokens", "i4"),
        ("num_output_tokens", "i4"),
        ("predicted_len", "i4"),
        ("arrival_time", "f8"),
        ("slo", "f8"),  # TTFT target of a waiting request, TBT target of an active one
    ],
    align=True,
)
"""Cache of observed fields that do not change while a request stays in its window; the request rows are far apart."""


class Env(NamedTuple):
    """The tables of one environment: the simulator's, and those that the fields here declare.

    ``window`` and ``heap`` hold the waiting requests, see :mod:`kvgym.envs.scheduling.window`; ``seen_waiting`` (Q,)
    and ``seen_active`` (W,) cache fields of the observed requests; ``terms`` is the memory of registered reward terms,
    ``notes`` the record of the kind of action, ``columns`` the feature columns of the requests by row of the workload.
    :class:`~kvgym.envs.scheduling.memory.Sizes` has the lengths.
    """

    run: Run
    settings: Any
    episode: Annotated[Any, Table(EPISODE, touched=WHOLE)]
    window: Annotated[Any, Table("i4", "window", touched=WHOLE)]
    heap: Annotated[Any, Table("i8", "heap")]
    seen_waiting: Annotated[Any, Table(SEEN, "window", touched=WHOLE)]
    seen_active: Annotated[Any, Table(SEEN, "shown", touched=WHOLE)]
    terms: Annotated[Any, Table("f8", "terms")]
    notes: Annotated[Any, Table("f8", "notes")]
    columns: Annotated[Any, Table("f8", "columns")]
