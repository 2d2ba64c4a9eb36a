"""What tests of clusters share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvgym.batch_time import AffineBatchTime, PiecewiseBatchTime, UnitBatchTime
from kvgym.policies.routing import Router
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.system import FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE, System, Worker
from kvgym.simulator.view import ClusterView
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

UNIT, AFFINE = UnitBatchTime(), AffineBatchTime(0.31, 0.017, 0.023, 0.0011)


STAIRS = PiecewiseBatchTime("kv_tokens", [5, 20, 60], [0.25, 0.5, 1.75], 0.03)


RULES = list(itertools.product(FIRST_TOKEN, PROGRESS_ON_EVICT, REQUEUE))


def rules_of(k: int) -> dict[str, str]:
    return dict(zip(("first_token", "progress_on_evict", "requeue"), RULES[k], strict=True))


def workload(seed: int = 0, n: int = 16, rate: float = 0.7, gap: float = 0.0) -> RequestTable:
    """Requests with every column, arrivals on a grid of halves; ``gap`` seconds of nothing after every sixth."""
    rng = np.random.default_rng(seed)
    output = rng.integers(1, 10, n)
    guess = np.maximum(1, output + rng.integers(-1, 2, n))
    arrival = np.floor(2 * np.cumsum(rng.exponential(1 / rate, n))) / 2
    return RequestTable.from_columns(
        arrival_time=arrival + gap * (np.arange(n) // 6),
        prompt_len=rng.integers(1, 9, n),
        output_len=output,
        predicted_output_len=guess,
        predicted_low=np.maximum(1, guess - 2),
        predicted_high=guess + 3,
        class_id=rng.integers(0, 2, n),
        priority=rng.integers(0, 3, n),
        ttft_slo=rng.uniform(1, 20, n),
        tbt_slo=rng.uniform(0.5, 4, n),
        classes=(ClassStatistics("short", rate / 2, 4.5, 4.0), ClassStatistics("long", rate / 2, 4.5, 6.0)),
    )


def equal_tables(a: Any, b: Any, where: str, ignore: Sequence[str] = ()) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape, where
    for name in a.dtype.names or (...,):
        if name not in ignore:
            np.testing.assert_array_equal(a[name], b[name], err_msg=f"{where}.{name}")


def assert_equal(one: SimulationResult, other: SimulationResult) -> None:
    for table in ("requests", "worker", "log", "gap_counts", "gap_sums"):
        equal_tables(getattr(one, table), getattr(other, table), table)
    assert one.completed == other.completed


class PlainRouter(Router):
    """Another router, consulted through ``route`` as a user's would be."""

    def __init__(self, inner: Router) -> None:
        self.inner, self.info = inner, inner.info  # type: ignore[misc]

    def reset(self, num_workers: int, seed: np.random.SeedSequence) -> None:
        self.inner.reset(num_workers, seed)

    def route(self, view: ClusterView) -> int:
        return self.inner.route(view)


def apart(prefill: int, decode: int, M: int = 60, **rules: Any) -> System:  # noqa: N803
    workers = [Worker(M, UNIT, "prefill")] * prefill + [Worker(M, UNIT, "decode")] * decode
    return System.cluster(workers, **rules)
