"""Prefill and decode workers on schedules worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.runs.clusters import UNIT, apart
from helpers.selection import EACH_FAMILY
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import FIRST_TOKEN, System, Worker
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

# ---------------------------------------------------------------- hand-worked: prefill and decode workers


def log_rows(result: SimulationResult) -> list[tuple[int, float, float]]:
    assert result.log is not None
    return result.log[["worker", "start_time", "end_time"]].tolist()


@pytest.mark.parametrize("first_token", FIRST_TOKEN)
def test_one_prefill_and_one_decode_worker(first_token: str) -> None:
    # P 0 over [0, 1], P 1 over [1, 2], P 2 over [4, 5]; a transfer takes 0.5 and 0.25 per token.
    # counted: 0 takes 4 tokens along (ready 2.5), 1 takes 2 (ready 3); 2 is done with its prefill, on worker 0.
    #   D 0 over [2.5, 3.5], D 0 1 over [3.5, 4.5]: both are done.
    # else: 3 tokens (ready 2.25) and 1 (ready 2.75). D 0 [2.25, 3.25], D 0 1 [3.25, 4.25], D 0 1 [4.25, 5.25];
    #   2 tokens, ready 6: D 2 [6, 7]. "decode" shows nothing before the end of the first decode.
    table = RequestTable([0, 0, 4], [3, 1, 2], [3, 2, 1])
    system = apart(1, 1, transfer_latency=0.5, transfer_time=0.25, first_token=first_token)
    result = simulate(system, table, "dist_serve", log=True)
    r = result.requests
    prefills = [(0, 0, 1), (0, 1, 2)]
    if first_token == "counted":
        expected = [[0, 1, 4], [1, 2, 5], [4.5, 4.5, 5], [2.5, 2.5, 0], [2.5, 3, np.nan], [1, 1, 0]]
        rows = [*prefills, (1, 2.5, 3.5), (1, 3.5, 4.5), (0, 4, 5)]
    else:
        first = [1, 2, 5] if first_token == "uncounted" else [3.25, 4.25, 7]
        gaps = [2.25, 2.25, 2] if first_token == "uncounted" else [1, 1, 0]
        expected = [[0, 1, 4], first, [5.25, 5.25, 7], gaps, [2.25, 2.75, 6], [1, 1, 1]]
        rows = [*prefills, (1, 2.25, 3.25), (1, 3.25, 4.25), (0, 4, 5), (1, 4.25, 5.25), (1, 6, 7)]
    names = ("start_time", "first_token_time", "finish_time", "max_token_gap", "ready_time", "worker")
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_array_equal(r[name], values, err_msg=name)
    assert log_rows(result) == rows
    assert result.worker["total_prefill_tokens"].tolist() == [6, 0]
    assert result.worker["total_output_tokens"].sum() == 6
    assert result.worker["kv_tokens"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("progress", "finish", "prefilled", "recomputed"),
    [("lost", 7, 3, 5), ("recompute", 5, 5, 5), ("kept", 5, 0, 0)],
)
def test_eviction_on_a_decode_worker(progress: str, finish: float, prefilled: int, recomputed: int) -> None:
    # M = 12 on worker 1. P 0 [0, 1], P 1 [1, 2]. D 0 [1, 2]: 6 tokens, and 4 of request 1: D 0 1 [2, 3]: 7 + 5. At 3
    # both would take 14: 1 is evicted, with 2 of 3 output tokens. D 0 [3, 4] is its last. At 4 request 1 is back:
    # lost: P [4, 5], D, D: done at 7. recompute: a prefill of 5 writes token 3: done at 5. kept: D [4, 5]: done at 5.
    # Repeated tokens do not count: the gap is finish - 3.
    table = RequestTable([0, 0], [4, 3], [4, 3])
    workers = [Worker(60, UNIT, "prefill"), Worker(12, UNIT, "decode")]
    result = simulate(System.cluster(workers, progress_on_evict=progress), table, "dist_serve", log=True)
    r, w = result.requests, result.worker
    assert r["finish_time"].tolist() == [4, finish]
    assert r["first_token_time"].tolist() == [1, 2]
    assert r["num_evictions"].tolist() == [0, 1]
    assert r["num_admissions"].tolist() == [2, 3]
    assert r["max_token_gap"].tolist() == [1, finish - 3]
    assert w["total_prefill_tokens"].tolist() == [7, prefilled]
    assert w["total_recomputed_tokens"].tolist() == [0, recomputed]
    assert w["total_evicted"].tolist() == [0, 1]
    assert w["total_delivered_tokens"].tolist() == [2, 5]


@EACH_FAMILY
def test_prefill_workers_continue_when_requests_have_left(name: str) -> None:
    """With memory for one prompt at a time, the next begins when the last has left, not when it is done."""
    table = RequestTable.from_columns(
        arrival_time=[0, 1, 2, 3], prompt_len=[10] * 4, output_len=[30] * 4, predicted_output_len=[30] * 4,
        predicted_low=[30] * 4, predicted_high=[30] * 4, class_id=[0] * 4,
        classes=(ClassStatistics("only", 1.0, 10.0, 30.0),),
    )  # fmt: skip
    system = System.cluster([Worker(48, UNIT, "prefill"), Worker(480, UNIT, "decode")])
    patient = {"request_level": ":batch=1", "wait": ":thresholds=1", "nested_wait": ":thresholds=1"}
    result = simulate(system, table, name + patient.get(name, ""))
    assert result.requests["start_time"].tolist() == [0, 1, 2, 3]
