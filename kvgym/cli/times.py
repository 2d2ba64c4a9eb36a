"""Options that take a time: seconds, or another unit behind the number."""

from __future__ import annotations

import math
from typing import Any

import typer

from kvgym.errors import ConfigError, KVGymError
from kvgym.utils.specs import parse_seconds

TIME_EXAMPLES = "0.5, 0.5s or 500ms"
"""The forms of a time, for help texts."""


def time_option(name: str, what: str, *, least: float = -math.inf) -> Any:
    """Return an option that takes a time, as ``0.5``, ``0.5s`` or ``500ms``, in seconds.

    Args:
        name: of the option, ``--window``.
        what: what it is for.
        least: the shortest that is valid, seconds.
    """

    def parse(given: float | str) -> float:
        try:
            seconds = parse_seconds(given, name)
        except ConfigError as error:  # of a ValueError Click would show the value only
            raise KVGymError(str(error)) from None
        if not seconds >= least:
            raise KVGymError(f"{name} {given}: expected at least {least:g} seconds")
        return seconds

    return typer.Option(name, parser=parse, metavar="TIME", help=f"{what} ({TIME_EXAMPLES})")
