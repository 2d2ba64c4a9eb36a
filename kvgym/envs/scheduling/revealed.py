"""Optional features of an observation: those that ``information`` reveals and those named in ``features``.

All information of :data:`INFORMATION` that an environment reveals is in its observation, so that an agent
observes what a policy may observe. Predicted lengths and targets are standard features, see
:mod:`~kvgym.envs.scheduling.observations`. The rest are columns at the end of each row; class rates, and figures of the
whole prefix cache, are blocks after future memory. The columns of ``rank`` come last; the kind of action writes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.compiling.places import constants, places
from kvgym.envs.scheduling.tables import MOST_CLASSES, Env, Features
from kvgym.simulator.blocks import allocated
from kvgym.simulator.boundary import cache_of, has_cache, has_extras
from kvgym.simulator.prefix.plan import units_of_others
from kvgym.simulator.tables import UNKNOWN
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.layout import FEATURE_COLUMNS

INFORMATION = (
    "predicted_length", "length_interval", "true_length", "class", "class_rates", "slo", "features", "client",
    "length_distribution", "renewed_length",
)  # fmt: skip
"""The parts of :data:`kvgym.policies.policy.NEEDS` that an environment can reveal."""

FEATURES = ("priority", "saved_duration", "prefix_cache", "deadline", "rank")
"""Optional features that reveal no more than every policy may observe.

``deadline`` is for environments that reveal ``slo``, ``rank`` for kinds of action that steer the scheduler ``ranked``.
"""

# Bits of SETTINGS.show.
_SHOWN = (
    "true_length", "length_interval", "class", "priority", "saved_duration", "class_rates", "rank", "prefix_cache",
    "features", "client", "length_distribution", "renewed_length", "deadline",
)  # fmt: skip
SHOW = {name: 1 << k for k, name in enumerate(_SHOWN)}
_BIT = constants(SHOW)
_EXTRAS = _BIT.client | _BIT.length_distribution | _BIT.renewed_length | _BIT.deadline

LOG_TOKENS = 1 << len(SHOW)
"""Bit of SETTINGS.show for tokens as logarithms."""

HIGHEST = 17
"""Logarithm to base 2 of 131,072 tokens, at which logarithmic features of tokens reach 1."""

LOG = f"log2(1 + tokens) / {HIGHEST}"

LOG_SHARES = np.array([math.log2(1.0 + tokens) / HIGHEST for tokens in range(4096)], np.float32)
"""Those of few tokens: a step that observes 448 requests takes a tenth less time if it looks them up."""

RULE_FEATURES: Features = (
    (
        "rank_score",
        "its score by the rule, without the action's addition, minus (1 + footprint) times the mean logarithm of the "
        "outputs expected on arrival (scale: 4), in (-1, 1)",
    ),
    (
        "relative_output",
        "logarithm of its estimated remaining output, minus that mean (scale: 1), in (-1, 1)",
    ),
    ("share_to_come", "remaining output / (remaining output + output generated)"),
    ("urgency", "1 - slack / 8, the slack in logarithms of batches; 0 without an objective"),
    ("lost", "1 if it has missed an objective or is bound to"),
)
"""Columns of a row that ``rank`` adds; docs/ranked.md explains their terms."""

MOMENT_FEATURES: Features = (
    ("pressure", "log(1 + waiting / (1 + active)) (scale: 1)"),
    ("busy", "1 - duration of the smallest batch / duration of the last one"),
    ("usual_output", "mean logarithm of the outputs expected on arrival (scale: 5)"),
    ("learned", "requests from which hazards have been learned (scale: 64)"),
)
"""Features of the whole worker that ``rank`` adds (key ``rule``)."""

MOMENT = places(MOMENT_FEATURES)

CACHE_FEATURES: Features = (
    ("kv_cached", "memory in the prefix cache that no active request holds / capacity"),
    (
        "hit_rate",
        "share of the tokens of started requests that was found in the prefix cache; starts weigh half as much after "
        "64 others",
    ),
)
"""Features of the worker that ``prefix_cache`` adds (key ``cache``)."""

HALF_LIFE = 64
"""Starts of requests after which one weighs half as much in ``hit_rate``."""

COLUMNS: Features = tuple(
    (name, f"its feature column {k} (scale: 1), in (-1, 1)") for k, name in enumerate(FEATURE_COLUMNS)
)
"""Features of a request that its feature columns add."""
NUM_COLUMNS = len(COLUMNS)

CLASS_FEATURES: Features = (
    ("rate", "arrival rate of class {} (scale: mean arrival rate)"),
    ("prompt", "mean prompt of class {} / capacity"),
    ("output", "mean output of class {} / capacity"),
)
"""Features of each class (key ``classes``); EPISODE.classes has the figures in the same order."""

SHOWN_TENTHS = (0, 4, 9)
"""Tenths of the distribution of a request's output length that ``length_distribution`` adds."""

