"""Checks of arguments for all batch-time models."""

from __future__ import annotations

import math

from kvgym.errors import ConfigError, shown

LARGEST = 1e100
"""Largest parameter of a model, so that the time of any batch is finite."""


def number(model: str, name: str, value: object) -> float:
    """Return ``value`` as a finite float.

    Raises:
        ConfigError: it is not a finite number, or exceeds :data:`LARGEST`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ConfigError(f"batch time {shown(model)}: {name} must be a finite number, got {shown(value)}")
    if abs(value) > LARGEST:
        raise ConfigError(f"batch time {shown(model)}: {name} = {shown(value)}; expected at most {LARGEST:g}")
    return float(value)


def non_negative(model: str, name: str, value: object) -> float:
    """Return ``value`` as a finite float >= 0.

    Raises:
        ConfigError: it is not.
    """
    result = number(model, name, value)
    if result < 0:
        raise ConfigError(f"batch time {shown(model)}: {name} must be >= 0, got {shown(value)}")
    return result


def share(model: str, name: str, value: object) -> float:
    """Return ``value`` as a float in (0, 1].

    Raises:
        ConfigError: it is not.
    """
    result = number(model, name, value)
    if not 0 < result <= 1:
        raise ConfigError(f"batch time {shown(model)}: {name} must be in (0, 1], got {shown(value)}")
    return result
