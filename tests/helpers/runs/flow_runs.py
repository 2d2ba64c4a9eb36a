"""Runs of policies that use intervals of output lengths, such as flow control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from helpers.runs import schedules
from kvgym.policies.runner import SimulationResult
from kvgym.workloads.table import RequestTable


def intervals(o: Sequence[int]) -> dict[str, Any]:
    """Columns of requests of class 0 with predictions from one token to the true length."""
    return {"predicted_low": [1] * len(o), "predicted_high": o, "class_id": [0] * len(o)}


def requests(a: Sequence[float], s: Sequence[int], o: Sequence[int], **columns: Any) -> RequestTable:
    """Make a table of such requests; ``columns`` replace theirs."""
    return RequestTable(a, s, o, **intervals(o) | columns)


def run(policy: str, M: int, a: Any, s: Any, o: Any, **settings: Any) -> SimulationResult:  # noqa: N803
    """Simulate such requests; ``settings`` as :func:`helpers.runs.schedules.run` takes them."""
    return schedules.run(policy, M, a, s, o, **(intervals(o) | settings))


def arrivals(rng: np.random.Generator, n: int, mean: float) -> Any:
    """Arrival times at whole seconds, ``mean`` apart on average."""
    return np.floor(np.cumsum(rng.exponential(mean, n)))
