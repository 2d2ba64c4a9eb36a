"""Registered reward terms and observation parts, in addition to the standard ones.

A reward term is a compiled function ``earn(where, before, memory) -> float``. It is called once for every iteration of
the worker, at the boundary that ends it and before the next decision. ``before`` is the clock at the beginning of the
iteration, seconds; ``memory`` is float64, the term's own state, zero at the beginning of an episode. An observation
part is a compiled function ``write(where, out)``, called for every observation; it writes all of ``out``, float32, and
has no state. Both get the tables by ``e = open_environment(where)``.

docs/components.md has an example of each; the library's own are at the end of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import types

from kvgym.compiling.kernel import Kernel, kernel
from kvgym.compiling.places import places
from kvgym.envs.scheduling.opening import WHERE, open_environment
from kvgym.envs.scheduling.revealed import FEATURES, saturate
from kvgym.envs.scheduling.tables import MOST_COMPONENTS, REWARD_TERMS, Features
from kvgym.errors import ConfigError, shown, some
from kvgym.simulator.tables import UNKNOWN
from kvgym.utils.arguments import explained
from kvgym.utils.checks import real_number, whole_number
from kvgym.utils.registry import Registry, load_plugins

TERM_SIGNATURE = types.float64(WHERE, types.float64, types.float64[::1])
PART_SIGNATURE = types.void(WHERE, types.float32[::1])

MOST_MEMORY = 1_000_000
"""Upper limit of the size of a reward term's memory."""

KEYS = ("system", "profile", "classes", "cache", "rule", "queue", "active")
"""Reserved keys of Dict observations, which registered parts cannot use."""


@explained
def reward_kernel(function: Callable[..., float]) -> Kernel:
    """Make a kernel ``(where, before: float, memory: float64 (m,)) -> float``, see the module."""
    return kernel(TERM_SIGNATURE)(function)


@explained
def observation_kernel(function: Callable[..., None]) -> Kernel:
    """Make a kernel ``(where, out: float32 (k,)) -> None``, see the module."""
    return kernel(PART_SIGNATURE)(function)


@dataclass(frozen=True)
class RewardTerm:
    """A reward term.

    Attributes:
        name: its name in the environment argument ``reward`` and in ``reward_terms``.
        earn: made by :func:`reward_kernel`; returns the reward of an iteration, larger is better.
        summary: one line for listings, with the unit.
        memory: m, the size of its memory.
    """

    name: str
    earn: Kernel
    summary: str
    memory: int = 0

    def __post_init__(self) -> None:
        """Check the fields."""
        _check("reward term", self.name, self.earn, "earn", TERM_SIGNATURE, "reward_kernel", REWARD_TERMS)
        what = f"reward term {self.name!r}"
        _one_line(self.summary, f"{what}: summary")
        whole_number(self.memory, f"{what}: memory", f"0 to {MOST_MEMORY:,} numbers", 0, MOST_MEMORY)


@dataclass(frozen=True)
class ObservationPart:
    """A part of an observation.

    Attributes:
        name: its name in the environment argument ``features``, and its key in Dict observations.
        write: made by :func:`observation_kernel`.
        features: name and meaning of each number it writes.
        low: lower bound of all its numbers.
        high: upper bound of all its numbers.
    """

    name: str
    write: Kernel
    features: Features
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        _check(
            "observation",
            self.name,
            self.write,
            "write",
            PART_SIGNATURE,
            "observation_kernel",
            KEYS + FEATURES,
        )
        what = f"observation {self.name!r}"
        pairs = self.features if isinstance(self.features, tuple) else ()
        if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise ConfigError(
                f"{what}: features = {shown(self.features)}; expected one or more (name, meaning), in a tuple"
            )
        for name, meaning in pairs:
            _one_line(name, f"{what}: name of a feature")
            _one_line(meaning, f"{what}: meaning of feature {shown(name)}")
        if len({name for name, _ in pairs}) < len(pairs):
            raise ConfigError(f"{what}: features {some(name for name, _ in pairs)}; expected different names")
        finite = lambda number: abs(number) <= float(np.finfo(np.float32).max)  # noqa: E731
        low = real_number(self.low, f"{what}: low", "a finite float32", finite)
        high = real_number(self.high, f"{what}: high", "a finite float32", finite)
        if not low < high:
            raise ConfigError(f"{what}: from low = {low:g} to high = {high:g}; expected low < high")


