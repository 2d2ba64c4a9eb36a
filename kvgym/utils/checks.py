"""Checks of arguments: whole numbers, numbers, arrays, seeds. Imports only NumPy."""

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
"""Most seeds of one comparison."""


def whole_number(value: Any, what: str, expected: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """Return a whole number, of Python or NumPy, as an integer.

    Args:
        value: the number; booleans are refused.
        what: name of the value, for the message.
        expected: what is expected, for the message.
        least: smallest valid value.
        most: largest valid value.

    Raises:
        ConfigError: anything else.
    """
    number = _index(value)
    if number is None or not least <= number <= most:
        raise ConfigError(f"{what} = {shown(value)}; expected {expected}")
    return number


def check_flag(value: Any, what: str) -> bool:
    """Return a truth value, of Python or NumPy.

    Raises:
        ConfigError: neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{what} = {shown(value)}; expected True or False")
    return bool(value)


def check_one_of(value: Any, what: str, names: Sequence[str]) -> str:
    """Return a string that must be one of several.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, str) or value not in names:
        raise ConfigError(f"{what} = {shown(value)}; valid: {', '.join(names)}")
    return value


def real_number(value: Any, what: str, expected: str, valid: Callable[[float], bool]) -> float:
    """Return a number, of Python or NumPy, as a float; arguments and errors as for :func:`whole_number`."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool | np.bool_) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or not valid(number):
        raise ConfigError(f"{what} = {shown(value)}; expected {expected}")
    return number


def check_text(value: Any, what: str, expected: str) -> str:
    """Return a string.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{what} = {shown(value)}; expected {expected}")
    return value


def check_name(value: Any, what: str) -> None:
    """Check a name to register.

    Raises:
        ConfigError: not a string, or an empty one.
    """
    if not isinstance(value, str) or not value:
        raise ConfigError(f"name of a {what}: {shown(value)}; expected a text")


def as_array(given: Any, what: str, error: type[KVGymError] = ConfigError) -> NDArray[Any]:
    """Convert an argument to an array.

    Args:
        given: an array, or anything that NumPy converts to one.
        what: name of the argument, for the message.
        error: class of the error to raise.

    Raises:
        KVGymError: an ``error``: rows of different lengths, or a masked value.
    """
    try:
        made = np.asarray(given)
    except Exception as cause:  # a user's object may raise anything
        raise error(f"{what} cannot be made an array: {cause}") from None
    if made is not given and np.ma.is_masked(given):
        raise error(f"{what} has masked values; expected a value in every row")
    return made


MOST = 2**62 - 1
"""Largest number of :func:`whole_numbers`: the sum of two is still an int64."""


def whole_numbers(
    given: Any, what: str, error: type[KVGymError] = ConfigError, least: int = 0, most: int = MOST
) -> NDArray[np.int64]:
    """Return a copy of a one-dimensional array of whole numbers, int64 (n,).

    Args:
        given: an array of any dtype of whole numbers, or anything that NumPy converts to one.
        what: name of the argument, for the message.
        error: class of the error to raise.
        least: smallest valid number.
        most: largest valid number.

    Raises:
        KVGymError: an ``error``: another shape or dtype, or a number out of range.
    """
    array = as_array(given, what, error)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise error(f"{what} has shape {array.shape} and dtype {array.dtype}; expected (n,) integers")
    if array.size and (array.min() < least or array.max() > most):
        row = int(np.argmax((array < least) | (array > most)))
        largest = f"2^{most.bit_length()} - 1" if most & (most + 1) == 0 else f"{most:,}"
        raise error(f"{what}, row {row}: {array[row]}; expected a whole number from {least} to {largest}")
    return array.astype(np.int64)


def check_parts(given: Any, kinds: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    """Return a mapping that must have exactly the given entries.

    Args:
        given: the mapping.
        kinds: class or classes of each entry, as for ``isinstance``.
        what: name of the mapping, for the message.

    Raises:
        ConfigError: not a mapping, or an entry is missing, unknown or of another class.
    """
    if not isinstance(given, Mapping) or given.keys() != kinds.keys():
        raise ConfigError(f"{what} is damaged: {shown(given)}; expected {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(given[name], kind):
            raise ConfigError(f"{what} is damaged: {name} = {shown(given[name])}")
    return given


def check_array(given: Any, like: NDArray[Any], what: str) -> NDArray[Any]:
    """Return an array that must have the shape and dtype of another one.

    Raises:
        ConfigError: anything else.
    """
    if not isinstance(given, np.ndarray) or given.dtype != like.dtype or given.shape != like.shape:
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else shown(given)
        raise ConfigError(f"{what} = {found}; expected an array, {like.dtype} {like.shape}")
    return given


def check_seed(seed: Any, what: str = "seed") -> int:
    """Return a seed as an integer.

    Args:
        seed: a whole number ≥ 0, of Python or NumPy; booleans are refused.
        what: name of the seed, for the message.

    Raises:
        ConfigError: anything else.
    """
    number = _index(seed)
    if number is None or number < 0:
        raise ConfigError(f"{what} must be a whole number ≥ 0, got {shown(seed)}")
    return number


def check_seeds(seeds: Any, first: int = 0) -> tuple[int, ...]:
    """Return seeds as integers.

    Args:
        seeds: the number of seeds, or the seeds themselves.
        first: the first seed if a number is given.

    Raises:
        ConfigError: an invalid seed, none, more than :data:`MAX_SEEDS`, or duplicates.
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
    """Return a whole number as an integer, None for anything else."""
    try:
        return None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        return None
