"""Intervals of the optimum: the argument used, and the run at the other end."""

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.errors import ConfigError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.simulator.system import System
from kvgym.theory.hindsight.bounds import bound, is_slotted, unbeatable
from kvgym.theory.hindsight.calibrated.bounds import bound_calibrated
from kvgym.workloads.table import RequestTable

SLOTTED = System(20, UnitBatchTime())
AFFINE = System(60, AffineBatchTime(1.0, 0.01, 0.02, 0.001))


def requests(n=12, seed=0):
    rng = np.random.default_rng(seed)
    output = rng.integers(1, 8, n)
    return RequestTable.from_columns(
        arrival_time=np.sort(rng.integers(0, 4, n)).astype(float),
        prompt_len=rng.integers(1, 6, n),
        output_len=output,
        predicted_output_len=output,
    )


def test_bounds_are_tighter_in_slotted_time():
    table = requests()
    found = bound(table, SLOTTED)
    assert "slotted time" in found.method
    assert bound_calibrated(table, SLOTTED).value < found.lower <= found.upper
    for policy in ("mc_sf", "fcfs", "sarathi", "clairvoyant"):
        reached = compute_metrics(simulate(SLOTTED, table, policy))["e2e_latency_mean"]
        assert reached >= found.lower * (1 - 1e-9)
    assert found.schedule is not None
    assert found.schedule.shape == (12,)


@pytest.mark.parametrize(
    ("rules", "slotted"),
    [
        ({}, True),
        ({"progress_on_evict": "recompute"}, True),
        ({"block_size": 4}, False),
        ({"first_token": "decode"}, False),
        ({"progress_on_evict": "kept", "swap_time": 0.1}, False),
    ],
)
def test_conditions_of_slotted_time(rules, slotted):
    assert is_slotted(requests(), System(20, UnitBatchTime(), **rules)) is slotted


def test_other_systems_are_not_slotted():
    table = requests()
    assert not is_slotted(table, AFFINE)
    assert not is_slotted(table, SLOTTED.replicate(2))
    assert not is_slotted(table.replace(arrival_time=table.arrival_time + 0.5), SLOTTED)


def test_progress_that_evictions_keep_may_beat_schedules_without_interruptions():
    table = requests()
    kept = System(20, UnitBatchTime(), progress_on_evict="kept")
    assert unbeatable(table, kept).value <= unbeatable(table, SLOTTED).value


def test_the_best_run_is_the_other_end():
    table = requests(30)
    runs = [simulate(AFFINE, table, policy) for policy in ("fcfs", "mc_sf")]
    means = [compute_metrics(run)["e2e_latency_mean"] for run in runs]
    found = bound(table, AFFINE, runs=runs, reference=None)
    assert found.upper == pytest.approx(min(means))
    assert found.lower == pytest.approx(bound_calibrated(table, AFFINE).value)
    assert bound(table, AFFINE, runs=runs).upper <= min(means) * (1 + 1e-12)
    assert "reached: clairvoyant()" in bound(table, AFFINE).method
    starts = bound(table, AFFINE, runs=runs[1:], reference=None).schedule
    np.testing.assert_array_equal(starts, runs[1].requests["start_time"])


def test_throughputs_are_bounded_from_above():
    table = requests(30)
    found = bound(table, AFFINE, "token_throughput")
    span = bound(table, AFFINE, "makespan")
    assert found.lower <= found.upper
    assert found.upper == pytest.approx(table.output_len.sum() / span.lower)


def test_runs_of_other_systems_are_rejected():
    table = requests()
    alike = System(60, AffineBatchTime(1.0, 0.01, 0.02, 0.001), requeue="back")
    assert bound(table, AFFINE, runs=[simulate(alike, table, "fcfs")], reference=None).upper < np.inf
    for other in (System(61, AFFINE.batch_time), System(60, AffineBatchTime(0.5)), AFFINE.replicate(2)):
        with pytest.raises(ConfigError, match=r"a run of fcfs\(\) is of another system"):
            bound(table, AFFINE, runs=[simulate(other, table, "fcfs")], reference=None)


@batch_time_kernel
def _falling(load, params):
    return 1.0 / (load.prefill_tokens + load.num_decodes + 1)


class Falling(BatchTimeModel):
    """Breaks the contract: larger batches are faster."""

    kernel = _falling

    def params(self):
        return np.zeros(1)


def test_a_run_that_beats_the_bound_raises():
    with pytest.raises(
        ConfigError, match=r"beyond the bound on every scheduler .* check the batch-time model"
    ):
        bound(requests(30).replace(arrival_time=np.zeros(30)), System(400, Falling()))


def test_runs_of_other_requests_are_rejected():
    run = simulate(AFFINE, requests(seed=1), "fcfs")
    with pytest.raises(ConfigError, match=r"a run of fcfs\(\) is of other requests"):
        bound(requests(), AFFINE, runs=[run])
