"""Checks of numbers for all functions of the theory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, shown
from kvgym.utils.checks import as_array


def check_number(
    name: str,
    value: float,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> float:
    """Return ``value`` if it is a finite number within the bounds.

    Args:
        name: of the argument, for the message.
        value: the number.
        least: the smallest value allowed.
        above: a bound that must be exceeded.
        most: the largest value allowed.
        below: a bound that must not be reached.
        whole: only whole numbers are allowed.

    Raises:
        ConfigError: it is not; the message has its name, its value and what was expected.
    """
    bounds = (least, above, most, below)
    found = as_array(value, name)
    if found.ndim or not _within(found, bounds, whole):
        raise ConfigError(f"{name} must be a {_expected(bounds, whole)}, got {shown(value)}")
    return value


def check_numbers(
    name: str,
    values: ArrayLike,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> NDArray[np.float64]:
    """Return ``values`` as float64 of any shape if all are finite numbers within the bounds; see above.

    Raises:
        ConfigError: one is not; the message has their name, the values and what was expected.
    """
    bounds = (least, above, most, below)
    found = as_array(values, name)
    if not _within(found, bounds, whole):
        raise ConfigError(f"{name}: each must be a {_expected(bounds, whole)}, got {shown(values)}")
    return found.astype(np.float64)


def _within(found: NDArray[Any], bounds: tuple[float | None, ...], whole: bool) -> bool:
    if found.dtype.kind not in "iuf":
        return False
    least, above, most, below = bounds
    return bool(
        np.all(np.isfinite(found))
        and (least is None or np.all(found >= least))
        and (above is None or np.all(found > above))
        and (most is None or np.all(found <= most))
        and (below is None or np.all(found < below))
        and (not whole or np.all(found == np.floor(found)))
    )


def _expected(bounds: tuple[float | None, ...], whole: bool) -> str:
    signs = zip((">=", ">", "<=", "<"), bounds, strict=True)
    limits = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
    return " ".join(filter(None, ("finite", "whole" if whole else "", "number", limits)))
