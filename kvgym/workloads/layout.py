"""How requests lie in memory when they are handed to the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Stored where a length or class is not known, or must not be known by the policy."""

WORKLOAD = np.dtype(
    [
        ("arrival_time", "f8"),
        ("ttft_slo", "f8"),  # seconds, inf = none
        ("tbt_slo", "f8"),  # seconds, inf = none
        ("prompt_len", "i4"),
        ("output_len", "i4"),
        ("predicted_len", "i4"),  # UNKNOWN where there is no prediction
        ("predicted_low", "i4"),
        ("predicted_high", "i4"),
        ("class_id", "i4"),
        ("priority", "i4"),  # larger = more important
    ],
    align=True,
)
"""The true requests, sorted by arrival; hidden from policies. A row is revealed when it arrives."""


def words(table: NDArray[Any]) -> NDArray[np.int64]:
    """Return a contiguous table of aligned records as whole words, int64 (n, words of a record).

    NumPy copies these at once, and records by the field.
    """
    return table.view(np.int64).reshape(len(table), table.dtype.itemsize // 8)