def _check(
    what: str, name: str, made: Any, field: str, signature: Any, decorator: str, taken: Sequence[str]
) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name in taken:
        raise ConfigError(
            f"{what} {shown(name)}: expected a name of letters, digits and _ other than {', '.join(taken)}"
        )
    if not isinstance(made, Kernel) or made.signature != signature:
        raise ConfigError(f"{what} {shown(name)}: {field} must be made by {decorator}, got {shown(made)}")


def _one_line(text: Any, what: str) -> None:
    if not isinstance(text, str) or not text.strip() or "\n" in text:
        raise ConfigError(f"{what} = {shown(text)}; expected a text of one line")


REWARDS: Registry[RewardTerm] = Registry(
    "reward term", partial(load_plugins, "kvgym.rewards", "reward terms")
)
"""Registered reward terms by name; the standard ones are in :data:`~kvgym.envs.scheduling.tables.REWARD_TERMS`."""

OBSERVATIONS: Registry[ObservationPart] = Registry(
    "feature", partial(load_plugins, "kvgym.observations", "features")
)
"""Registered observation parts by name."""


def chosen_terms(names: Sequence[str]) -> tuple[RewardTerm, ...]:
    """Return the registered reward terms among the names of reward terms.

    Raises:
        ConfigError: there are more than ``MOST_COMPONENTS``.
    """
    return tuple(
        REWARDS[name] for name in _limited("reward terms", [n for n in names if n not in REWARD_TERMS])
    )


def chosen_parts(names: Sequence[str]) -> tuple[ObservationPart, ...]:
    """Return the registered observation parts among the names of features.

    Raises:
        ConfigError: there are more than ``MOST_COMPONENTS``.
    """
    return tuple(OBSERVATIONS[name] for name in _limited("features", [n for n in names if n in OBSERVATIONS]))


def _limited(what: str, names: list[str]) -> list[str]:
    if len(names) > MOST_COMPONENTS:
        raise ConfigError(f"{len(names)} registered {what}; an environment takes {MOST_COMPONENTS} at most")
    return names


@reward_kernel
def earn_normalized_latency(where: Any, before: float, memory: Any) -> float:
    """Earn minus the latency per output token of the requests that have finished (W. Kwon et al., SOSP 2023)."""
    e = open_environment(where)
    total = 0.0
    for j in range(e.run.w.num_finished):
        i = e.run.finished[j]
        r = e.run.requests[i]
        total -= (r.finish_time - r.arrival_time) / r.num_output_tokens
    return total


@reward_kernel
def earn_queue_shaping(where: Any, before: float, memory: Any) -> float:
    """Earn the decrease in the number of waiting requests since the last iteration."""
    e = open_environment(where)
    change = memory[0] - e.run.w.num_waiting
    memory[0] = e.run.w.num_waiting
    return change


BACKLOG_FEATURES: Features = (
    ("prompt", "tokens to prefill of all waiting requests (scale: capacity)"),
    ("predicted", "their predicted output tokens left (scale: capacity); 0 without predictions"),
    ("behind", "share of them behind the queue window"),
)
"""Features of the whole queue."""
_BACKLOG = places(BACKLOG_FEATURES)


@observation_kernel
def write_backlog(where: Any, out: Any) -> None:
    """Write sums over the whole queue; the window shows only its front."""
    e = open_environment(where)
    run, prompt, predicted = e.run, 0.0, 0.0
    i = run.w.queue_head
    while i != UNKNOWN:
        r = run.requests[i]
        prompt += r.num_prefill_left
        if r.predicted_len != UNKNOWN:
            predicted += max(r.predicted_len - r.num_output_tokens, 1)
        i = r.queue_next
    capacity = float(run.problem.kv_capacity)
    waiting = run.w.num_waiting
    out[_BACKLOG.prompt] = saturate(prompt, capacity)
    out[_BACKLOG.predicted] = saturate(predicted, capacity)
    out[_BACKLOG.behind] = np.float32(max(waiting - e.settings.queue_window, 0) / max(waiting, 1))


for _term in (
    RewardTerm(
        "normalized_latency",
        earn_normalized_latency,
        "minus end-to-end latency per output token of requests that finish, s per token",
    ),
    RewardTerm(
        "queue_shaping",
        earn_queue_shaping,
        "decrease in the number of waiting requests; a potential, 0 over a completed episode",
        memory=1,
    ),
):
    REWARDS.add(_term.name, _term)

OBSERVATIONS.add("backlog", ObservationPart("backlog", write_backlog, BACKLOG_FEATURES))
