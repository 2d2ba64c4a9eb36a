"""Slotted time: every batch takes one second."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel


@batch_time_kernel
def _one_second(load: Any, params: Any) -> Any:
    return 1.0


class UnitBatchTime(BatchTimeModel):
    """One second per batch of any size, including empty ones: the slotted time of the theory papers.

    With it the clock counts iterations, so rates are per iteration and latencies are in iterations.
    """

    kernel = _one_second
    source = "slotted time, one second per iteration"

    def params(self) -> NDArray[np.float64]:
        """Return an empty array: there are no parameters."""
        return np.zeros(0)

    def spec(self) -> dict[str, Any]:
        """Return ``{"kind": "unit"}``."""
        return {"kind": "unit"}
