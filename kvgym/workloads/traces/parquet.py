"""Read columns of Parquet files by PyArrow (extra ``parquet``); its errors become TraceFormatError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import TraceFormatError
from kvgym.utils.frame import pyarrow


def parquet_names(path: Path) -> tuple[str, ...]:
    """Return the names of the columns.

    Raises:
        TraceFormatError: the file is damaged.
        ConfigError: PyArrow is missing.
    """
    with _reading(path) as pa:
        return tuple(pa.parquet.read_schema(path).names)


def parquet_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) of every row: Python values by name, None if missing; errors as for :func:`parquet_names`."""
    number = 0
    with _reading(path) as pa, pa.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(columns=list(names)):
            for row in batch.to_pylist():
                yield f"row {number}", row
                number += 1


def parquet_numbers(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
    """Return the columns as arrays, masked where values are missing; errors as for :func:`parquet_names`.

    Numbers are float64, times int64 nanoseconds since 1970, in UTC. Returns None if a column has any other type.
    """
    found: dict[str, NDArray[Any]] = {}
    with _reading(path) as pa:
        # Damaged pages are detected if the file has checksums.
        table = pa.parquet.read_table(path, columns=list(names), page_checksum_verification=True)
        for name in names:
            column, kind = table[name], table.schema.field(name).type
            if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
                column = column.cast(pa.timestamp("ns")).cast(pa.int64())
            elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
                column = column.cast(pa.float64(), safe=False)
            else:
                return None
            missing = column.is_null().to_numpy()
            values = column.fill_null(0).to_numpy()
            found[name] = np.ma.MaskedArray(values, missing) if missing.any() else values
    return found


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    pa = pyarrow()
    try:
        yield pa
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceFormatError(
            f"{path}: damaged Parquet file: {str(error).strip().partition(chr(10))[0]}"
        ) from None
