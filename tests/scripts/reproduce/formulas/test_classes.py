"""Optima by kind and slot: against every schedule of small instances, and against policies."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduce.formulas.classes import (
    METRICS,
    Kinds,
    bound_classes,
    memory_of,
    place,
    schedule_metrics,
    volume_bound,
)

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

LARGE = ("request_throughput", "token_throughput")


def table_of(arrival, kind, lengths=((1, 2), (2, 4))):
    prompt, output = np.array(lengths)[list(kind)].T
    return RequestTable(arrival, prompt, output, predicted_output_len=output, class_id=kind)


def best(table, capacity, metric, latest):
    """The best of every choice of starts until a slot."""
    kinds, found = Kinds.of(table), []
    for starts in itertools.product(*(range(math.ceil(a), latest + 1) for a in table.arrival_time)):
        if memory_of(kinds, np.array(starts)).max() <= capacity:
            found.append(schedule_metrics(kinds, np.array(starts))[metric])
    return max(found) if metric in LARGE else min(found)


def test_memory_and_metrics_by_hand():
    # 0: 2, 3 in slots 0, 1. 1: 3, 4, 5, 6 from slot 1 on. Latencies 2 and 5 - 1.
    kinds, starts = Kinds.of(table_of([0, 1], [0, 1])), np.array([0, 1])
    assert memory_of(kinds, starts).tolist() == [2, 6, 4, 5, 6]
    metrics = schedule_metrics(kinds, starts)
    assert (metrics["e2e_latency_mean"], metrics["makespan"]) == (3, 5)
    assert metrics["token_throughput"] == 6 / 5
    assert kinds.slot.tolist() == [0, 1]


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_brackets_the_best_of_all_schedules(metric, data):
    n = data.draw(st.integers(1, 3))
    arrival = sorted(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    kind = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    capacity = data.draw(st.integers(6, 14))
    table = table_of(arrival, kind)
    interval, optimum = bound_classes(table, capacity, metric), best(table, capacity, metric, 11)
    assert interval.lower <= optimum * (1 + 1e-6) + 1e-9
    assert interval.upper >= optimum * (1 - 1e-6) - 1e-9
    volume = volume_bound(table, capacity, metric)
    assert volume >= optimum - 1e-9 if metric in LARGE else volume <= optimum + 1e-9
    kinds = Kinds.of(table)
    assert interval.schedule is not None
    assert memory_of(kinds, interval.schedule).max() <= capacity
    reached = schedule_metrics(kinds, interval.schedule)[metric]
    assert reached == pytest.approx(interval.lower if metric in LARGE else interval.upper)


@pytest.fixture(scope="module")
def crowd():
    rng = np.random.default_rng(4)
    arrival = np.repeat(np.arange(60), rng.poisson(3.0, 60)).astype(float)
    return table_of(arrival, rng.integers(0, 2, len(arrival)), lengths=((3, 5), (3, 15)))


@pytest.mark.parametrize("metric", METRICS)
def test_no_policy_is_better(crowd, metric):
    interval = bound_classes(crowd, 400, metric)
    bound = interval.upper if metric in LARGE else interval.lower
    volume = volume_bound(crowd, 400, metric)
    assert volume >= bound if metric in LARGE else volume <= bound
    system = System(kv_capacity=400, batch_time=UnitBatchTime())
    for policy in (
        "mc_sf",
        "mc_benchmark",
        "flow_control_classes:budgets=2/2",
        "fcfs",
        "request_level:batch=20",
    ):
        reached = compute_metrics(simulate(system, crowd, policy))[metric]
        assert reached <= bound if metric in LARGE else reached >= bound


def test_many_requests_leave_a_narrow_interval(crowd):
    assert bound_classes(crowd, 400).gap < 0.1
    lower = bound_classes(crowd, 400, seconds=0.0).lower
    assert lower == volume_bound(crowd, 400)  # no time for the program: memory × time remains


def test_preferred_starts_are_kept_where_they_fit():
    kinds = Kinds.of(table_of([0, 0, 0], [1, 1, 0]))
    # M = 9: the second long one fits next to the first (3 … 6) at no slot but after it; the short one (2, 3) at 1.
    assert place(kinds, 9, np.array([0.0, 0.0, 1.0])).tolist() == [0, 3, 1]


@pytest.mark.parametrize(
    ("table", "capacity", "metric", "match"),
    [
        (table_of([0], [0]), 9, "kv_peak", "kv_peak"),
        (table_of([], []), 9, "makespan", "no requests"),
        (table_of([0, 0.5], [0, 0]), 9, "makespan", "request 1 arrives at 0.5, between slots"),
        (table_of([0], [1]), 5, "makespan", "holds no request of 6"),
        (table_of(np.zeros(60), range(60), [(1, 1 + i) for i in range(60)]), 99, "makespan", "60 different"),
    ],
)
def test_errors(table, capacity, metric, match):
    with pytest.raises(ConfigError, match=match):
        bound_classes(table, capacity, metric)
