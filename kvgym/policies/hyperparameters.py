"""Declarations of hyperparameters, and their checks.

A hyperparameter of a policy or router is declared once, as an attribute of its class::

    class FCFS(CompiledPolicy):
        protection: float = fraction(0.0, search=(0.0, 0.05, 0.1))
        "fraction of the capacity that admission leaves free, in [0, 1)."

The constructor with its keyword, default and check follows, and so do the row of ``kvgym list policies NAME``, with the
text below the attribute, and the values that ``kvgym tune`` tries. The attribute of an instance is its value. Checks of
several together belong into ``__post_init__``. A class with a constructor of its own declares nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal as Exact
from typing import TYPE_CHECKING, Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import check_fields, explained
from kvgym.utils.factory import Configurable
from kvgym.utils.hyperparameters import Hyperparameter, declared

__all__ = [
    "AUTO",
    "Declaring",
    "Weight",
    "choice",
    "flag",
    "fraction",
    "fraction_of",
    "hyperparameter",
    "numbers_of",
    "parsed",
    "positive",
    "require",
    "require_count",
    "require_flag",
    "require_fraction",
    "weight",
    "weights_of",
    "whole",
]

if TYPE_CHECKING:
    from typing import dataclass_transform as dataclass_transform
else:  # Python 3.11 has it

    def dataclass_transform(**_: Any) -> Callable[[type], type]:
        """Return classes unchanged: only type checkers read the decorator."""
        return lambda cls: cls


AUTO = "auto"
"""Value of a hyperparameter that is set before a run by what the system is, see :meth:`Policy.resolve`."""


@dataclass(frozen=True)
class Weight:
    """A real hyperparameter that evolution may learn.

    Attributes:
        name: keyword of the policy's constructor.
        default: its default; if size > 1, the default of every entry.
        step: size of a typical change, the initial standard deviation of a search.
        low: least value.
        high: greatest value.
        size: number of entries; with more than 1 the hyperparameter is a tuple of floats.
        meaning: what it does, for the docstring of the constructor.
    """

    name: str
    default: float
    step: float
    low: float = -math.inf
    high: float = math.inf
    size: int = 1
    meaning: str = ""

    def __post_init__(self) -> None:
        """Check the fields: ConfigError if one has another type, or if numbers contradict each other."""
        check_fields(self)
        if not (self.low <= self.default <= self.high and 0 < self.step < math.inf and self.size >= 1):
            raise ConfigError(
                f"Weight {shown(self.name)}: default {self.default:g}, step {self.step:g}, from {self.low:g} to "
                f"{self.high:g}, size {self.size}; expected low ≤ default ≤ high, a step > 0 and a size ≥ 1"
            )


@explained
def hyperparameter(
    default: Any,
    valid: Callable[[Any], bool] | None = None,
    expected: str = "",
    *,
    kept: Callable[[Any], Any] | None = None,
    search: Iterable[Any] = (),
) -> Any:
    """Declare a hyperparameter.

    Args:
        default: its default.
        valid: returns whether a value is valid; None = any is, and ``__post_init__`` checks it.
        expected: the valid values, for messages.
        kept: converts a valid value to the one that instances have; None = as given.
        search: the values that ``kvgym tune`` tries.
    """

    def checked(name: str, value: Any) -> Any:
        if valid is not None:
            require(name, value, valid(value), expected)
        return value if kept is None else kept(value)

    return Hyperparameter(default, checked, tuple(search))


@explained
def whole(
    default: int | str | None, *, least: int = 1, expected: str = "", search: Iterable[Any] = ()
) -> Any:
    """Declare a whole number ≥ ``least``; a default of None or AUTO is also valid."""

    def valid(value: Any) -> bool:
        special = not isinstance(default, int) and type(value) is type(default) and value == default
        return special or (isinstance(value, int) and value >= least)

    return hyperparameter(default, valid, expected or f"a whole number ≥ {least}", search=search)


@explained
def fraction(default: float, *, search: Iterable[Any] = (), meaning: str = "") -> Any:
    """Declare a fraction in [0, 1); ``meaning`` is for one that several classes share."""
    return Hyperparameter(default, _after(require_fraction), tuple(search), meaning=meaning)


@explained
def positive(default: float, *, search: Iterable[Any] = ()) -> Any:
    """Declare a finite number > 0; instances have a float."""

    def valid(value: Any) -> bool:
        return isinstance(value, int | float) and 0 < value < math.inf

    return hyperparameter(default, valid, "a number > 0", kept=float, search=search)


@explained
def flag(default: bool | str, *, search: Iterable[Any] = ()) -> Any:
    """Declare a hyperparameter that is on or off; a default of AUTO is also valid."""

    def check(name: str, value: Any) -> None:
        if not (default == AUTO and isinstance(value, str) and value == AUTO):
            require_flag(name, value)

    return Hyperparameter(default, _after(check), tuple(search))


@explained
def choice(default: str, names: Sequence[str], *, expected: str = "", search: Iterable[Any] = ()) -> Any:
    """Declare one of several names."""
    expected = expected or " or ".join(names)
    return hyperparameter(default, lambda value: value in names, expected, search=search)


@explained
def parsed(default: Any, parse: Callable[[str, Any], Any], *, search: Iterable[Any] = ()) -> Any:
    """Declare a hyperparameter that ``parse`` checks and converts, a function of its name and the given value."""
    return Hyperparameter(default, parse, tuple(search))


@explained
def weight(
    default: float, step: float, low: float, high: float, meaning: str, *, search: Iterable[Any] = ()
) -> Any:
    """Declare a real number that evolution may learn, see :class:`Weight`."""

    def valid(value: Any) -> bool:
        return isinstance(value, int | float | np.number) and bool(low <= value <= high)

    made: Hyperparameter = hyperparameter(
        default, valid, f"a number from {low:g} to {high:g}", kept=float, search=search
    )
    return replace(made, learned=(step, low, high), meaning=meaning)


@explained
def weights_of(cls: type[Any]) -> tuple[Weight, ...]:
    """Return the weights that a class declares."""
    return tuple(
        Weight(name, x.default, *x.learned, meaning=x.meaning)
        for name, x in declared(cls).items()
        if x.learned
    )


def _after(require: Callable[[str, Any], None]) -> Callable[[str, Any], Any]:
    """Return a function of name and value that checks the value and returns it."""

    def checked(name: str, value: Any) -> Any:
        require(name, value)
        return value

    return checked


@explained
def fraction_of(capacity: int, fraction: float) -> int:
    """Return floor((1 - fraction) * capacity), computed exactly from the decimal as written."""
    return int((1 - Exact(str(fraction))) * capacity)


@explained
def require(name: str, value: Any, condition: bool, expected: str) -> None:
    """Check a hyperparameter.

    Raises:
        ConfigError: ``condition`` does not hold; the message states the expected values.
    """
    if isinstance(value, bool) or not condition:
        raise ConfigError(f"{name} = {shown(value)}; expected {expected}")


@explained
def require_count(name: str, value: Any, least: int = 1) -> None:
    """Check a hyperparameter that is a whole number.

    Raises:
        ConfigError: it is not a whole number ≥ ``least``.
    """
    require(name, value, isinstance(value, int) and value >= least, f"a whole number ≥ {least}")


@explained
def require_fraction(name: str, value: Any) -> None:
    """Check a hyperparameter that is a fraction below 1.

    Raises:
        ConfigError: it is not a number in [0, 1).
    """
    require(name, value, isinstance(value, int | float) and 0 <= value < 1, "a fraction in [0, 1)")


@explained
def require_flag(name: str, value: Any) -> None:
    """Check a hyperparameter that is on or off.

    Raises:
        ConfigError: it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {shown(value)}; expected True or False")


