"""The reader of all tables: CSV, JSON, JSON lines and Parquet files as rows with their places, or as checked columns.

NumPy reads CSV columns fast, but only plain files without quotes in which every value passes the checks. Any other
CSV file is read line by line; errors name line and column.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EINVAL
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import TraceFormatError, shown, some
from kvgym.workloads.base import TRACE_SUFFIXES
from kvgym.workloads.traces.parquet import parquet_names, parquet_numbers, parquet_rows
from kvgym.workloads.traces.values import (
    DECIMAL_COMMA,
    KINDS,
    OBJECTS,
    PER_SECOND,
    Column,
    Columns,
    is_date,
    parse_times,
    parse_value,
)

_SNIFF = 1 << 16

DELIMITERS = ",;\t|"
"""Possible delimiters; the first one in the header is used."""

_TEXT_TYPES = {"datetime": "S40", None: "S1"}  # None: columns that are not read


@dataclass(frozen=True)
class SourceFile:
    """A file with known container and header.

    Attributes:
        path: its path.
        container: ``csv``, ``jsonl``, ``json`` (one list) or ``parquet``.
        names: columns of the table, or keys of the first record.
        delimiter: delimiter of a CSV file.
    """

    path: Path
    container: str
    names: tuple[str, ...]
    delimiter: str = ","

    @classmethod
    def open(cls, path: str | Path) -> SourceFile:
        """Read the start of a file to find its container and header.

        Raises:
            TraceFormatError: a missing, empty, compressed, binary or wrongly encoded file, or no header.
        """
        path = Path(path)
        try:
            if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
                raise OSError(EINVAL, "not a plain file; save the trace to one, as it is read several times")
            with path.open("rb") as file:
                head = file.read(_SNIFF)
        except FileNotFoundError:
            raise TraceFormatError(f"{path}: no such file") from None
        except IsADirectoryError:
            raise TraceFormatError(f"{path}: a folder, not a trace file; {_traces_in(path)}") from None
        except (OSError, ValueError) as error:  # ValueError: an invalid file name
            raise TraceFormatError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None
        if not head.strip():
            raise TraceFormatError(f"{path}: the file is empty; expected a table with at least one row")
        if head.startswith(b"PAR1"):
            return cls(path, "parquet", parquet_names(path))
        if path.suffix.lower() == ".parquet":
            raise TraceFormatError(f"{path}: not a Parquet file (it does not begin with PAR1)")
        if head.startswith((b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
            raise TraceFormatError(f"{path}: the file is compressed; decompress it first")
        _check_text(path, head)
        first = head.decode("utf-8-sig", "ignore").lstrip()[:1]
        if first == "[":
            return cls(path, "json", _keys(path, next(_list_records(path), None)))
        if first == "{":
            return cls(path, "jsonl", _keys(path, next(_line_records(path), None)))
        delimiter = _delimiter(head.decode("utf-8-sig", "ignore").lstrip().partition("\n")[0])
        with path.open("rb") as file:
            try:
                lines = csv.reader(_text_lines(path, file), delimiter=delimiter)
                names = tuple(name.strip() for name in next(lines, ()))
            except csv.Error as error:
                raise TraceFormatError(f"{path}, line 1: not CSV: {error}") from None
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise TraceFormatError(
                f"{path}, line 1: column {shown(twice[0])} occurs twice; names must differ"
            )
        return cls(path, "csv", names, delimiter)

    @cached_property
    def contents(self) -> tuple[str, bool]:
        """SHA-256 of the file, hexadecimal, and whether it is plain: ASCII, no quotes, LF or CRLF line ends."""
        digest = hashlib.sha256()
        plain, last = True, b""
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                if not plain:
                    continue
                text = last + (block.removeprefix(b"\xef\xbb\xbf") if file.tell() <= 1 << 20 else block)
                returns = text.count(b"\r") - text.endswith(
                    b"\r"
                )  # the \n of a final \r may be in the next block
                plain = text.isascii() and not (b'"' in text or b"\x00" in text)
                plain = plain and returns == text.count(b"\r\n")
                last = text[-1:] if text.endswith(b"\r") else b""
        return digest.hexdigest(), plain and not last

    def rows(self, *keys: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, row) of every row: texts of a CSV file, values of others; of Parquet only ``keys``.

        Raises:
            TraceFormatError: the file is damaged; the message names the place.
        """
        if self.container == "csv":
            return self._csv_rows()
        if self.container == "parquet":
            return parquet_rows(self.path, keys)
        return _list_records(self.path) if self.container == "json" else _line_records(self.path)

    def place(self, row: int) -> str:
        """Return where a row is, for messages; rows count from 0."""
        return next(islice(self.rows(*self.names[:1]), row, None))[0]

    def first_value(self, name: str) -> Any:
        """Return the value of a column or key in the first row, None if there is none."""
        return next(self.rows(name), ("", {}))[1].get(name)

    def columns(self, wanted: Sequence[Column]) -> Columns:
        """Read the wanted columns that are present, by target name, in file order.

        Raises:
            TraceFormatError: a value is wrong; the message names its place.
        """
        present = [c for c in wanted if c.source in self.names]
        fast = None if any(c.kind in OBJECTS for c in present) else self._fast_columns(present)
        if fast is not None:
            return fast
        late = {c.source for c in wanted} - set(self.names) if self.container.startswith("json") else set()
        return self._checked_columns(present, late)

    def _fast_columns(self, columns: Sequence[Column]) -> Columns | None:
        """Read all values of a column at once; None if one needs the slow reader."""
        arrays: Mapping[str, NDArray[Any]] | None = None
        if self.container == "parquet":
            arrays = parquet_numbers(self.path, [c.source for c in columns])
        elif self.container == "csv" and self.contents[1]:
            arrays = self._csv_arrays(columns)
        return None if arrays is None else _validated(arrays, columns)

    def _csv_arrays(self, columns: Sequence[Column]) -> dict[str, NDArray[Any]] | None:
        """Return columns of a plain CSV file by their names in it; None if a value needs the slow reader."""
        kinds = {c.source: c.kind for c in columns}
        types: Any = [(name, _TEXT_TYPES.get(kinds.get(name), "f8")) for name in self.names]
        empty: Any = {
            i: partial(parse_value, kind=kinds[name])
            for i, name in enumerate(self.names)
            if name in kinds and KINDS[kinds[name]].missing is not None
        }
        try:
            with warnings.catch_warnings(), self.path.open(encoding="utf-8-sig") as file:
                warnings.simplefilter("error")  # NumPy warns about a file without rows
                data = np.loadtxt(
                    file, types, delimiter=self.delimiter, skiprows=1, comments=None, encoding="utf-8",
                    converters=empty, ndmin=1,
                )  # fmt: skip
        except (ValueError, UserWarning):
            return None
        arrays = {c.source: data[c.source] for c in columns}
        for c in columns:
            if c.kind == "datetime":
                times = parse_times(arrays[c.source])
                if times is None:
                    return None
                arrays[c.source] = times
        return arrays

    def _csv_rows(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield (place, fields) for every line of a CSV file."""
        with self.path.open("rb") as file:
            lines = csv.reader(_text_lines(self.path, file), delimiter=self.delimiter)
            try:
                for fields in lines:
                    if lines.line_num == 1 or not any(field.strip() for field in fields):
                        continue
                    if len(fields) != len(self.names):
                        raise TraceFormatError(
                            f"{self.path}, line {lines.line_num}: {len(fields)} fields; expected "
                            f"{len(self.names)} ({', '.join(self.names)})"
                        )
                    yield f"line {lines.line_num}", dict(zip(self.names, fields, strict=True))
            except csv.Error as error:
                raise TraceFormatError(f"{self.path}, line {lines.line_num}: not CSV: {error}") from None

    def _checked_columns(self, columns: Sequence[Column], absent: set[str]) -> Columns:
        """Read value by value; raise an error with the place of the first wrong one.

        Args:
            columns: columns of the first row.
            absent: keys that the first record does not have, so no later one may have them.
        """
        lists: dict[str, list[Any]] = {c.target: [] for c in columns}
        for place, row in self.rows(*(c.source for c in columns)):
            if absent and (late := absent.intersection(row)):
                raise TraceFormatError(
                    f"{self.path}, {place}: key {shown(min(late))} is missing in the first record; "
                    f"give it in every record or in none"
                )
            for c in columns:
                value = row.get(c.source)
                try:
                    lists[c.target].append(parse_value(value, c.kind))
                except ValueError:
                    raise TraceFormatError(
                        f"{self.path}, {place}, column {shown(c.source)}: {_wrong(value, c)}"
                    ) from None
        return {c.target: _array(lists[c.target], c.kind) for c in columns}


def _array(values: list[Any], kind: str) -> NDArray[Any]:
    """Return parsed values as an array; labels that are all numbers become int64."""
    if kind not in OBJECTS:
        return np.array(values, np.int64 if kind == "datetime" else np.float64)
    if kind == "label" and all(isinstance(value, int) for value in values):
        return np.array(values, np.int64)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _traces_in(folder: Path) -> str:
    """Return the advice to name one of the trace files in a folder."""
    try:
        found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in TRACE_SUFFIXES)
    except OSError:
        found = []
    return f"name a file in it: {some(found, 100)}" if found else "name a file in it"


def _delimiter(header: str) -> str:
    """Return the delimiter of a header: the first of :data:`DELIMITERS` in it, else a comma."""
    plain = re.sub(r'"[^"]*"', "", header)
    return next((sign for sign in DELIMITERS if sign in plain), ",")


def _wrong(value: Any, column: Column) -> str:
    """Return the message about a wrong value: the value and what is expected."""
    expected = f"expected {KINDS[column.kind].expected}"
    if isinstance(value, str) and not value.strip():
        zero = ", write 0, which drops the row with a note," if column.kind == "tokens" else ""
        return f"the cell is empty; {expected}: fill it in{zero} or remove the row"
    if isinstance(value, str) and re.fullmatch(DECIMAL_COMMA, value.strip()):
        expected += ", with a point before decimals"
    elif column.is_moment and column.kind in PER_SECOND and is_date(value):
        expected += "; dates are accepted if every row has one and neither a format nor a unit is given"
    elif column.is_moment and column.kind in PER_SECOND and _is_text(value):
        expected += f", or {KINDS['datetime'].expected} in every row"
    return f"{'nothing' if value is None else repr(value)[:80]}; {expected}"


def _is_text(value: Any) -> bool:
    """Return whether a value is a string other than a number."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return isinstance(value, str)
    return False


def _validated(arrays: Mapping[str, NDArray[Any]], columns: Sequence[Column]) -> Columns | None:
    """Return the columns by target name, None if a value is missing or out of range."""
    found: Columns = {}
    for c in columns:
        values, rule = arrays[c.source], KINDS[c.kind]
        if isinstance(values, np.ma.MaskedArray):
            if rule.missing is None:
                return None
            values = values.filled(rule.missing)
        if (c.kind == "datetime") != (values.dtype == np.int64):
            return None
        if c.kind != "datetime" and not np.all(rule.valid(values)):
            return None
        found[c.target] = values
    return found


def _check_text(path: Path, head: bytes) -> None:
    """Refuse binary files and encodings other than UTF-8."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceFormatError(f"{path}: encoded as UTF-16; expected UTF-8")
    if b"\x00" in head:
        raise TraceFormatError(f"{path}: binary data; expected CSV, JSON, JSON lines or Parquet")
    try:
        head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # the last character of the sample may be incomplete
            _not_utf8(path, head[: error.start].count(b"\n") + 1)


def _not_utf8(path: Path, line: int) -> NoReturn:
    raise TraceFormatError(f"{path}, line {line}: not UTF-8 text; save the file with UTF-8 encoding")


def _keys(path: Path, first: tuple[str, dict[str, Any]] | None) -> tuple[str, ...]:
    if first is None:
        raise TraceFormatError(f"{path}: no records; expected at least one request")
    return tuple(first[1])


def _text_lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a UTF-8 file; errors name the line with invalid bytes."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            _not_utf8(path, number)


def _line_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, record) of a file with one JSON object per line."""
    with path.open("rb") as file:
        for number, line in enumerate(_text_lines(path, file), start=1):
            text = line.strip()
            if not text:
                continue
            try:
                record = json.loads(text)
            except json.JSONDecodeError as error:
                raise TraceFormatError(
                    f"{path}, line {number}, character {error.colno}: {error.msg}; "
                    f"expected one complete JSON object per line"
                ) from None
            except (ValueError, RecursionError) as error:
                raise TraceFormatError(
                    f"{path}, line {number}: {_first_line(error)}; expected a plain JSON object"
                ) from None
            yield f"line {number}", _object(path, f"line {number}", record)


def _list_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, record) of a file with one JSON list of objects."""
    try:
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        _not_utf8(path, error.object[: error.start].count(b"\n") + 1)
    except json.JSONDecodeError as error:
        raise TraceFormatError(
            f"{path}, line {error.lineno}, character {error.colno}: {error.msg}; "
            f"expected one complete JSON list"
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(f"{path}: {_first_line(error)}; expected a plain JSON list") from None
    for i, record in enumerate(data):
        yield f"item {i}", _object(path, f"item {i}", record)


def _object(path: Path, place: str, record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise TraceFormatError(f"{path}, {place}: {type(record).__name__}; expected a JSON object")
    return record


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
