"""Conformance checks of registered metrics: ``check_metric("acme_cost")``."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ContractError, KVGymError, shown
from kvgym.metrics.catalogue import METRICS
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.recording.window import Window
from kvgym.simulator.system import System
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

POLICY = "fcfs"
"""The scheduler of the runs: it evicts, and any requests can be given to it."""


@explained
def check_metric(name: str) -> None:
    """Check a registered metric on small runs.

    The runs: requests that are evicted; targets; a horizon that leaves some or all requests unfinished; one request of
    one token; a cluster; a window. On each, the metric must return a finite number, or NaN if nothing was measured; the
    same number again; and it must not change the result. Its function must be one that other processes can import.

    Args:
        name: name of the metric.

    Raises:
        UnknownNameError: no metric of that name is registered.
        ContractError: a requirement is not met; the message names the first one and the run.
    """
    metric = METRICS[name]
    where = f"metric {shown(name)}"
    try:
        found = pickle.loads(pickle.dumps(metric.measure))
    except Exception as error:  # pickling may raise anything
        raise ContractError(
            f"{where}: its function cannot be sent to other processes ({shown(str(error), 80)}); define it at the top "
            "of a module"
        ) from error
    if getattr(metric.measure, "__qualname__", None) and found is not metric.measure:
        raise ContractError(
            f"{where}: its module has another function of that name, which other processes would use"
        )
    for run, result in _runs():
        before = _content(result)
        try:
            first, again = metric.value(result), metric.value(result)
        except KVGymError as error:
            raise ContractError(f"{where}, {run}: {error}") from error
        if first != again and not (math.isnan(first) and math.isnan(again)):
            raise ContractError(
                f"{where}, {run}: {first!r}, and {again!r} when computed again; expected the same number"
            )
        if _content(result) != before:
            raise ContractError(f"{where}, {run}: it changes the result; copy the arrays that you change")


def _runs() -> Iterator[tuple[str, SimulationResult]]:
    """Yield small runs with a description of each."""
    requests = RequestTable.from_columns(
        arrival_time=np.arange(12) // 2, prompt_len=[3, 5] * 6, output_len=[6, 2, 9] * 4
    )
    one = System(kv_capacity=24, batch_time=UnitBatchTime(), progress_on_evict="recompute")
    targets = requests.replace(ttft_slo=np.full(12, 4.0), tbt_slo=np.full(12, 2.0))
    single = RequestTable.from_columns(arrival_time=[0.0], prompt_len=[1], output_len=[1])
    runs: dict[str, tuple[System, RequestTable, dict[str, Any]]] = {
        "a run with evictions": (one, requests, {}),
        "a run with targets": (one, targets, {}),
        "a run that stops with requests unfinished": (replace(one, horizon=12.0), requests, {}),
        "a run that stops before a request has finished": (replace(one, horizon=0.5), requests, {}),
        "a run of one request": (one, single, {}),
        "a run of two workers": (one.replicate(2), requests, {}),
        "a run with a window": (one, requests, {"window": Window(warm_up=2.0, cool_down=1.0)}),
    }
    for name, (system, table, more) in runs.items():
        router = "round_robin" if system.workers else None
        yield name, simulate(system, table, POLICY, router=router, **more)


def _content(result: SimulationResult) -> tuple[bytes, ...]:
    """Return the bytes of the arrays of a result."""
    arrays = (result.requests, result.worker, result.gap_counts, result.gap_sums)
    return tuple(np.ascontiguousarray(array).tobytes() for array in arrays)
