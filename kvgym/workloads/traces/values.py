"""Kinds of values in trace columns, and how they are parsed and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Raw columns by target name, in file order: int64 nanoseconds for ``datetime``, objects for kinds of
:data:`OBJECTS`, else float64."""

OBJECTS = ("hashes", "list", "label")
"""Kinds of columns with lists or texts as values."""

DATE = r"(?:19[7-9]\d|20\d\d|21\d\d)-\d{2}-\d{2}"
"""Pattern of valid dates, 1970 to 2199: nanoseconds since 1970 fit 64 bits."""

DECIMAL_COMMA = r"\d+,\d+"
"""Pattern of numbers with a decimal comma, which are not valid."""

_TIME = r"(\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?"
_DATETIME = re.compile(rf"({DATE})[ T]{_TIME}")
_ZONE = re.compile(r"(?<=\d)(?:Z|UTC|[+-]\d{2}(?::?\d{2})?)$")


PER_SECOND: Mapping[str, float] = {
    "seconds": 1.0,
    "milliseconds": 1e3,
    "microseconds": 1e6,
    "nanoseconds": 1e9,
}
"""Kinds of columns with times as numbers, and the number of their units in a second."""


@dataclass(frozen=True)
class Column:
    """One column of a format.

    Attributes:
        source: its name in the file.
        target: the attribute of a request table that it fills.
        kind: key of :data:`KINDS`.
        required: whether the file must have it.
    """

    source: str
    target: str
    kind: str
    required: bool = True

    @property
    def is_moment(self) -> bool:
        """Whether its times are points in time, which may be dates, rather than durations."""
        return self.target.endswith("_time")


@dataclass(frozen=True)
class Kind:
    """A kind of value.

    Attributes:
        expected: description of valid values, for messages.
        valid: returns whether a number is valid; also applied to whole float64 columns.
        missing: meaning of an empty value; None = an error.
    """

    expected: str
    valid: Callable[[Any], Any]
    missing: float | None = None


def _whole(low: float) -> Callable[[Any], Any]:
    return lambda x: (np.floor(x) == x) & (x >= low) & (x <= 2**31 - 1) & (x >= -(2**31))


KINDS: Mapping[str, Kind] = {
    "tokens": Kind("a whole number of tokens ≥ 0", _whole(0)),
    "positive": Kind("a whole number of tokens ≥ 1", _whole(1)),
    "index": Kind("a whole number ≥ 0", _whole(0)),
    "integer": Kind("a whole number", _whole(-math.inf)),
    "number": Kind("a finite number", np.isfinite),
    **{unit: Kind(f"a number of {unit} ≥ 0", lambda x: (x >= 0) & (x < math.inf)) for unit in PER_SECOND},
    "slo": Kind("a number of seconds ≥ 0, or nothing for no target", lambda x: x >= 0, missing=math.inf),
    "hashes": Kind("a list of hashes, [0, 1, 2] or 0 1 2", bool),
    "list": Kind("a list of whole numbers, [12, 15] or 12 15", bool),
    "label": Kind("a whole number or a text", bool),
    "datetime": Kind(
        "a time such as 2023-11-16 18:15:46.6805900 or 2024-05-10T00:00:00+00:00 (ISO 8601)", bool
    ),
}
"""All kinds of columns by name."""


def is_date(value: Any) -> bool:
    """Return whether a value is a date, or a text that begins with one."""
    return isinstance(value, datetime) or (isinstance(value, str) and bool(re.match(DATE, value.strip())))