_ROW_COLUMNS: dict[str, Features] = {
    "true_length": (("output_left", "true output tokens left (scale: 64)"),),
    "length_interval": (
        ("low_left", "lower bound of the output tokens left (scale: 64)"),
        ("high_left", "upper bound of the output tokens left (scale: 64)"),
    ),
    "class": (("class", "class + 1 (scale: 4); 0 where it has none"),),
    "priority": (("priority", "its priority (scale: 1), in (-1, 1)"),),
    "features": COLUMNS,
    "client": (("client", "client + 1 (scale: 4); 0 where it has none"),),
    "length_distribution": tuple(
        (f"tenth_{k + 1}", f"output tokens left by tenth {k + 1} of 10 of its distribution (scale: 64)")
        for k in SHOWN_TENTHS
    ),
    "renewed_length": (("renewed_left", "output tokens left by its latest prediction (scale: 64)"),),
    "deadline": (("e2e_slack", "time left to its E2E target (scale: 10 time_scale), in (-1, 1)"),),
}
QUEUE_COLUMNS: dict[str, Features] = {
    **_ROW_COLUMNS,
    "prefix_cache": (
        ("cached", "share of its tokens found in the prefix cache; they are not among those to prefill"),
        (
            "shared",
            "share of its tokens found and held by others as decided so far; they need no more memory",
        ),
    ),
    "rank": RULE_FEATURES,
}
ACTIVE_COLUMNS: dict[str, Features] = {
    **_ROW_COLUMNS,
    "saved_duration": (
        (
            "saved_duration",
            "how much shorter the next batch gets without it (scale: smallest batch duration)",
        ),
    ),
    "prefix_cache": (
        ("own", "share of its memory that its eviction frees; the rest is held by others as decided so far"),
    ),
    "rank": RULE_FEATURES,
}


_TOKENS = (
    "prompt", "predicted", "peak", "kv", "prefill_left", "generated", "predicted_left", "output_left", "low_left",
    "high_left", "tenth_1", "tenth_5", "tenth_10", "renewed_left",
)  # fmt: skip
"""Features of a row that are numbers of tokens."""

CACHE, CLASS = places(CACHE_FEATURES), places(CLASS_FEATURES)
INTERVAL, HIT = places(_ROW_COLUMNS["length_interval"]), places(QUEUE_COLUMNS["prefix_cache"])

_ONE_HOT: Features = tuple((f"class_{k}", f"1 if its class is {k}") for k in range(MOST_CLASSES))


class Shown(Protocol):
    """The options that determine the columns."""

    @property
    def information(self) -> tuple[str, ...]:
        """Information revealed about requests."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the optional features."""
        ...

    @property
    def token_scale(self) -> str:
        """How tokens are observed, ``"capacity"`` or ``"log"``."""
        ...


def optional_columns(table: dict[str, Features], config: Shown) -> Features:
    """Return the features of QUEUE_COLUMNS or ACTIVE_COLUMNS that a configuration shows."""
    shown = {*config.information, *config.features}
    if config.token_scale == "log":
        table = {**table, "class": _ONE_HOT}
    return tuple(column for name, columns in table.items() if name in shown for column in columns)


def scaled(columns: Features, config: Shown) -> Features:
    """Return features of a row with their meanings under the configuration's scale of tokens."""
    if config.token_scale != "log":
        return columns
    return tuple(
        (name, re.sub(r" / capacity$| \(scale: 64\)$", f", {LOG}", meaning) if name in _TOKENS else meaning)
        for name, meaning in columns
    )


def class_features(config: Shown) -> Features:
    """Return name and meaning of the features of the classes (key ``classes``)."""
    if "class_rates" not in config.information:
        return ()
    return tuple(
        (f"{name}_{k}", meaning.format(k)) for k in range(MOST_CLASSES) for name, meaning in CLASS_FEATURES
    )


def moment_features(config: Shown) -> Features:
    """Return name and meaning of the features of the action kind's rule (key ``rule``)."""
    return MOMENT_FEATURES if "rank" in config.features else ()


def cache_features(config: Shown) -> Features:
    """Return name and meaning of the features of the prefix cache (key ``cache``)."""
    return CACHE_FEATURES if "prefix_cache" in config.features else ()


