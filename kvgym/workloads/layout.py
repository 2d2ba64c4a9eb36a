"""How requests lie in memory when they are handed to the simulator."""

from __future__ import annotations

import numpy as np

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
