"""Memory layout of requests in the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
"""Value of a length or class that is unknown or hidden from the policy."""

WORKLOAD = np.dtype(
    [
        ("arrival_time", "f8"),
        ("ttft_slo", "f8"),  # seconds, inf = none
        ("tbt_slo", "f8"),  # seconds, inf = none
        ("e2e_slo", "f8"),  # seconds, inf = none
        ("prompt_len", "i4"),
        ("output_len", "i4"),
        ("predicted_len", "i4"),  # UNKNOWN without a prediction
        ("predicted_low", "i4"),
        ("predicted_high", "i4"),
        ("class_id", "i4"),
        ("priority", "i4"),  # larger = more important
    ],
    align=True,
)
"""The true requests, sorted by arrival and hidden from policies; on arrival, parts of a row are exposed."""

FEATURE_COLUMNS = tuple(f"feature_{k}" for k in range(4))
"""Names of the feature columns of requests, real numbers of any meaning that are known at the arrival."""

TENTHS = 10
"""Numbers of a predicted distribution, see :class:`kvgym.workloads.forecasts.Forecasts`."""

EXTRA = np.dtype(
    [
        ("e2e_slo", "f8"),  # seconds, inf = none
        ("client_id", "i4"),  # UNKNOWN without a client
        ("renewed_len", "i4"),  # the latest prediction of the output; UNKNOWN without a prediction
        (
            "tenths",
            "i4",
            (TENTHS,),
        ),  # mean output in each tenth of the predicted distribution; UNKNOWN without one
        ("num_renewals", "i4"),  # hidden from policies, as is the place of the first one
        ("first_renewal", "i8"),
    ],
    align=True,
)
"""Further facts about requests, in tables of their own: they have rows only if a policy may observe one of them."""


def words(table: NDArray[Any]) -> NDArray[np.int64]:
    """Return a contiguous table of aligned records as int64 words, (n, words of a record).

    NumPy copies words in one go, but records field by field.
    """
    return table.view(np.int64).reshape(len(table), table.dtype.itemsize // 8)


def copies_of(record: NDArray[Any], n: int) -> NDArray[Any]:
    """Return a table of ``n`` copies of an aligned record, a table of one row."""
    rows = np.empty((n, record.itemsize // 8), np.int64)
    rows[:] = words(record)
    return np.ndarray(n, record.dtype, rows)  # several times as fast as a view
