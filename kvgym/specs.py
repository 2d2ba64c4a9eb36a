"""Short texts for things with options: ``name:key=value,key=value``."""

from __future__ import annotations

from typing import Any

from kvgym.errors import ConfigError


def parse_value(text: str) -> Any:
    """Read a value: a number, true, false, none, or text."""
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def parse_spec(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Split ``name:key=value,...`` into its name and its options.

    Args:
        text: the text.
        what: what it describes, for messages.

    Raises:
        ConfigError: it is not of that form.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{what} {text!r}: {part!r} is not key=value")
        options[key.strip()] = parse_value(value.strip())
    if not name.strip():
        raise ConfigError(f"{what} {text!r}: the name is missing; write name or name:key=value,key=value")
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
