"""A small table of columns for results, written as CSV or, with PyArrow, as Parquet.

It needs no data-frame library and converts to any: ``pandas.DataFrame(frame.to_dict())``,
``polars.DataFrame(frame.to_dict())``.
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

_BLOCK = 1 << 14  # rows that are converted to text at a time


class Frame:
    """Named columns of equal length.

    A column is an array of int64, float64 or bool, or of objects if it holds text. With missing values it is a masked
    array, so that ``tolist()`` has None there. NaN is a number, not a missing value.

    Args:
        data: values by name. Arrays are kept; other sequences become int64, float64, bool or else text, and None is a
            missing value.

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
        """Make a table of rows; the columns are the keys of the first row."""
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
        """Return whether another table has the same columns, order, types and values; NaN equals NaN."""
        return self.columns == other.columns and all(
            mine.dtype == theirs.dtype and repr(mine.tolist()) == repr(theirs.tolist())
            for mine, theirs in zip(self._data.values(), other._data.values(), strict=True)
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row: Python numbers, booleans and strings by name, None if missing."""
        for values in self._tuples():
            yield dict(zip(self._data, values, strict=True))

    def to_dict(self) -> dict[str, list[Any]]:
        """Return lists of Python numbers, booleans and strings by name, None if missing."""
        return {name: column.tolist() for name, column in self._data.items()}

    def write_csv(self, path: str | Path) -> None:
        """Write as CSV, UTF-8: true and false, numbers that read back exactly, missing values empty."""
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
    """Return whether Parquet files can be read and written."""
    return find_spec("pyarrow") is not None


def pyarrow() -> Any:
    """Import PyArrow with its Parquet module.

    Raises:
        ConfigError: it is missing; the message names the extra that installs it.
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
    """Return values as an array of one type; None is masked."""
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
    """Return a column as a PyArrow array; missing values are null."""
    pa = pyarrow()
    if column.dtype == object:
        return pa.array(column.tolist(), pa.string())
    mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
    return pa.array(np.asarray(column), mask=mask, from_pandas=False)


def _cell(value: Any) -> str:
    """Return a value as a CSV field; an empty string has quotes, a missing value has none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return "NaN" if value != value else repr(value)
    if value and not any(mark in value for mark in ',"\r\n'):
        return value
    return '"' + value.replace('"', '""') + '"'
