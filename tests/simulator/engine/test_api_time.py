"""The time of an engine's API: requests wait for it before the queue, and it holds no batch."""

from dataclasses import replace

import numpy as np
import pytest

from kvgym import simulate
from kvgym.batch_time import load_hardware
from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.metrics.compute import compute_metrics
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable


def with_api(seconds, model):
    model.api_time = seconds
    return model


def table(arrival=(0.0, 0.25, 5.0), **more):
    return RequestTable.from_columns(arrival_time=arrival, prompt_len=[3] * 3, output_len=[2] * 3, **more)


def test_by_hand():
    """The queue has them at 0.5, 0.75 and 5.5 s; two iterations of a second each."""
    result = simulate(System(20, with_api(0.5, UnitBatchTime())), table(), "fcfs")
    assert result.requests["start_time"].tolist() == [0.5, 1.5, 5.5]
    assert result.requests["first_token_time"].tolist() == [1.5, 2.5, 6.5]
    assert result.requests["finish_time"].tolist() == [2.5, 3.5, 7.5]
    assert result.table.arrival_time.tolist() == [0.0, 0.25, 5.0]
    assert compute_metrics(result)["ttft_mean"] == pytest.approx((1.5 + 2.25 + 1.5) / 3)


def test_the_next_turn_of_a_session_waits_for_it_too():
    """A turn ends at 2.5 s, the next one is sent 1 s later and reaches the queue at 4 s."""
    turns = table((0.0, 0.0, 9.0), session_id=[0, 0, 1], turn=[1, 2, 1], think_time=[0.0, 1.0, 0.0])
    system = System(20, with_api(0.5, UnitBatchTime()), sessions="closed")
    result = simulate(system, turns, "fcfs")
    assert result.table.arrival_time.tolist() == [0.0, 3.5, 9.0]
    assert result.requests["start_time"].tolist() == [0.5, 4.0, 9.5]


@pytest.mark.parametrize("workers", [1, 2])
def test_open_arrivals_are_late_by_it_alone(workers):
    rng = np.random.default_rng(workers)
    n = 60
    drawn = RequestTable.from_columns(
        arrival_time=np.sort(rng.integers(0, 160, n)) / 8,
        prompt_len=rng.integers(1, 9, n),
        output_len=rng.integers(1, 9, n),
    )
    late = replace(drawn, arrival_time=drawn.arrival_time + 0.5)

    def run(api, requests):
        models = [with_api(api, AffineBatchTime(0.25, 0.125)) for _ in range(workers)]
        router = {"router": "round_robin"} if workers > 1 else {}
        return simulate(System.cluster([Worker(20, model) for model in models]), requests, "fcfs", **router)

    one, other = run(0.5, drawn), run(0.0, late)
    for name in ("start_time", "first_token_time", "finish_time", "num_evictions"):
        np.testing.assert_array_equal(one.requests[name], other.requests[name])
    np.testing.assert_array_equal(one.requests["arrival_time"], drawn.arrival_time)


def test_a_request_that_is_late_for_the_horizon_never_starts():
    system = System(20, with_api(0.5, UnitBatchTime()), horizon=5.25)
    assert np.isnan(simulate(system, table(), "fcfs").requests["start_time"]).tolist() == [False, False, True]


def test_the_engine_of_the_hardware_sets_asynchronous_scheduling():
    """An explicit value wins, and calibrated files have engines that wait."""
    requests = RequestTable.from_columns(
        arrival_time=np.arange(40) / 50, prompt_len=[700] * 40, output_len=[30] * 40
    )

    def finished(hardware, policy):
        served = load_hardware(hardware)
        system = System(served.kv_capacity, served.batch_time())
        return simulate(system, requests, policy).requests["finish_time"].tolist()

    for hardware, usual in (("model=llama3-8b,gpu=h100", "true"), ("llama3-8b-a100-tp1", "false")):
        default, ahead, waiting = (
            finished(hardware, f"vllm_v1{options}")
            for options in ("", ":async_scheduling=true", ":async_scheduling=false")
        )
        assert default == (ahead if usual == "true" else waiting)
        assert ahead != waiting
