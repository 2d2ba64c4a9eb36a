"""Tables of records: allocation, and views that uncompiled code can use."""

from __future__ import annotations

import functools
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def records(dtype: np.dtype[np.void], *shape: int) -> np.ndarray:
    """Return a zeroed table; its fields are also attributes in plain Python."""
    return as_records(np.zeros(shape, dtype))


SMALL = 1 << 14
"""Size up to which a table is opened on memory of Python's: NumPy takes ten times as long to clear one of records."""

HUGE = 1 << 22
"""Size from which NumPy asks for huge pages, bytes: writing a single row would then allocate and clear 2 MiB."""


def sparse_zeros(shape: tuple[int, ...], dtype: Any, least: int = HUGE) -> NDArray[Any]:
    """Return zeros that take memory only where they are written: for rows that are seldom filled.

    Args:
        shape: of the table.
        dtype: of its elements.
        least: size from which it is mapped, bytes; a smaller one is allocated and cleared.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size == 0:
        return _empty(shape, kind)
    if size <= SMALL:
        return np.ndarray(shape, kind, bytearray(size))
    if size < least:
        return np.zeros(shape, kind)
    return mapped_zeros(shape, kind, access=mmap.ACCESS_COPY)[0]


def mapped_zeros(shape: tuple[int, ...], kind: np.dtype[Any], **how: int) -> tuple[NDArray[Any], mmap.mmap]:
    """Return zeros in memory that the system gives where they are written, and their mapping.

    Args:
        shape: of the table, with elements.
        kind: their dtype.
        **how: further arguments of ``mmap``.

    Raises:
        MemoryError: the system does not promise that much, even of memory that is seldom written.
    """
    size = math.prod(shape) * kind.itemsize
    try:
        mapped = mmap.mmap(-1, size, **how)
    except OSError:
        raise MemoryError(
            f"Unable to allocate {size / 2**30:,.1f} GiB for a table of shape {shape}"
        ) from None
    return np.frombuffer(mapped, kind).reshape(shape), mapped


@functools.lru_cache(maxsize=256)
def _empty(shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return a table without elements, the same one each time: most tables of a run are empty."""
    return np.zeros(shape, kind)


def as_records(table: np.ndarray) -> np.ndarray:
    """Return a view of a structured array that uncompiled code can use (``row.field``)."""
    return table.view(np.recarray)
