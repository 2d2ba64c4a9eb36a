"""bound_slotted: intervals that hold for every policy, schedules that the engine runs, and the integer program."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.runs.random_runs import RandomPolicy
from helpers.selection import EACH_FAMILY
from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError, KVGymError, WorkloadError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.hindsight.slotted import SLOTTED_METRICS, bound_slotted
from kvgym.theory.hindsight.slotted.replay import replay
from kvgym.workloads import mcsf_instance
from oracles.slotted_instances import brute_force, small, table_of

ANY = (
    "e2e_latency_mean",
    "ttft_mean",
    "e2e_latency_max",
    "makespan",
    "request_throughput",
    "token_throughput",
)


@settings(max_examples=15, deadline=None)
@given(small(3))
def test_the_program_reaches_all_goals(instance):
    table, memory = instance
    best = brute_force(table, memory, int(table.output_len.sum()))
    for metric, value in zip(("e2e_latency_mean", "makespan", "e2e_latency_max"), best, strict=True):
        found = bound_slotted(table, memory, metric, seconds=30, effort=0)
        assert found.exact, found.method
        expected = {"e2e_latency_mean": value / len(table), "makespan": value - table.arrival_time[0]}
        assert found.upper == pytest.approx(expected.get(metric, value))


@pytest.mark.parametrize("metric", SLOTTED_METRICS)
def test_schedules_reach_their_value_in_the_engine(metric):
    table, memory = mcsf_instance(2, 1)
    table = table.select(slice(0, 20))
    found = bound_slotted(table, memory, metric, effort=0.02)
    reached = compute_metrics(replay(table, memory, found.schedule), [metric])[metric]
    more = metric in ("request_throughput", "token_throughput", "kv_utilisation")
    assert reached == pytest.approx(found.lower if more else found.upper)
    assert found.lower <= found.upper
    again = bound_slotted(table, memory, metric, effort=0.02)
    assert (again.lower, again.upper) == (found.lower, found.upper)


def is_within(value, interval, metric):
    more = metric in ("request_throughput", "token_throughput")
    return value <= interval.upper + 1e-9 if more else value >= interval.lower - 1e-9


@EACH_FAMILY
def test_no_policy_beats_the_bound(name):
    info = POLICIES[name].info
    for seed in range(3):
        rng = np.random.default_rng(seed)
        arrival, prompt, output = (
            np.sort(rng.integers(0, 12, 10)),
            rng.integers(1, 5, 10),
            rng.integers(1, 15, 10),
        )
        table = table_of(*zip(arrival.tolist(), prompt.tolist(), output.tolist(), strict=True)).replace(
            class_id=np.zeros(10), predicted_low=np.ones(10), predicted_high=np.full(10, 14)
        )
        system = System(kv_capacity=20, batch_time=UnitBatchTime(), stall_limit=100)
        try:
            metrics = compute_metrics(simulate(system, table, name, compiled=False), ANY)
        except KVGymError:  # it needs what these requests do not have, or it makes no progress
            continue
        for metric in ANY:
            interrupted = info.evicts or info.pauses or info.chunks_prefill
            known = bound_slotted(
                table, 20, metric, effort=0.01, interruptions=metric == "ttft_mean" and interrupted
            )
            assert is_within(metrics[metric], known, metric), (metric, metrics[metric], known)


class RandomInSlots(RandomPolicy):
    """Any feasible decision at whole moments."""

    def schedule(self, view):
        decision = super().schedule(view)
        if decision.wait_until is None or math.isinf(decision.wait_until):
            return decision
        return dataclasses.replace(decision, wait_until=float(math.ceil(decision.wait_until)))


@settings(max_examples=25, deadline=None)
@given(small(6), st.integers(0, 2**32 - 1), st.sampled_from(["lost", "kept", "recompute"]))
def test_no_random_decision_beats_the_bounds(instance, seed, progress):
    table, memory = instance
    system = System(
        kv_capacity=memory, batch_time=UnitBatchTime(), progress_on_evict=progress, stall_limit=300
    )
    try:
        run = simulate(system, table, RandomInSlots(seed, table), compiled=False)
    except KVGymError:
        return
    metrics = compute_metrics(run, ANY)
    for metric in ANY:
        known = bound_slotted(table, memory, metric, effort=0, interruptions=True)
        assert is_within(metrics[metric], known, metric), (metric, metrics[metric], known)
        if progress == "lost" and metric != "ttft_mean":
            known = bound_slotted(table, memory, metric, effort=0.02)
            assert is_within(metrics[metric], known, metric), (metric, metrics[metric], known)


def test_bad_input_is_rejected():
    table, memory = mcsf_instance(1, 0)
    with pytest.raises(ConfigError, match="e2e_latency_mean"):
        bound_slotted(table, memory, "tbt_mean")
    with pytest.raises(ConfigError, match="interruptions"):
        bound_slotted(table, memory, "kv_utilisation", interruptions=True)
    with pytest.raises(WorkloadError, match="no requests"):
        bound_slotted(table.select(slice(0, 0)), memory)
    with pytest.raises(ConfigError, match="seconds"):
        bound_slotted(table, memory, seconds=-1)
