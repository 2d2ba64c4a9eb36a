"""Results as a small table of columns, which writes itself as CSV and, with PyArrow, as Parquet.

No library of data frames is needed for that. A user's own takes what :meth:`Frame.to_dict` returns:
``pandas.DataFrame(frame.to_dict())``, ``polars.DataFrame(frame.to_dict())``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.utils.files import whole_file

_BLOCK = 1 << 14  # rows that are text at the same time


class Frame:
    """Columns of equal length under names.

    A column is an array of int64, float64 or bool, or of objects where it holds text; where values are missing it is a
    masked array, so that ``tolist()`` has None there. NaN is a number, not a missing value.

    Args:
        data: values by name. Arrays stay as they are; other sequences become whole numbers, numbers, booleans or else
            text, None a missing value.

    Raises:
        ConfigError: the columns differ in length.
    """

    def __init__(self, data: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        self._data = {name: _column(values) for name, values in data.items()}
        if len({len(column) for column in self._data.values()}) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in self._data.items())
            raise ConfigError(f"columns must be equally long, these are: {lengths}")

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Frame:
        """Return rows as a table; the columns are the keys of the first row."""
        listed = list(rows)
        return cls({name: [row[name] for row in listed] for name in (listed[0] if listed else ())})

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._data)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self._data.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column, shape (rows,)."""
        return self._data[name]

    def equals(self, other: Frame) -> bool:
        """Whether another table has the same columns in the same order, of the same types and values; NaN is NaN."""
        return self.columns == other.columns and all(
            mine.dtype == theirs.dtype and repr(mine.tolist()) == repr(theirs.tolist())
            for mine, theirs in zip(self._data.values(), other._data.values(), strict=True)
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row: Python's numbers, booleans and texts by name, None where missing."""
        for values in self._tuples():
            yield dict(zip(self._data, values, strict=True))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return lists of Python's numbers, booleans and texts by name, None where missing."""
        return {name: column.tolist() for name, column in self._data.items()}

    def write_csv(self, path: str | Path) -> None:
        """Write as CSV, UTF-8: true and false, numbers that read back the same, nothing where a value is missing."""
        with whole_file(path) as place, place.open("w", encoding="utf-8", newline="\n") as file:
            file.write(",".join(map(_cell, self._data)) + "\n")
            file.writelines(",".join(map(_cell, values)) + "\n" for values in self._tuples())

    def write_parquet(self, path: str | Path) -> None:
        """Write as Parquet.

        Raises:
            ConfigError: PyArrow is missing.
        """
        pa = pyarrow()
        table = pa.table({name: _arrow(column) for name, column in self._data.items()})
        with whole_file(path) as place:
            pa.parquet.write_table(table, place)

    def _tuples(self) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(self), _BLOCK):
            part = slice(start, start + _BLOCK)
            yield from zip(*(column[part].tolist() for column in self._data.values()), strict=True)


def has_pyarrow() -> bool:
    """Whether Parquet files can be read and written."""
    return find_spec("pyarrow") is not None


def pyarrow() -> Any:
    """Return PyArrow, its module of Parquet files imported.

    Raises:
        ConfigError: it is missing; the message names the extra that brings it.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f'Parquet files need PyArrow; install with: pip install "kvgym[parquet]", or use CSV ({error})'
        ) from None
    return pyarrow


def _column(values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Return values as an array of one type, masked where they are None."""
    if isinstance(values, np.ndarray):
        return values
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    missing = [value is None for value in values]
    kinds = {type(value) for value in values if value is not None}
    if not kinds or not kinds <= {bool, int, float} or (bool in kinds and len(kinds) > 1):
        texts = np.empty(len(values), object)
        texts[:] = [None if value is None else str(value) for value in values]
        return texts
    dtype = np.float64 if float in kinds else bool if bool in kinds else np.int64
    array = np.array([0 if value is None else value for value in values], dtype)
    return np.ma.MaskedArray(array, missing) if any(missing) else array


def _arrow(column: NDArray[Any]) -> Any:
    """Return a column for PyArrow, its own null where a value is missing."""
    pa = pyarrow()
    if column.dtype == object:
        return pa.array(column.tolist(), pa.string())
    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    return pa.array(np.asarray(column), mask=mask, from_pandas=False)


def _cell(value: Any) -> str:
    """Return a value as a field of a CSV file; an empty text is told from a missing value by its quotes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return "NaN" if value != value else repr(value)
    if value and not any(mark in value for mark in ',"\r\n'):
        return value
    return '"' + value.replace('"', '""') + '"'
