"""What tests of flow control and of policies under intervals share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvgym.batch_time import BatchTimeModel, UnitBatchTime
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable


def requests(a: Sequence[float], s: Sequence[int], o: Sequence[int], **columns: Any) -> RequestTable:
    """Requests of class 0 whose output may be anything from 1 to its true length, unless told otherwise."""
    told = {"predicted_low": [1] * len(a), "predicted_high": o, "class_id": [0] * len(a), **columns}
    return RequestTable.from_columns(arrival_time=a, prompt_len=s, output_len=o, **told)


def run(
    policy: str,
    M: int,  # noqa: N803
    a: Sequence[float],
    s: Sequence[int],
    o: Sequence[int],
    *,
    time: BatchTimeModel | None = None,
    seed: int = 0,
    system: dict[str, Any] | None = None,
    **columns: Any,
) -> SimulationResult:
    setting = System(kv_capacity=M, batch_time=time or UnitBatchTime(), **(system or {}))
    return simulate(setting, requests(a, s, o, **columns), policy, seed=seed, log=True)


def check(
    result: SimulationResult,
    start: Sequence[float],
    finish: Sequence[float],
    first: Sequence[float] | None = None,
    evictions: Sequence[int] | None = None,
    kv: Sequence[int] | None = None,
) -> None:
    records = result.requests
    np.testing.assert_array_equal(records["start_time"], start)
    np.testing.assert_array_equal(records["finish_time"], finish)
    np.testing.assert_array_equal(
        records["num_evictions"], [0] * len(start) if evictions is None else evictions
    )
    if first is not None:
        np.testing.assert_array_equal(records["first_token_time"], first)
    if kv is not None:
        assert result.log is not None
        np.testing.assert_array_equal(result.log["kv_tokens"], kv)


def arrivals(rng: np.random.Generator, n: int, mean: float) -> Any:
    """Arrival times at whole seconds, ``mean`` apart on average."""
    return np.floor(np.cumsum(rng.exponential(mean, n)))
