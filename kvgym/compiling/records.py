"""Tables of records: allocation, and views that uncompiled code can use."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def records(dtype: np.dtype[np.void], *shape: int) -> np.ndarray:
    """Return a zeroed table whose elements also read as attributes in plain Python."""
    return as_records(np.zeros(shape, dtype))


_HUGE = 1 << 22
"""Bytes from which on NumPy asks for huge pages: a touch of a single row would take, and clear, 2 MiB."""


def sparse_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return zeros that take memory only where they are touched: for rows that are seldom used to their end."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _HUGE:
        return np.zeros(shape, kind)
    return np.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), kind).reshape(shape)


def as_records(table: np.ndarray) -> np.ndarray:
    """Return a view of a structured array that uncompiled code can use (``row.field``)."""
    return table.view(np.recarray)
