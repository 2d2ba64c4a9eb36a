"""Specs: names with options, ``name:key=value,key=value``, and times with units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from kvgym.errors import ConfigError, shown

PER_SECOND = {"": 1.0, "s": 1.0, "ms": 1e3}
"""Number of units in a second; texts without a unit are in seconds."""

TIME_FORMS = "seconds, as in 0.5 or 0.5s, or milliseconds, as in 500ms"

_TIME = re.compile(r"([^\sa-z]+(?:e[+-]?\d+)?|inf) *(s|ms|)", re.IGNORECASE)


def parse_seconds(value: float | str, what: str) -> float:
    """Parse a time, in seconds.

    Args:
        value: seconds, or a text: a number, with a unit of :data:`PER_SECOND` or none.
        what: name of the time, for messages.

    Raises:
        ConfigError: any other form.
    """
    match = _TIME.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    try:
        seconds = float(match[1]) / PER_SECOND[match[2].lower()] if match else math.nan
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise ConfigError(f"{what} {shown(value)}: expected {TIME_FORMS}")
    return seconds


def parse_value(text: str) -> Any:
    """Parse a value: a number, true, false, none, or text."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def spec_text(name: str, options: Mapping[str, Any]) -> str:
    """Return ``name:key=value,...``, the name alone without options."""
    given = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{given}" if given else name


def parse_spec(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Split ``name:key=value,...`` into its name and its options.

    Args:
        text: the spec.
        what: what it describes, for messages.

    Raises:
        ConfigError: any other form.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"{what} {shown(text)}: {shown(part)} is not key=value; expected name:key=value,key=value (for a class "
                "of your own, use the name under which it is registered; its package must be installed and name its "
                "module as an entry point, see docs/own-policy.md)"
            )
        options[key.strip()] = parse_value(value.strip())
    if not name.strip():
        raise ConfigError(
            f"{what} {shown(text)}: the name is missing; write name or name:key=value,key=value"
        )
    return name.strip(), options


def split_specs(text: str) -> list[str]:
    """Split a comma-separated list of specs; ``key=value`` parts belong to the spec before them."""
    specs: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        if specs and "=" in part and ":" not in part.partition("=")[0]:
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs
