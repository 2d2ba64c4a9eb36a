"""Runs in pieces: the same schedule, means to 1e-12 and quantiles to 2^-10 of a run in one piece."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, LivelockError, WorkloadError
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.experiments.streaming import stream_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.metrics.measured import STATISTICS, Measured, statistics
from kvgym.metrics.streaming import Sketch, stream
from kvgym.policies.runner import simulate
from kvgym.policies.streaming import PiecewiseRun
from kvgym.simulator.system import System
from kvgym.simulator.tables import REQUEST
from kvgym.workloads.pieces import pieces_of
from kvgym.workloads.table import RequestTable

UNIT = System(kv_capacity=20, batch_time=AffineBatchTime(constant=1.0))
QUANTILES = ("p50", "p90", "p95", "p99")


def table(arrivals, prompt=2, output=3, **columns):
    n = len(arrivals)
    return RequestTable.from_columns(
        arrival_time=arrivals, prompt_len=[prompt] * n, output_len=[output] * n, **columns
    )


def drawing(*pieces):
    return lambda: iter(pieces)


def test_two_pieces_by_hand():
    """Requests of three iterations at 0, 1 and 9 s; batches take a second, so they end after 3, 4 and 12 s."""
    outcome = stream(UNIT, drawing(table([0.0, 1.0]), table([]), table([9.0], ttft_slo=[0.5])), "fcfs")
    found = outcome.metrics
    assert outcome.num_requests == found["finished"] == 3
    assert [found[f"e2e_latency_{s}"] for s in ("mean", "std", "max")] == [3.0, 0.0, 3.0]
    assert found["ttft_mean"] == found["tbt_mean"] == found["tpot_mean"] == 1.0
    assert found["makespan"] == 12.0
    assert found["iterations"] == 7
    assert found["token_throughput"] == 9 / 12
    assert found["busy_fraction"] == 7 / 12
    assert found["ttft_attainment"] == 0.0
    assert found["slo_attainment"] == 2 / 3  # requests without a target meet it


CASES = [("fcfs", 50.0), ("mc_sf", 30.0), ("ranked", 30.0), ("alpha_beta", 50.0)]


@pytest.mark.parametrize(("policy", "rate"), CASES)
def test_a_run_in_pieces_is_the_run_in_one(policy, rate):
    scenario = build_scenario(OVERLOAD_SCENARIO, num_requests=600, rate=rate)
    workload, system = scenario.make_workload(), scenario.make_system()
    whole = simulate(system, workload.sample(3), policy, seed=4)
    run = PiecewiseRun(system, lambda: pieces_of(workload, 3, 97), policy, seed=4)
    records = np.concatenate([piece.requests.copy() for piece in run.pieces()])
    for name in REQUEST.names:
        if not name.startswith("queue_"):  # links of rows that no longer wait
            np.testing.assert_array_equal(records[name], whole.requests[name], err_msg=name)
    assert run.simulation.workers.tobytes() == whole.worker.tobytes()
    wanted = compute_metrics(whole)
    found = stream(system, lambda: pieces_of(workload, 3, 97), policy, seed=4).metrics
    for name, value in found.items():
        error = 2**-10 if name.endswith(QUANTILES) and not name.startswith("tbt") else 1e-12
        assert value == pytest.approx(wanted[name], rel=error, nan_ok=True), name
    assert {name for name in wanted if not math.isnan(wanted[name])} - found.keys() == {"moves"}


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=30).map(np.array), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_sketch_is_as_right_as_it_says(parts):
    sketch, values = Sketch(), np.concatenate(parts)
    for part in parts:
        sketch.add(part)
    run = Measured(simulate(UNIT, table([0.0]), "fcfs"))
    found, wanted = sketch.statistics(run), statistics(values.copy())
    assert tuple(found) == STATISTICS
    largest = values.max()
    for name in ("mean", "max"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-12)
    assert found["std"] == pytest.approx(wanted["std"], rel=1e-9, abs=1e-9 * largest)
    for name in QUANTILES:
        assert found[name] == pytest.approx(wanted[name], rel=2**-10, abs=1e-9)


def test_scenarios_and_their_limits():
    scenario = build_scenario(OVERLOAD_SCENARIO, num_requests=300, rate=5.0)
    outcome = stream_scenario(scenario, "fcfs", 1)
    whole = simulate(scenario.make_system(), scenario.make_workload().sample(1), "fcfs", seed=1)
    assert outcome.metrics["e2e_latency_mean"] == pytest.approx(
        compute_metrics(whole)["e2e_latency_mean"], rel=1e-12
    )
    with pytest.raises(ConfigError, match="a cluster"):
        stream_scenario(build_scenario(scenario, workers=2), "fcfs")


def test_what_cannot_be_played_in_pieces_is_refused():
    one = table([0.0])
    with pytest.raises(ConfigError, match="no requests"):
        stream(UNIT, drawing(), "fcfs")
    with pytest.raises(ConfigError, match="a horizon"):
        stream(
            System(kv_capacity=20, batch_time=AffineBatchTime(constant=1.0), horizon=9.0),
            drawing(one),
            "fcfs",
        )
    with pytest.raises(ConfigError, match="begins at 1 s, before"):
        stream(UNIT, drawing(table([3.0]), table([1.0])), "fcfs")
    once = iter([one, table([1.0])])
    with pytest.raises(ConfigError, match="another number of requests"):
        stream(UNIT, lambda: once, "fcfs")
    with pytest.raises(WorkloadError, match="never be served"):
        stream(UNIT, drawing(one, table([1.0], prompt=30)), "fcfs")


def test_a_policy_without_progress_ends_with_its_error():
    """A margin of 18 of 20 tokens admits no prompt of 15: neither at first, nor when the next piece is known."""
    system = System(kv_capacity=20, batch_time=AffineBatchTime(constant=1.0), stall_limit=50)
    with pytest.raises(LivelockError):
        stream(
            system,
            drawing(*(table([t], prompt=15) for t in (0.0, 1e3, 2e3))),
            "alpha_greedy:alpha=0.9,strict=True",
        )