@explained
def numbers_of(name: str, value: Any, kind: type[int] | type[float] = int) -> tuple[Any, ...]:
    """Return a hyperparameter that is a list of numbers.

    Args:
        name: name of the hyperparameter.
        value: one number, a sequence of numbers, or text such as ``"4/4/4"`` (as on the command line, where
            commas separate hyperparameters).
        kind: ``int`` or ``float``.

    Raises:
        ConfigError: it is not a list of such numbers.
    """
    parts = value.split("/") if isinstance(value, str) else value
    parts = parts.tolist() if isinstance(parts, np.ndarray) else parts
    parts = [parts] if not isinstance(parts, Iterable) else list(parts)
    try:
        numbers = tuple(kind(part) for part in parts)
        whole = kind is float or all(float(part) == n for part, n in zip(parts, numbers, strict=True))
    except (TypeError, ValueError, OverflowError):
        numbers, whole = (), False
    what = "whole numbers" if kind is int else "numbers"
    if not numbers or not whole or any(isinstance(part, bool) for part in parts):
        raise ConfigError(f"{name} = {shown(value)}; expected {what}, one or several as in 4/4/4")
    return numbers


class Declaring(Configurable):
    """What policies and routers have in common: hyperparameters that are declared, some to be learned."""

    @classmethod
    def weights(cls, **fixed: Any) -> tuple[Weight, ...]:
        """Return the real hyperparameters that can be learned, those declared as such.

        Args:
            **fixed: the other hyperparameters, which may decide sizes.
        """
        return weights_of(cls)
