"""Metrics by job: makespans worked by hand, times alone against the engine, and jobs that have not finished."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.metrics.compute import compute_metrics
from kvgym.metrics.jobs import alone_times, found_tokens, spans_alone
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.graphs import Parents
from kvgym.workloads.hashes import BlockHashes
from kvgym.workloads.table import RequestTable

CLOSED = System(100, UnitBatchTime(), sessions="closed")
SLOW = System(400, AffineBatchTime(0.31, 0.017, 0.023, 0.0011), sessions="closed")

# A job calls two agents and uses what they have found; the other job is a single request.
TWO = RequestTable.from_columns(
    arrival_time=[0.0, 1, 1, 1, 1], prompt_len=[3] * 5, output_len=[2, 2, 4, 1, 1], session_id=[0, 4, 1, 2, 0],
    turn=[1, 1, 1, 1, 2], think_time=[0, 0, 0, 0, 1.5], job_id=[8, 9, 8, 8, 8],
    parents=Parents.from_rows([[], [], [0], [0], [2, 3]]),
)  # fmt: skip


def run(system, table, **options):
    return simulate(system, table, "fcfs", compiled=False, **options)


def test_jobs_by_hand():
    m = compute_metrics(run(CLOSED, TWO))
    # Job 8: 0 to 2, agents from 2 to 6 and from 2 to 3, the end from 7.5, in the next batch if one runs. Job 9: 1 to 3.
    assert (m["job_makespan_mean"], m["job_makespan_max"]) == ((8.5 + 2) / 2, 8.5)
    assert (m["job_wait_max"], m["job_slowdown_max"], m["job_fairness"]) == (0, 1, 1)
    assert (m["jobs_finished"], m["sessions_finished"]) == (2, 4)
    # With memory for 8 tokens: 0 to 2, job 9 from 2 to 4, agents from 4 to 8 and from 4 to 5, the end from 9.5 to 10.5.
    m = compute_metrics(run(replace(CLOSED, kv_capacity=8), TWO))
    assert (m["job_makespan_max"], m["job_makespan_mean"]) == (10.5, (10.5 + 3) / 2)
    assert (m["job_wait_max"], m["job_wait_mean"]) == (2, (2 + 1) / 2)
    assert m["job_slowdown_max"] == 1.5
    slow = np.array([10.5 / 8.5, 1.5])
    assert m["job_fairness"] == pytest.approx(slow.sum() ** 2 / (2 * (slow**2).sum()))


def test_jobs_that_have_not_finished_and_requests_without_jobs():
    cut = run(replace(CLOSED, horizon=7.0), TWO)
    assert (cut.to_come.tolist(), cut.jobs_to_come.tolist()) == ([0], [8])
    m = compute_metrics(cut)
    assert (m["jobs_finished"], m["job_makespan_mean"], m["job_slowdown_mean"]) == (1, 2, 1)
    plain = compute_metrics(run(CLOSED, TWO.replace(job_id=None)))
    names = ("job_makespan_mean", "job_wait_p99", "job_slowdown_max", "jobs_finished", "job_fairness")
    assert all(math.isnan(plain[name]) for name in names)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"output_kv": "next_iteration"},
        {"first_token": "uncounted"},
        {"prefix_cache": "computed", "prefix_block": 4},
    ],
    ids=["at once", "next iteration", "uncounted", "cache"],
)
def test_a_request_alone_takes_as_long_as_in_the_engine(settings):
    system = replace(SLOW, sessions="open", **settings)
    table = RequestTable.from_columns(
        arrival_time=[0.0, 100, 200], prompt_len=[12, 12, 9], output_len=[3, 5, 1],
        hashes=BlockHashes.from_rows([[1, 2, 3], [1, 2, 3], [1, 2, 7]], [12, 12, 9], 4), job_id=[0, 0, 1],
    )  # fmt: skip
    result = run(system, table)
    times = result.requests["finish_time"] - table.arrival_time
    np.testing.assert_allclose(alone_times(table, system), times, rtol=1e-12)
    if system.prefix_unit:
        assert found_tokens(table, 4).tolist() == [0, 12, 8]
    spans = spans_alone(result.table, system, np.array([0, 1]))
    np.testing.assert_allclose(spans, [100 + times[1], times[2]], rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["open", "closed"]))
def test_no_job_is_faster_than_its_longest_path_alone(seed, sessions):
    rng = np.random.default_rng(seed)
    n = 15
    job = rng.integers(0, 4, n)
    earlier = [np.flatnonzero(job[:row] == job[row]) for row in range(n)]
    parents = [rng.choice(rows, min(len(rows), 2), replace=False).tolist() for rows in earlier]
    table = RequestTable.from_columns(
        arrival_time=np.sort(rng.uniform(0, 5, n)), prompt_len=rng.integers(1, 30, n), job_id=job,
        output_len=rng.integers(1, 9, n), session_id=np.arange(n), turn=np.ones(n),
        think_time=rng.choice([0.0, 2.0], n), parents=Parents.from_rows(parents),
    )  # fmt: skip
    m = compute_metrics(run(replace(SLOW, kv_capacity=60, sessions=sessions), table))
    assert m["jobs_finished"] == len(np.unique(job))
    for name, bound in (("job_wait", 0.0), ("job_slowdown", 1.0)):
        assert m[f"{name}_mean"] >= bound - 1e-9