def to_seconds(times: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """Convert a column of times to seconds; datetimes count from the earliest.

    Args:
        times: as read: int64 nanoseconds of kind ``datetime``, else float64; (n,).
        kind: ``datetime`` or a key of :data:`PER_SECOND`.
    """
    if kind == "datetime":
        return np.asarray((times - times.min()) / 1e9 if len(times) else times, np.float64)
    return np.asarray(times / PER_SECOND[kind], np.float64)


def parse_value(value: Any, kind: str) -> Any:
    """Return one value of a column as a number; datetimes as nanoseconds since 1970 (UTC without a zone).

    Hashes are lists of whole numbers or texts, labels one of them.

    Args:
        value: text of a CSV field, or a value of a JSON record.
        kind: key of :data:`KINDS`.

    Raises:
        ValueError: the value is not of this kind.
    """
    rule = KINDS[kind]
    if kind == "datetime":
        return _nanoseconds(value)
    if kind in ("hashes", "list"):
        values = re.split(r"[\s,]+", value.strip("[] ")) if isinstance(value, str) else value
        if not isinstance(values, list | tuple):
            raise ValueError("not a list")
        if set(map(type, values)) <= {int}:
            return values
        return [_label(each) for each in values if each != ""]
    if kind == "label":
        return _label(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        if rule.missing is None:
            raise ValueError("missing")
        return rule.missing
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("not a number")
    if isinstance(value, str) and "_" in value:  # float() would accept 1_000
        raise ValueError("not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("too large") from error
    if not rule.valid(number):
        raise ValueError("out of range")
    return number


def _label(value: Any) -> int | str:
    """Return a whole number or a text; numbers in texts are numbers, those beyond 64 bits texts."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a label")
    if isinstance(value, str):
        text = value.strip()
        if not text:
            raise ValueError("missing")
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text
    if not math.isfinite(value) or value != math.floor(value):
        raise ValueError("not a whole number")
    return int(value) if -(2**63) <= value < 2**63 else str(value)


def _offset(zone: str) -> int:
    """Return the offset of a zone from UTC, seconds; "", "Z" and "UTC" are UTC."""
    if zone in ("", "Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = 3600 * int(digits[:2]) + 60 * int(digits[2:])
    return seconds if zone[0] == "+" else -seconds


def _nanoseconds(value: Any) -> int:
    """Parse a timestamp to nanoseconds since 1970."""
    if isinstance(value, datetime):  # from a Parquet file
        since = value.replace(tzinfo=value.tzinfo or timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    match = _DATETIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a time")
    date, clock, fraction, zone = match.groups()
    moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=timezone.utc)
    seconds = round(moment.timestamp()) - _offset(zone or "")
    return seconds * 10**9 + int((fraction or "0").ljust(9, "0"))


_LAYOUT = np.frombuffer(b"0000-00-00 00:00:00.000000000", np.uint8)
_SECONDS = 19  # length up to the seconds; the fraction is optional


def parse_times(texts: NDArray[np.bytes_]) -> NDArray[np.int64] | None:
    """Parse times of one zone like :func:`parse_value`, but all at once; None if one needs :func:`parse_value`.

    Args:
        texts: shape (n,), n > 0, padded to one length.
    """
    whole = np.all(np.char.str_len(texts) < texts.itemsize)  # longer texts have been cut
    texts = np.char.strip(texts)
    zone = _ZONE.search(texts[0].decode())
    suffix = zone.group().encode() if zone else b""
    if not whole or not np.all(np.char.endswith(texts, suffix)):
        return None
    texts = np.char.replace(texts, suffix, b"") if suffix else texts
    lengths, years = np.char.str_len(texts), texts.astype("S4")
    if np.any((lengths > len(_LAYOUT)) | (lengths == _SECONDS + 1) | (years < b"1970") | (years > b"2199")):
        return None
    texts = texts.astype(f"S{len(_LAYOUT)}")
    letters = texts.view(np.uint8).reshape(len(texts), -1)
    kinds = np.where((letters >= ord("0")) & (letters <= ord("9")), ord("0"), letters)
    kinds[:, 10][kinds[:, 10] == ord("T")] = ord(" ")
    fits = kinds == _LAYOUT
    fits |= np.arange(len(_LAYOUT)) >= np.maximum(lengths, _SECONDS)[:, None]
    times = _since_1970(letters) if fits.all() else None
    if times is None:
        return None
    return times - _offset(suffix.decode()) * 10**9


def _since_1970(letters: NDArray[np.uint8]) -> NDArray[np.int64] | None:
    """Return the nanoseconds since 1970 of times in the form of :data:`_LAYOUT`; None if a date does not exist.

    NumPy's own conversion of texts is not used, as in NumPy 1.26 it crashes on month 13.

    Args:
        letters: shape (n, len(_LAYOUT)), 0 where a fraction has fewer digits.
    """
    digits = np.where(letters == 0, 0, letters - ord("0"))

    def number(start: int, end: int) -> NDArray[np.int64]:
        powers = 10 ** np.arange(end - start - 1, -1, -1, dtype=np.int64)
        return digits[:, start:end].astype(np.int64) @ powers

    year, month, day, hour, minute, second = map(number, (0, 5, 8, 11, 14, 17), (4, 7, 10, 13, 16, 19))
    if np.any((month < 1) | (month > 12) | (hour > 23) | (minute > 59) | (second > 59)):
        return None
    months = (12 * (year - 1970) + month - 1).astype("M8[M]")
    first, following = (start.astype("M8[D]").astype(np.int64) for start in (months, months + 1))
    if np.any((day < 1) | (day > following - first)):
        return None
    seconds = (((first + day - 1) * 24 + hour) * 60 + minute) * 60 + second
    return seconds * 10**9 + number(_SECONDS + 1, len(_LAYOUT))
