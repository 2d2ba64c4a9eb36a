"""The file under a trace: container, header, checksum, and columns read with exact error locations.

CSV and Parquet are read by Polars, column-wise and fast. Polars is lenient (it fills short lines and guesses
at odd dates), so that way is only taken for plain CSV files without quotes, and only where every value
passes the checks. Any other CSV file is read line by line, which copes or names the line and column that are
wrong.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import polars as pl

from kvgym.errors import TraceFormatError
from kvgym.workloads.traces.values import DATE, KINDS, Column, Columns, parse_value

_SNIFF = 1 << 16

_COMPLETE = "\x00complete"  # cannot be a column of a plain file

PARQUET_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What Polars raises on damaged Parquet files."""


@dataclass(frozen=True)
class SourceFile:
    """A file whose container and header are known.

    Attributes:
        path: where it is.
        container: ``csv``, ``jsonl``, ``json`` (one list) or ``parquet``.
        names: columns of the table, or keys of the first record.
    """

    path: Path
    container: str
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: str | Path) -> SourceFile:
        """Look at the start of a file.

        Raises:
            TraceFormatError: missing, empty, compressed, binary or wrongly encoded file, or no header.
        """
        path = Path(path)
        if not path.exists():
            raise TraceFormatError(f"{path}: no such file")
        if not path.is_file():
            raise TraceFormatError(f"{path}: a folder, not a trace file")
        with path.open("rb") as file:
            head = file.read(_SNIFF)
        if not head.strip():
            raise TraceFormatError(f"{path}: the file is empty; expected a trace with at least one request")
        if head.startswith(b"PAR1"):
            return cls(path, "parquet", _parquet_names(path))
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
        with path.open("rb") as file:
            try:
                names = tuple(name.strip() for name in next(csv.reader(_text_lines(path, file)), ()))
            except csv.Error as error:
                raise TraceFormatError(f"{path}, line 1: not CSV: {error}") from None
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise TraceFormatError(f"{path}, line 1: column {twice[0]!r} occurs twice; names must differ")
        return cls(path, "csv", names)

    @cached_property
    def contents(self) -> tuple[str, bool]:
        """SHA-256 of the file, hexadecimal, and whether it is plain: ASCII, no quotes, usual line ends."""
        digest = hashlib.sha256()
        plain, last = True, b""
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                if not plain:
                    continue
                text = last + (block.removeprefix(b"\xef\xbb\xbf") if file.tell() <= 1 << 20 else block)
                returns = text.count(b"\r") - text.endswith(b"\r")  # one at the end may have its \n to come
                plain = text.isascii() and not (b'"' in text or b"\x00" in text)
                plain = plain and returns == text.count(b"\r\n")
                last = text[-1:] if text.endswith(b"\r") else b""
        return digest.hexdigest(), plain and not last

    def columns(self, wanted: Sequence[Column]) -> Columns:
        """Read the wanted columns that are present, by target name, in file order.

        Raises:
            TraceFormatError: a required column is missing or a value is wrong, with its place.
        """
        present = [c for c in wanted if c.source in self.names]
        absent = {c.source for c in wanted if c.source not in self.names}
        missing = [c.source for c in wanted if c.required and c.source not in self.names]
        if missing:
            raise TraceFormatError(
                f"{self.path}: column {missing[0]!r} is missing; found {', '.join(self.names) or 'none'}"
            )
        if self.container == "parquet":
            return self._parquet_columns(present)
        if self.container == "csv":
            fast = self._fast_columns(present) if self.contents[1] else None
            return fast if fast is not None else self._checked_columns(present, self._csv_rows())
        return self._checked_columns(present, self._complete_records(absent))

    def first_row(self) -> Mapping[str, Any]:
        """Return the first row, or record, by name; empty where there is none."""
        if self.container == "csv":
            found = next(self._csv_rows(), None)
            return {} if found is None else found[1]
        if self.container == "parquet":
            rows = _parquet_frame(self.path, n_rows=1).rows(named=True)
            return rows[0] if rows else {}
        return next(self.records(), ("", {}))[1]

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, record) for every record of a JSON, JSONL or Parquet file."""
        if self.container == "json":
            return _list_records(self.path)
        if self.container == "jsonl":
            return _line_records(self.path)
        raise TraceFormatError(f"{self.path}: expected JSON, JSONL or Parquet, found {self.container}")

    def _complete_records(self, absent: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the records; a known key that the first record lacks is an error, not ignored."""
        for place, record in self.records():
            if late := absent.intersection(record):
                raise TraceFormatError(
                    f"{self.path}, {place}: key {min(late)!r} is missing in the first record; "
                    f"give it in every record or in none"
                )
            yield place, record

    def _fast_columns(self, columns: Sequence[Column]) -> Columns | None:
        """Read a CSV file column-wise; None where any value needs a closer look."""
        kinds = {c.source: pl.String if c.kind == "datetime" else pl.Float64 for c in columns}
        try:
            frame = pl.scan_csv(self.path, infer_schema=False, quote_char=None)
            frame = frame.rename(str.strip, strict=False)
            frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))  # empty lines
            complete = pl.col(self.names[-1]).is_not_null().alias(_COMPLETE)  # short lines end in nulls
            sample = frame.select(list(kinds)).head(1).collect()
            selected = [
                _datetime(c.source, sample[c.source][0] if len(sample) else None)
                if c.kind == "datetime"
                else pl.col(c.source).str.strip_chars().replace("", None).cast(pl.Float64, strict=True)
                for c in columns
            ]
            data = frame.select(*selected, complete).collect(engine="streaming")
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None
        if not len(data) or not data[_COMPLETE].all():
            return None
        return _validated(data, columns)

    def _parquet_columns(self, columns: Sequence[Column]) -> Columns:
        """Read a Parquet file; a wrong value is named by its row."""
        frame = _parquet_frame(self.path, columns=[c.source for c in columns])
        numbers = {}
        for c in columns:
            series = frame[c.source]
            if c.kind == "datetime" and series.dtype.is_temporal():
                numbers[c.source] = series.cast(pl.Datetime("ns")).to_physical()
            elif c.kind != "datetime" and series.dtype.is_numeric():
                numbers[c.source] = series.cast(pl.Float64)
        if len(numbers) == len(columns):
            fast = _validated(pl.DataFrame(numbers), columns)
            if fast is not None:
                return fast
        rows = ((f"row {i}", row) for i, row in enumerate(frame.iter_rows(named=True)))
        return self._checked_columns(columns, rows)

    def _csv_rows(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield (place, fields) for every line of a CSV file."""
        with self.path.open("rb") as file:
            lines = csv.reader(_text_lines(self.path, file))
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

    def _checked_columns(
        self, columns: Sequence[Column], rows: Iterator[tuple[str, dict[str, Any]]]
    ) -> Columns:
        """Read value by value; the first wrong one is an error that says where."""
        lists: dict[str, list[float | int]] = {c.target: [] for c in columns}
        for place, row in rows:
            for c in columns:
                value = row.get(c.source)
                try:
                    lists[c.target].append(parse_value(value, c.kind))
                except ValueError:
                    shown = "nothing" if value is None else repr(value)[:80]
                    raise TraceFormatError(
                        f"{self.path}, {place}, column {c.source!r}: {shown}; "
                        f"expected {KINDS[c.kind].expected}"
                    ) from None
        types = {c.target: np.int64 if c.kind == "datetime" else np.float64 for c in columns}
        return {target: np.array(values, types[target]) for target, values in lists.items()}


def _validated(frame: pl.DataFrame, columns: Sequence[Column]) -> Columns | None:
    """Return the columns as arrays, None where a value is missing or out of range."""
    arrays: Columns = {}
    for c in columns:
        series, rule = frame[c.source], KINDS[c.kind]
        if rule.missing is not None:
            series = series.fill_null(rule.missing)
        if series.null_count():
            return None
        values = series.to_numpy()
        if c.kind != "datetime" and not np.all(rule.valid(values)):
            return None
        arrays[c.target] = values
    return arrays


def _datetime(name: str, sample: str | None) -> pl.Expr:
    """Return the expression that parses times of the sample's layout to nanoseconds, null where it fails."""
    strict = pl.col(name).str.contains(rf"^{DATE}[ T]\d{{2}}:\d{{2}}:\d{{2}}")  # Polars takes 23-1-6 8:5:1
    layout = "%Y-%m-%d %H:%M:%S%.f"
    text = (sample or "").strip()
    if "T" in text:
        layout = layout.replace(" ", "T")
    if text[-6:-5] in ("+", "-") and text[-3:-2] == ":":
        layout += "%z"
    parsed = pl.col(name).str.to_datetime(layout, time_unit="ns", strict=False)
    return pl.when(strict).then(parsed.to_physical()).alias(name)


def _parquet_frame(path: Path, **options: Any) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, **options)
    except PARQUET_ERRORS as error:
        raise TraceFormatError(f"{path}: damaged Parquet file: {_first_line(error)}") from None


def _parquet_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(pl.read_parquet_schema(path))
    except PARQUET_ERRORS as error:
        raise TraceFormatError(f"{path}: damaged Parquet file: {_first_line(error)}") from None


def _check_text(path: Path, head: bytes) -> None:
    """Refuse binary files and encodings other than UTF-8."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceFormatError(f"{path}: encoded as UTF-16; expected UTF-8")
    if b"\x00" in head:
        raise TraceFormatError(f"{path}: binary data; expected CSV, JSON, JSON lines or Parquet")
    try:
        head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # a character cut by the end of the sample is no mistake
            _not_utf8(path, head[: error.start].count(b"\n") + 1)


def _not_utf8(path: Path, line: int) -> NoReturn:
    raise TraceFormatError(f"{path}, line {line}: not UTF-8 text; save the file with UTF-8 encoding")


def _keys(path: Path, first: tuple[str, dict[str, Any]] | None) -> tuple[str, ...]:
    if first is None:
        raise TraceFormatError(f"{path}: no records; expected at least one request")
    return tuple(first[1])


def _text_lines(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a UTF-8 file; a line that is none is an error that names it."""
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
