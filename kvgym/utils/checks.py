"""Checks of what programs hand over: whole numbers, numbers, arrays, seeds. It loads nothing but NumPy."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, KVGymError, shown

MAX_SEEDS = 1_000_000
"""Most seeds that one comparison takes."""


def whole_number(value: Any, what: str, expected: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """Return a whole number, of Python or NumPy, as an integer.

    Args:
        value: the number; truth values are none.
        what: what it is called, for the message.
        expected: what is expected, for the message.
        least: the smallest that is valid.
        most: the largest.

    Raises:
        ConfigError: it is something else.
    """
    number = _index(value)
    if number is None or not least <= number <= most:
        raise ConfigError(f"{what} = {shown(value)}; expected {expected}")
    return number


def check_one_of(value: Any, what: str, names: Sequence[str]) -> str:
    """Return a text that is one of several.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, str) or value not in names:
        raise ConfigError(f"{what} = {shown(value)}; valid: {', '.join(names)}")
    return value


def real_number(value: Any, what: str, expected: str, valid: Callable[[float], bool]) -> float:
    """Return a number, of Python or NumPy, as a float; arguments and errors as of :func:`whole_number`."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or not valid(number):
        raise ConfigError(f"{what} = {shown(value)}; expected {expected}")
    return number


def check_text(value: Any, what: str, expected: str) -> str:
    """Return a text.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{what} = {shown(value)}; expected {expected}")
    return value


def check_name(value: Any, what: str) -> None:
    """Check the name of something that is registered.

    Raises:
        ConfigError: it is no text, or an empty one.
    """
    if not isinstance(value, str) or not value:
        raise ConfigError(f"name of a {what}: {shown(value)}; expected a text")


def as_array(given: Any, what: str, error: type[KVGymError] = ConfigError) -> NDArray[Any]:
    """Return what was given as an array.

    Args:
        given: an array, or what NumPy makes one of.
        what: what it is called, for the message.
        error: to raise.

    Raises:
        KVGymError: of that kind: rows of different lengths, or a masked value.
    """
    try:
        made = np.asarray(given)
    except Exception as cause:  # objects of others convert themselves as they like
        raise error(f"{what} cannot be made an array: {cause}") from None
    if np.ma.is_masked(given):
        raise error(f"{what} has masked values; expected a value in every row")
    return made


def check_parts(given: Any, kinds: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Return a mapping that has certain entries, and no others.

    Args:
        given: the mapping.
        kinds: class or classes of each entry, as for ``isinstance``.
        what: what it is, for the message.

    Raises:
        ConfigError: it is none, an entry is missing or unknown, or of another class.
    """
    if not isinstance(given, Mapping) or given.keys() != kinds.keys():
        raise ConfigError(f"{what} is damaged: {shown(given)}; expected {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(given[name], kind):
            raise ConfigError(f"{what} is damaged: {name} = {shown(given[name])}")
    return given


def check_array(given: Any, like: NDArray[Any], what: str) -> NDArray[Any]:
    """Return an array that has the form and the dtype of another one.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(given, np.ndarray) or given.dtype != like.dtype or given.shape != like.shape:
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else shown(given)
        raise ConfigError(f"{what} = {found}; expected an array, {like.dtype} {like.shape}")
    return given


def check_seed(seed: Any, what: str = "seed") -> int:
    """Return a seed as an integer.

    Args:
        seed: a whole number ≥ 0, of Python or NumPy; truth values are none.
        what: what it is called, for the message.

    Raises:
        ConfigError: it is something else.
    """
    number = _index(seed)
    if number is None or number < 0:
        raise ConfigError(f"{what} must be a whole number ≥ 0, got {shown(seed)}")
    return number


def check_seeds(seeds: Any, first: int = 0) -> tuple[int, ...]:
    """Return seeds as integers.

    Args:
        seeds: how many, or these.
        first: where they start if it is a number of them.

    Raises:
        ConfigError: one is no seed, there are none or more than :data:`MAX_SEEDS`, or one is there twice.
    """
    if not isinstance(seeds, Iterable):
        count = check_seed(seeds, "the number of seeds")
        seeds = range(first, first + count)
    elif isinstance(seeds, str | bytes):
        raise ConfigError(f"seeds {shown(seeds)}; expected whole numbers ≥ 0")
    found = tuple(check_seed(seed, "each seed") for seed in itertools.islice(seeds, MAX_SEEDS + 1))
    if not 0 < len(found) <= MAX_SEEDS or len(set(found)) < len(found):
        raise ConfigError(
            f"seeds {shown(seeds)}; expected different whole numbers ≥ 0, at least one, at most {MAX_SEEDS:,}"
        )
    return found


def _index(value: Any) -> int | None:
    """Return a whole number as an integer, None where it is none."""
    try:
        return None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        return None
