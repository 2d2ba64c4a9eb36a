"""What an observation shows beyond its usual features: what ``information`` reveals, and ``features`` asked for.

Every need of :data:`kvgym.policy.NEEDS` that an environment reveals is in its observation, so that an agent may
know what a policy may know. Predicted lengths and targets have places of their own in
:mod:`~kvgym.envs.scheduling.observations`; the rest are columns at the end of each row, and for rates of classes a
block behind the future-memory profile. What the rule of a kind of action makes of requests (``rank``) comes after
these, and is written by the kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.envs.scheduling.tables import MOST_CLASSES
from kvgym.envs.scheduling.window import Env
from kvgym.simulator.tables import UNKNOWN
from kvgym.workloads.classes import ClassStatistics

Features = tuple[tuple[str, str], ...]

FEATURES = ("priority", "saved_duration", "rank")
"""What every policy may see of requests and batch times, shown if ``features`` asks for it.

``rank`` is there for kinds of action that have the rule of the scheduler ``ranked``.
"""

# Bits of SETTINGS.show.
SHOW = {
    "true_length": 1,
    "length_interval": 2,
    "class": 4,
    "priority": 8,
    "saved_duration": 16,
    "class_rates": 32,
    "rank": 64,
}
_OUTPUT, _INTERVAL, _CLASS, _PRIORITY, _SAVED, _RATES, _RANK = SHOW.values()

RULE_FEATURES: Features = (
    (
        "rank_score",
        "its score by the rule, without what actions add, less (1 + footprint) times the mean logarithm of the outputs "
        "expected on arrival; in (-1, 1), half-way at 4",
    ),
    (
        "relative_output",
        "logarithm of what its output still to come is reckoned at, less that mean; in (-1, 1), half-way at 1",
    ),
    ("share_to_come", "output still to come / (output still to come + output generated)"),
    ("urgency", "1 - slack / 8, the slack in logarithms of batches; 0 without an objective"),
    ("lost", "1 if it has missed an objective or is bound to"),
)
"""Columns of a row that ``rank`` adds; see docs/ranked.md for what they are made of."""

MOMENT_FEATURES: Features = (
    ("pressure", "log(1 + waiting / (1 + active)), half-way at 1"),
    ("busy", "1 - duration of the smallest batch / duration of the last one"),
    ("usual_output", "mean logarithm of the outputs expected on arrival, half-way at 5"),
    ("learned", "requests that hazards have been learned from, half-way at 64"),
)
"""Features of the moment that ``rank`` adds (key ``rule``)."""
_MOMENT = len(MOMENT_FEATURES)

_ROW_COLUMNS: dict[str, Features] = {
    "true_length": (("output_left", "true output tokens left, half-way at 64"),),
    "length_interval": (
        ("low_left", "output tokens left at least, half-way at 64"),
        ("high_left", "output tokens left at most, half-way at 64"),
    ),
    "class": (("class", "class + 1, half-way at 4; 0 where it has none"),),
    "priority": (("priority", "its priority, in (-1, 1), half-way at 1"),),
}
_QUEUE_COLUMNS: dict[str, Features] = {**_ROW_COLUMNS, "rank": RULE_FEATURES}
_ACTIVE_COLUMNS: dict[str, Features] = {
    **_ROW_COLUMNS,
    "saved_duration": (
        (
            "saved_duration",
            "how much shorter the coming batch gets without it, half-way at the duration scale",
        ),
    ),
    "rank": RULE_FEATURES,
}


class Shown(Protocol):
    """What decides which columns there are."""

    @property
    def information(self) -> tuple[str, ...]:
        """What is revealed of requests."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """What else is asked for."""
        ...


def _columns(table: dict[str, Features], config: Shown) -> Features:
    shown = {*config.information, *config.features}
    return tuple(column for name, columns in table.items() if name in shown for column in columns)


def queue_columns(config: Shown) -> Features:
    """Return name and meaning of the columns that each position of the queue window has besides the usual."""
    return _columns(_QUEUE_COLUMNS, config)


def active_columns(config: Shown) -> Features:
    """Return the same of the active window."""
    return _columns(_ACTIVE_COLUMNS, config)


def class_features(config: Shown) -> Features:
    """Return name and meaning of the features of the classes (key ``classes``)."""
    if "class_rates" not in config.information:
        return ()
    return tuple(
        (f"{name}_{k}", meaning.format(k))
        for k in range(MOST_CLASSES)
        for name, meaning in (
            ("rate", "arrival rate of class {}, half-way at the rate scale"),
            ("prompt", "mean prompt of class {} / capacity"),
            ("output", "mean output of class {} / capacity"),
        )
    )


def moment_features(config: Shown) -> Features:
    """Return name and meaning of what the rule of a kind of action says of the moment (key ``rule``)."""
    return MOMENT_FEATURES if "rank" in config.features else ()


def show_bits(config: Shown) -> int:
    """Return SETTINGS.show."""
    return sum(bit for name, bit in SHOW.items() if name in (*config.information, *config.features))


def class_table(classes: Iterable[ClassStatistics], factor: float = 1.0) -> NDArray[np.float64]:
    """Return EPISODE.classes: rate (times ``factor``), mean prompt and mean output of the first classes.

    Returns:
        float64 (3 * MOST_CLASSES,), 0 where there is no class.
    """
    table = np.zeros((MOST_CLASSES, 3))
    for row, c in zip(table, classes, strict=False):
        row[:] = c.rate * factor, c.prompt_len, c.output_len
    return table.ravel()


@jit_inline
def half_way(x: float, scale: float) -> Any:
    """Return x / (x + scale) for x ≥ 0."""
    return np.float32(x / (x + scale))


@jit
def left_of(length: int, num_output_tokens: int) -> Any:
    """Return the tokens left of an output length, half-way at 64; at least 1 is, and 0 stands for unknown."""
    if length == UNKNOWN:
        return np.float32(0.0)
    return half_way(float(max(length - num_output_tokens, 1)), 64.0)


@jit
def write_columns(e: Env, r: Any, num_output_tokens: int, out: Any, at: int) -> int:
    """Write the columns of a row that queue and active window share; returns the next free place."""
    show = e.settings.show
    if show & _OUTPUT:
        out[at] = left_of(r.output_len, num_output_tokens)
        at += 1
    if show & _INTERVAL:
        out[at] = left_of(r.predicted_low, num_output_tokens)
        out[at + 1] = left_of(r.predicted_high, num_output_tokens)
        at += 2
    if show & _CLASS:
        out[at] = np.float32(0.0) if r.class_id == UNKNOWN else half_way(r.class_id + 1.0, 4.0)
        at += 1
    if show & _PRIORITY:
        out[at] = np.float32(r.priority / (abs(float(r.priority)) + 1.0))
        at += 1
    return at


@jit_inline
def shows_saved(e: Env) -> bool:
    """Whether active rows end with the duration that evicting them saves."""
    return bool(e.settings.show & _SAVED)


@jit
def write_classes(e: Env, out: Any, at: int) -> int:
    """Write what is known of the classes; returns the next free place."""
    if e.settings.show & _RATES:
        capacity = float(e.run.problem.kv_capacity)
        for k in range(MOST_CLASSES):
            out[at] = half_way(e.episode.classes[3 * k], e.settings.rate_scale)
            out[at + 1] = np.float32(min(e.episode.classes[3 * k + 1] / capacity, 1.0))
            out[at + 2] = np.float32(min(e.episode.classes[3 * k + 2] / capacity, 1.0))
            at += 3
    return at


@jit_inline
def moment_size(e: Env) -> int:
    """Return the number of features that the rule of the kind of action writes of the moment."""
    return _MOMENT if e.settings.show & _RANK else 0