def show_bits(config: Shown) -> int:
    """Return SETTINGS.show."""
    bits = sum(bit for name, bit in SHOW.items() if name in (*config.information, *config.features))
    return bits | (LOG_TOKENS if config.token_scale == "log" else 0)


def reveals_extras(config: Shown) -> bool:
    """Return whether observations contain clients, distributions, renewed predictions or deadlines."""
    return bool(show_bits(config) & _EXTRAS)


def columns_size(config: Shown, num_requests: int) -> int:
    """Return the length of the table of feature columns of an episode with this many requests."""
    return NUM_COLUMNS * num_requests if "features" in config.information else 0


def class_table(classes: Iterable[ClassStatistics], factor: float = 1.0) -> NDArray[np.float64]:
    """Return EPISODE.classes: rate (times ``factor``), mean prompt and mean output of the first classes.

    Returns:
        float64 (3 * MOST_CLASSES,), 0 for missing classes.
    """
    table = np.zeros((MOST_CLASSES, len(CLASS)))
    for row, c in zip(table, classes, strict=False):
        row[CLASS.rate], row[CLASS.prompt], row[CLASS.output] = c.rate * factor, c.prompt_len, c.output_len
    return table.ravel()


@jit_inline
def saturate(x: float, scale: float) -> Any:
    """Return x / (x + scale) for x ≥ 0."""
    return np.float32(x / (x + scale))


@jit_inline
def saturate_signed(x: float, scale: float) -> Any:
    """Return x / (|x| + scale), in (-1, 1)."""
    return np.float32(x / (abs(x) + scale))


@jit_inline
def slack(x: float, scale: float) -> Any:
    """Return the time left to a target as x / (|x| + scale), 1 for no target."""
    if x == np.inf:
        return np.float32(1.0)
    return saturate_signed(x, scale)


@jit_inline
def log_share(tokens: int) -> Any:
    """Return log2(1 + tokens) / HIGHEST, at most 1."""
    if 0 <= tokens < LOG_SHARES.shape[0]:
        return LOG_SHARES[int(tokens)]
    return np.float32(min(math.log2(1.0 + tokens) / HIGHEST, 1.0))


@jit_inline
def token_share(e: Env, tokens: int, capacity: float) -> Any:
    """Return tokens as a share of the capacity, or as a logarithm; at most 1."""
    return log_share(tokens) if e.settings.show & LOG_TOKENS else np.float32(min(tokens / capacity, 1.0))


@jit_inline
def few_tokens(e: Env, tokens: int) -> Any:
    """Return tokens as a fraction (scale 64), or as a logarithm."""
    return log_share(tokens) if e.settings.show & LOG_TOKENS else saturate(float(tokens), 64.0)


@jit
def left_of(e: Env, length: int, num_output_tokens: int) -> Any:
    """Return the tokens left of an output length, at least 1, see :func:`few_tokens`; 0 for unknown."""
    if length == UNKNOWN:
        return np.float32(0.0)
    return few_tokens(e, max(length - num_output_tokens, 1))


@jit
def write_feature_columns(e: Env, i: int, out: Any, at: int) -> None:
    """Write the feature columns of request ``i``."""
    row = i if e.run.turns.shape[0] == 0 else int(e.run.turns[i].row)
    for k in range(NUM_COLUMNS):
        out[at + k] = saturate_signed(e.columns[NUM_COLUMNS * row + k], 1.0)


@jit
def write_extras(e: Env, i: int, num_output_tokens: int, out: Any, at: int) -> int:
    """Write client, distribution, renewed prediction and deadline of request ``i``; return the next free index."""
    show, known = e.settings.show, has_extras(e.run)
    if show & _BIT.client:
        client = e.run.extras[i].client_id if known else UNKNOWN
        out[at] = np.float32(0.0) if client == UNKNOWN else saturate(client + 1.0, 4.0)
        at += 1
    if show & _BIT.length_distribution:
        for k in SHOWN_TENTHS:
            out[at] = left_of(e, e.run.extras[i].tenths[k] if known else UNKNOWN, num_output_tokens)
            at += 1
    if show & _BIT.renewed_length:
        out[at] = left_of(e, e.run.extras[i].renewed_len if known else UNKNOWN, num_output_tokens)
        at += 1
    if show & _BIT.deadline:
        left = np.inf
        if known:
            left = e.run.requests[i].arrival_time + e.run.extras[i].e2e_slo - e.run.w.clock
        out[at] = slack(left, 10.0 * e.settings.time_scale)
        at += 1
    return at


