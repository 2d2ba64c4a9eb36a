"""Checks of arguments for all batch-time models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kvgym.batch_time.hardware.presets import M, Presets
from kvgym.errors import ConfigError, field_errors, shown

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


def preset(presets: Presets[M], given: M | str | Mapping[str, Any]) -> M:
    """Return a GPU or a model, which may be given by its name, file or fields.

    Raises:
        UnknownNameError: no such preset.
        ConfigError: the file cannot be read or a field is wrong.
    """
    if isinstance(given, Mapping):
        return validated(presets.kind, presets.folder, given)
    return presets.find(given)


def validated(kind: type[M], name: str, fields: Mapping[str, Any]) -> M:
    """Return the object of a class with these fields.

    Args:
        kind: the class.
        name: name of the argument, for the message.
        fields: its fields.

    Raises:
        ConfigError: a field is wrong.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"batch time: {name}.{field_errors(error, kind, fields)[0]}") from None
