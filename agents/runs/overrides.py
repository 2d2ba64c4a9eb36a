"""Changes of a configuration by dotted keys, as on the command line."""

from __future__ import annotations

import contextlib
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.utils.reading import parse_yaml


def pair(text: str) -> tuple[str, Any]:
    """Return key and value of ``"dotted.key=value"``, the value read as YAML.

    Raises:
        ConfigError: it is not of that form.
    """
    key, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals or not key:
        raise ConfigError(
            f"override {shown(text)}: expected key=value, e.g. seed=1 or services_per_generation=8"
        )
    return key.strip(), number(parse_yaml(value, f"override {shown(text)}"))


def number(value: Any) -> Any:
    """Return a number for text such as 1e-3, which YAML 1.1 does not read as one."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def put(fields: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; entries of a list go by number.

    Raises:
        ConfigError: it leads into something that has no such entry.
    """
    path = key.split(".")
    place: Any = fields
    for depth, part in enumerate(path):
        above = ".".join(path[:depth])
        if isinstance(place, list):
            if not (part.isdecimal() and int(part) < len(place)):
                raise ConfigError(
                    f"override {shown(key)}: {above} is a list; expected a number below {len(place)} after it"
                )
            entry: Any = int(part)
        elif isinstance(place, dict):
            entry = part
        else:
            raise ConfigError(f"override {shown(key)}: {above} is {shown(place)} and has nothing inside")
        if depth == len(path) - 1:
            place[entry] = value
            return
        if isinstance(place, dict) and place.get(entry) is None:
            place[entry] = {}
        place = place[entry]
