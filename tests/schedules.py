"""What tests of schedules worked by hand share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvgym.runner import SimulationResult


def check(
    result: SimulationResult,
    start: Sequence[float],
    finish: Sequence[float],
    first: Sequence[float] | None = None,
    evictions: Sequence[int] | None = None,
) -> None:
    """Compare the records of a run with a schedule; ``evictions`` are none unless given."""
    records = result.requests
    np.testing.assert_array_equal(records["start_time"], start)
    np.testing.assert_array_equal(records["finish_time"], finish)
    np.testing.assert_array_equal(
        records["num_evictions"], [0] * len(start) if evictions is None else evictions
    )
    if first is not None:
        np.testing.assert_array_equal(records["first_token_time"], first)
