"""Detect the unit of a column of times: given, by its name, by its first value, or seconds."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from kvgym.workloads.traces.values import DECIMAL_COMMA, PER_SECOND

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
"""Units of times by their symbols."""

AS_SECONDS = "read as seconds, the default (another unit: --time-unit ms, us or ns)"
"""How times without a known unit are read."""

_UNIT_WORDS = {
    word: unit
    for unit, words in {
        "seconds": "s sec secs second seconds",
        "milliseconds": "ms msec millis millisecond milliseconds",
        "microseconds": "us usec micros microsecond microseconds",
        "nanoseconds": "ns nsec nano nanos nanosecond nanoseconds",
    }.items()
    for word in words.split()
}
_EPOCH = (datetime(2015, 1, 1, tzinfo=timezone.utc), datetime(2040, 1, 1, tzinfo=timezone.utc))


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, with ``_`` between words: ``startTime`` becomes ``start_time``."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def without_unit(plain: str) -> str:
    """Return a :func:`plain_name` without a unit at its end."""
    stem, _, last = plain.rpartition("_")
    return stem if stem and last in _UNIT_WORDS else plain


def named_unit(name: str) -> str | None:
    """Return the unit at the end of a column's name, a key of :data:`PER_SECOND`; None if there is none."""
    return _UNIT_WORDS.get(plain_name(name).rpartition("_")[2])


def dated_kind(value: Any) -> str | None:
    """Return the kind of times if their first value is clearly a date, otherwise None.

    The kind is ``datetime`` for dates and for texts other than numbers, and a key of :data:`PER_SECOND` for numbers
    that are dates between 2015 and 2040 when counted from 1970.
    """
    if isinstance(value, datetime):
        return "datetime"
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        text = value.strip() if isinstance(value, str) else ""
        return None if re.fullmatch(DECIMAL_COMMA, text) else "datetime"
    counted = (unit for unit, per_second in PER_SECOND.items() if _is_recent(number / per_second))
    return next(counted, None)


def time_kind(name: str, value: Any, given: str | None) -> tuple[str, str]:
    """Return the kind of a column of times, and how it was determined.

    Args:
        name: name of the column.
        value: its first value.
        given: the user's unit, a key of :data:`UNITS`, or None.
    """
    if given is not None:
        return UNITS[given], f"in {UNITS[given]}, as given"
    dated = dated_kind(value)
    if dated == "datetime":
        return dated, "dates, counted from the first"
    if (named := named_unit(name)) is not None:
        return named, f"in {named}, as {name} says"
    if dated is not None:
        day = datetime.fromtimestamp(float(value) / PER_SECOND[dated], timezone.utc).date()
        return dated, f"{dated} since 1970, counted from the first, of {day}"
    return "seconds", AS_SECONDS


def _is_recent(seconds: float) -> bool:
    return _EPOCH[0].timestamp() <= seconds < _EPOCH[1].timestamp()
