"""Limits on every scheduler at M*, against direct calculations and runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reproduce.formulas.limits import (
    UNKNOWN_TYPES,
    best_throughput,
    least_backlog,
    least_latency,
    service_rate,
    unknown_types_equilibrium,
)

from kvgym.batch_time import UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.fluid import fluid_equilibrium
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable


def test_the_service_rate_at_the_equilibrium_is_the_arrival_rate() -> None:
    classes = (ClassStatistics("a", 3.0, 10.0, 20.0), ClassStatistics("b", 1.0, 5.0, 40.0))
    memory = fluid_equilibrium(classes, 0.01, 1e-5).memory
    assert service_rate(classes, memory, 0.01, 1e-5) == pytest.approx(4.0)
    assert service_rate(classes, 2 * memory, 0.01, 1e-5) > 4.0
    # Without d0's share, memory does not help: 1e-5 s per token.
    assert service_rate(classes, 1e12, 0.01, 1e-5) == pytest.approx(4e5 / (3 * 21 * 20 + 41 * 25), rel=1e-6)


@pytest.mark.parametrize(("rate", "service", "time"), [(1.0, 1.0, 60.0), (2.0, 2.5, 40.0), (3.0, 2.0, 10.0)])
def test_least_backlog_by_simulation(rate: float, service: float, time: float) -> None:
    """The largest of N(s) - service s lies just after an arrival, or at 0."""
    rng, found = np.random.default_rng(0), []
    for _ in range(20_000):
        at = np.sort(rng.uniform(0, time, rng.poisson(rate * time)))
        found.append(max(0.0, *(np.arange(1, len(at) + 1) - service * at), 0.0))
    error = np.std(found) / math.sqrt(len(found))
    assert abs(least_backlog(rate, service, time) - np.mean(found)) < 4 * error


def test_growth() -> None:
    assert least_backlog(2.0, 2.0, 10_000.0) == pytest.approx(math.sqrt(2 * 2e4 / math.pi), rel=0.01)
    assert least_latency(2.0, 2.0, 8_000.0) / least_latency(2.0, 2.0, 2_000.0) == pytest.approx(2.0, rel=0.02)
    with pytest.raises(ConfigError, match="at most"):
        least_backlog(1.0, 1.0, 1e9)


@pytest.mark.parametrize("policy", ["fcfs", "wait:thresholds=4", "sarathi:watermark=0.0", "mc_sf"])
def test_no_scheduler_is_below_the_least_latency(policy: str) -> None:
    # Example 2: prompts of 1, outputs of 1, 4 per second, C = M* = 12, one second per iteration: 4 per second.
    latency = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        a = np.sort(rng.uniform(0, 400, rng.poisson(1600)))
        ones = np.ones(len(a), np.int64)
        table = RequestTable.from_columns(
            arrival_time=a,
            prompt_len=ones,
            output_len=ones,
            class_id=0 * ones,
            predicted_output_len=ones,
            classes=(ClassStatistics("hello", 4.0, 1.0, 1.0),),
        )
        system = System(
            kv_capacity=12,
            batch_time=UnitBatchTime(),
            first_token="decode",
            progress_on_evict="lost",
            requeue="back",
        )
        done = simulate(system, table, policy).requests
        latency.append(np.mean(done["finish_time"] - done["arrival_time"]))
    assert np.mean(latency) + 3 * np.std(latency) / math.sqrt(6) >= least_latency(4.0, 4.0, 400.0)


def test_unknown_types_cost_throughput() -> None:
    assert unknown_types_equilibrium() == 9.0
    assert best_throughput(9, known=True) == 3.0
    assert best_throughput(9, known=False, evictions=0) == pytest.approx(2.70595, abs=1e-4)
    # A larger memory has room for more; what is remembered of the evicted helps, but never as much as knowing.
    found = [best_throughput(6, known=False, evictions=e) for e in (0, 1, 2)]
    assert (np.diff(found) > -1e-6).all()
    assert found[-1] < best_throughput(6, known=True)
    assert len(UNKNOWN_TYPES) == 2


def test_best_throughput_by_hand() -> None:
    # C = 3, nothing remembered: one prompt at a time. Prefill, first token, and for half of them a second: 2.5
    # iterations for 1.5 tokens, 0.6 a second. While one decodes (2 tokens) there is room to prefill the next, which
    # must go if the first turns out to be long (2 + 1 held, 3 to go on): the next is then lost, for nothing. So
    # after a short one (half of all) a prefill is saved: 2 iterations on average for 1.5 tokens: 0.75.
    assert best_throughput(3, known=False, evictions=0) == pytest.approx(0.75, abs=1e-5)
    with pytest.raises(ConfigError, match="capacity"):
        best_throughput(2, known=False)


@pytest.mark.parametrize("policy", ["fcfs", "nested_wait:thresholds=2/1", "sarathi:watermark=0.0"])
def test_no_scheduler_without_types_is_above_the_best(policy: str) -> None:
    # As many as ever can be served are there from the beginning.
    rng = np.random.default_rng(3)
    output = rng.integers(1, 3, 6000)
    table = RequestTable(np.zeros(6000), np.ones(6000, int), output, classes=UNKNOWN_TYPES)
    system = System(
        kv_capacity=9,
        batch_time=UnitBatchTime(),
        first_token="decode",
        progress_on_evict="lost",
        requeue="back",
        horizon=1500.0,
    )
    done = simulate(system, table, policy).requests
    tokens = output[np.isfinite(done["finish_time"])].sum() / 1500
    assert 0 < tokens <= 2.72
