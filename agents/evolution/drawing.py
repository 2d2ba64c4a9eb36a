"""Random descriptions: plain YAML in which a distribution may replace any value.

A mapping with one of these as its only key is replaced by a random value:

- ``{uniform: [low, high]}``: a real number, uniform.
- ``{log_uniform: [low, high]}``: a real number with uniform logarithm; 0 < low.
- ``{integer: [low, high]}``: a whole number, uniform, both ends included.
- ``{choice: [a, b, ...]}``: one of these, with equal probability or in proportion to ``weights: [...]`` next to it.
  The chosen value may have random places, too.

Each place has its own random stream, named by its path, so that changing one leaves the others unchanged.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown

_RANGES = ("uniform", "log_uniform", "integer")
_KINDS = (*_RANGES, "choice")

Pick = Callable[[str, Mapping[str, Any]], Any]
"""Map a place and its distribution to a value."""


def draw(description: Any, seed: int, place: str = "") -> Any:
    """Return a description with its random places drawn; equal seeds give equal bits.

    Args:
        description: mappings, lists and plain values.
        seed: non-negative.
        place: path in the whole description, keys joined by dots.

    Raises:
        ConfigError: a distribution is malformed; the message names its place.
    """

    def pick(where: str, distribution: Mapping[str, Any]) -> Any:
        rng = generator(seed, where)
        kind = next(k for k in _KINDS if k in distribution)
        if kind == "choice":
            weights = np.asarray(distribution.get("weights", [1.0] * len(distribution[kind])), np.float64)
            return distribution[kind][int(rng.choice(len(weights), p=weights / weights.sum()))]
        low, high = distribution[kind]
        if kind == "integer":
            return int(rng.integers(low, high, endpoint=True))
        if kind == "uniform":
            return float(rng.uniform(low, high))
        # exp(log(x)) may miss x by a rounding
        return float(np.clip(np.exp(rng.uniform(math.log(low), math.log(high))), low, high))

    return _resolve(description, pick, place)


def typical(description: Any, place: str = "") -> Any:
    """Return a description with the middle of every range (of logarithms for log_uniform) and first choices.

    Raises:
        ConfigError: a distribution is malformed; the message names its place.
    """

    def pick(where: str, distribution: Mapping[str, Any]) -> Any:
        kind = next(k for k in _KINDS if k in distribution)
        if kind == "choice":
            return distribution[kind][0]
        low, high = distribution[kind]
        if kind == "integer":
            return (low + high) // 2
        return math.sqrt(low * high) if kind == "log_uniform" else (low + high) / 2

    return _resolve(description, pick, place)


def extremes(description: Any, place: str = "") -> list[Any]:
    """Return descriptions without random places, in which every option and both ends of every range occur.

    They are used to check a description before anything is drawn.

    Raises:
        ConfigError: a distribution is malformed; the message names its place.
    """

    def variants(value: Any, where: str) -> list[Any]:
        if _is_random(value):
            _check(value, where)
            if "choice" in value:
                return [found for option in value["choice"] for found in variants(option, where)]
            return list(next(iter(value.values())))
        if isinstance(value, Mapping):
            keys = list(value)
            return [
                dict(zip(keys, row, strict=True)) for row in rows([(value[k], f"{where}.{k}") for k in keys])
            ]
        if isinstance(value, list | tuple):
            return rows([(item, f"{where}.{i}") for i, item in enumerate(value)])
        return [value]

    def rows(parts: list[tuple[Any, str]]) -> list[list[Any]]:
        found = [variants(value, where) for value, where in parts]
        count = max((len(options) for options in found), default=1)
        return [[options[k % len(options)] for options in found] for k in range(count)]

    return variants(description, place)


def generator(seed: int, place: str) -> np.random.Generator:
    """Return the random generator of a place."""
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(place.encode()),)))
    )


def _resolve(value: Any, pick: Pick, place: str) -> Any:
    if _is_random(value):
        _check(value, place)
        return _resolve(pick(place, value), pick, place + ".chosen")
    if isinstance(value, Mapping):
        return {key: _resolve(inside, pick, f"{place}.{key}") for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(inside, pick, f"{place}.{i}") for i, inside in enumerate(value)]
    return value


def _is_random(value: Any) -> bool:
    return isinstance(value, Mapping) and (
        (len(value) == 1 and next(iter(value)) in _KINDS) or value.keys() == {"choice", "weights"}
    )


def _check(value: Mapping[str, Any], place: str) -> None:
    """Raise an error for a malformed distribution."""
    kind = next(k for k in _KINDS if k in value)
    given, where = value[kind], place.lstrip(".") or "the description"
    if kind == "choice":
        if not isinstance(given, list | tuple) or not given:
            raise ConfigError(f"{where}: choice needs a list of one or more values, got {shown(given)}")
        weights = value.get("weights")
        if weights is not None and not (
            isinstance(weights, list | tuple)
            and len(weights) == len(given)
            and all(_is_number(w) and w >= 0 for w in weights)
            and sum(weights) > 0
        ):
            raise ConfigError(
                f"{where}: weights need a number ≥ 0 for each of {len(given)} choices, not all 0; got {shown(weights)}"
            )
        return
    pair = isinstance(given, list | tuple) and len(given) == 2 and all(_is_number(x) for x in given)
    if not pair or given[0] > given[1]:
        raise ConfigError(f"{where}: {kind} needs two numbers [low, high], low ≤ high; got {shown(given)}")
    if kind == "log_uniform" and given[0] <= 0:
        raise ConfigError(f"{where}: log_uniform needs 0 < low, got {shown(given)}")
    if kind == "integer" and not all(isinstance(x, int) for x in given):
        raise ConfigError(f"{where}: integer needs whole numbers, got {shown(given)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
