"""Ranges of numbers as text: ``5:50:5`` and ``1:64:*2``."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from kvgym.errors import ConfigError

MOST_VALUES = 10_000
RANGE_FORMS = "name=low:high:step, name=low:high:*factor"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def is_range(text: str) -> bool:
    """Whether a text is three numbers with colons between them, the last maybe a factor."""
    ends = [end.strip() for end in text.split(":")]
    return len(ends) == 3 and all(_NUMBER.fullmatch(end.removeprefix("*")) for end in ends)


def number_range(text: str, where: str = "") -> tuple[int | float, ...]:
    """Return ``low, low + step, …`` up to ``high`` of ``low:high:step``, or ``low, low · factor, …`` with ``*factor``.

    Whole numbers where all three are.

    Raises:
        ConfigError: it is none, is empty, or has more than :data:`MOST_VALUES` values.
    """
    try:
        low, high, step = (Decimal(part.strip().removeprefix("*")) for part in text.split(":"))
    except (ValueError, InvalidOperation):
        raise ConfigError(f"{where}{text} is not low:high:step; write {RANGE_FORMS}") from None
    by_factor = text.rpartition(":")[2].strip().startswith("*")
    if not (low.is_finite() and high.is_finite() and step.is_finite() and low <= high):
        raise ConfigError(f"{where}{text}: expected finite numbers, low ≤ high")
    if by_factor and not (step > 1 and low > 0):
        raise ConfigError(f"{where}{text}: expected a factor > 1 and low > 0")
    if not by_factor and step <= 0:
        raise ConfigError(f"{where}{text}: expected step > 0")
    values = [low]
    while (after := values[-1] * step if by_factor else low + len(values) * step) <= high:
        if len(values) == MOST_VALUES:
            raise ConfigError(f"{where}{text}: more than {MOST_VALUES:,} values; use a larger step")
        values.append(after)
    whole = all(x == x.to_integral_value() for x in (low, step)) and "." not in text
    return tuple(int(x) if whole else float(x) for x in values)