@jit
def write_columns(e: Env, i: int, num_output_tokens: int, out: Any, at: int) -> int:
    """Write the columns of request ``i`` that rows of the queue and the active window share.

    Returns:
        The next free index.
    """
    show, r = e.settings.show, e.run.requests[i]
    if show & _BIT.true_length:
        out[at] = left_of(e, r.output_len, num_output_tokens)
        at += 1
    if show & _BIT.length_interval:
        out[at + INTERVAL.low_left] = left_of(e, r.predicted_low, num_output_tokens)
        out[at + INTERVAL.high_left] = left_of(e, r.predicted_high, num_output_tokens)
        at += len(INTERVAL)
    if show & _BIT.class_ and show & LOG_TOKENS:
        for k in range(MOST_CLASSES):
            out[at + k] = np.float32(1.0) if r.class_id == k else np.float32(0.0)
        at += MOST_CLASSES
    elif show & _BIT.class_:
        out[at] = np.float32(0.0) if r.class_id == UNKNOWN else saturate(r.class_id + 1.0, 4.0)
        at += 1
    if show & _BIT.priority:
        out[at] = saturate_signed(float(r.priority), 1.0)
        at += 1
    if show & _BIT.features:
        write_feature_columns(e, i, out, at)
        at += NUM_COLUMNS
    if show & _EXTRAS:
        at = write_extras(e, i, num_output_tokens, out, at)
    return at


@jit_inline
def shows_saved(e: Env) -> bool:
    """Whether active rows have the column ``saved_duration``."""
    return bool(e.settings.show & _BIT.saved_duration)


@jit_inline
def shows_cache(e: Env) -> bool:
    """Whether the features of the prefix cache are observed."""
    return bool(e.settings.show & _BIT.prefix_cache)


@jit
def update_hit_rate(e: Env) -> None:
    """Count the requests that have started since the last boundary; older ones weigh less."""
    w, episode = e.run.w, e.episode
    starts = w.total_admitted - episode.admitted
    if starts > 0:
        hits = w.total_hit_tokens + w.total_hit_resumed
        known = w.total_known_tokens + w.total_known_resumed
        weight = 0.5 ** (starts / HALF_LIFE)
        episode.recent_hits = weight * episode.recent_hits + (hits - episode.counted_hits)
        episode.recent_known = weight * episode.recent_known + (known - episode.counted_known)
        episode.counted_hits, episode.counted_known = hits, known


@jit
def write_cache(e: Env, out: Any, at: int) -> int:
    """Write the features of the prefix cache; return the next free index."""
    if shows_cache(e):
        out[at + CACHE.kv_cached] = np.float32(e.run.w.kv_cached / float(e.run.problem.kv_capacity))
        out[at + CACHE.hit_rate] = np.float32(e.episode.recent_hits / max(e.episode.recent_known, 1.0))
        at += len(CACHE)
    return at


@jit
def write_hit(e: Env, i: int, shared: int, out: Any, at: int) -> None:
    """Write the columns of the prefix cache of waiting request ``i``.

    Args:
        e: the environment.
        i: the request.
        shared: tokens of its hit that others hold.
        out: its row.
        at: index of the first column.
    """
    r, hit = e.run.requests[i], 0
    if has_cache(e.run):
        hit = e.run.prefix[i].num_units * e.run.problem.prefix_unit
    known = float(r.num_kv_tokens + r.num_prefill_left)
    out[at + HIT.cached], out[at + HIT.shared] = np.float32(hit / known), np.float32(shared / known)


@jit
def write_own(e: Env, slot: Any, out: Any, at: int) -> None:
    """Write the column of the prefix cache of an active request at index ``at`` of its row."""
    held = allocated(e.run.problem, slot.num_kv_tokens)
    kept = 0
    if has_cache(e.run):
        kept = units_of_others(cache_of(e.run), slot.request_id, True) * e.run.problem.prefix_unit
    out[at] = np.float32(1.0 - kept / max(held, 1))


@jit
def write_classes(e: Env, out: Any, at: int) -> int:
    """Write the features of the classes; return the next free index."""
    if e.settings.show & _BIT.class_rates:
        capacity = float(e.run.problem.kv_capacity)
        classes = e.episode.classes
        for k in range(MOST_CLASSES):
            own = len(CLASS) * k
            out[at + CLASS.rate] = saturate(classes[own + CLASS.rate], e.settings.rate_scale)
            out[at + CLASS.prompt] = np.float32(min(classes[own + CLASS.prompt] / capacity, 1.0))
            out[at + CLASS.output] = np.float32(min(classes[own + CLASS.output] / capacity, 1.0))
            at += len(CLASS)
    return at


@jit_inline
def moment_size(e: Env) -> int:
    """Return the number of features with the key ``rule``."""
    return len(MOMENT) if e.settings.show & _BIT.rank else 0
