"""The clock stays finite and resolves every batch; otherwise an error names the clock and the duration."""

import math

import gymnasium as gym
import numpy as np
import pytest

import kvgym.envs  # noqa: F401
from kvgym import RequestTable, System, make_batch_time, simulate
from kvgym.errors import ConfigError, RunError
from kvgym.simulator.batch_time import BatchTimeModel, batch_time_kernel
from kvgym.simulator.decision import Decision
from kvgym.simulator.simulation import Simulation

UNIT = make_batch_time({"kind": "unit"})


@batch_time_kernel
def constant_seconds(load, params):
    return params[0]


class Constant(BatchTimeModel):
    """The same duration for every batch, valid or not."""

    kernel = constant_seconds

    def __init__(self, seconds):
        self.seconds = seconds

    def params(self):
        return np.array([self.seconds])


def table(n=6, arrival=0.0, prompt=2, output=8):
    return RequestTable([arrival] * n, [prompt] * n, [output] * n)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (
            1e308,
            r"the batch-time model, with swaps, gives a batch 1e+308 s; expected 0 … 1e12 .*prefill_tokens = \d",
        ),
        (math.inf, "the batch-time model, with swaps, gives a batch inf s"),
        (math.nan, "the batch-time model, with swaps, gives a batch nan s"),
        (-1.0, "the batch-time model, with swaps, gives a batch -1 s"),
    ],
)
def test_durations_of_a_custom_model(seconds, message, workers, compiled):
    system = System(12, Constant(seconds))
    system = system if workers == 1 else system.replicate(workers)
    with pytest.raises(RunError, match=message.replace("+", r"\+")) as caught:
        simulate(system, table(), "fcfs", compiled=compiled)
    assert not caught.value.result.completed


@pytest.mark.parametrize("compiled", [True, False])
def test_a_batch_that_the_clock_cannot_resolve_is_an_error(compiled):
    late, system = table(arrival=1e15), System(12, Constant(1e-3))
    with pytest.raises(RunError, match=r"the clock at 1e\+15 s cannot resolve a batch of 0.001 s"):
        simulate(system, late, "fcfs", compiled=compiled)


@pytest.mark.parametrize(("seconds", "fine"), [(0.125, True), (0.1255, True), (0.127, False), (0.2, False)])
def test_at_most_a_hundredth_of_a_batch_may_be_lost_to_rounding(seconds, fine):
    """The clock at 1e15 s counts in eighths of a second."""
    system, late = System(12, Constant(seconds)), table(n=1, arrival=1e15, output=1)
    if fine:
        assert simulate(system, late, "fcfs").requests["finish_time"][0] == 1e15 + 0.125
    else:
        with pytest.raises(RunError, match="cannot resolve"):
            simulate(system, late, "fcfs")


def test_batches_of_zero_duration_are_valid_at_any_time():
    result = simulate(System(12, Constant(0.0)), table(arrival=1e15), "fcfs")
    assert result.completed
    assert (result.requests["finish_time"] == 1e15).all()


def test_waiting_up_to_a_huge_horizon_ends_the_run():
    for too_far in (1.0000001e15, 1.7e308):
        with pytest.raises(ConfigError, match=r"horizon = .*; expected seconds > 0, at most 1e15, or inf"):
            System(12, UNIT, horizon=too_far)
        with pytest.raises(ConfigError, match="horizon"):
            gym.make("kvgym/AdmitCount-v0", horizon=too_far)
    simulation = Simulation(System(12, UNIT, horizon=1e15), table())
    assert simulation.start()
    assert not simulation.step(Decision(wait_until=math.inf))
    assert simulation.worker["clock"] == 1e15


@pytest.mark.parametrize("name", ["swap_time", "transfer_latency", "transfer_time"])
@pytest.mark.parametrize("value", [1.0000001e6, 1e307, math.inf, math.nan, -1.0])
def test_times_of_swaps_and_transfers_are_bounded(name, value):
    with pytest.raises(ConfigError, match=f"{name} = .*; expected seconds, 0 … 1e6"):
        System(12, UNIT, **{name: value})
    System(12, UNIT, **{name: 1e6})


@pytest.mark.parametrize("vector", [False, True])
def test_environments_name_the_duration(vector, monkeypatch):
    monkeypatch.setattr("kvgym.envs.scheduling.config.EnvConfig.make_system", _slow_system)
    arguments = {"num_requests": 5}
    if vector:
        env = gym.make_vec("kvgym/AdmitCount-v0", 2, vectorization_mode="vector_entry_point", **arguments)
    else:
        env = gym.make("kvgym/AdmitCount-v0", **arguments)
    env.reset(seed=0)
    action = np.array([1, 1]) if vector else 1
    with pytest.raises(
        RunError,
        match=r"environment [01], iteration 0: the batch-time model, with swaps, gives a batch 1e.13 s",
    ):
        env.step(action)


def _slow_system(self, scenario, workload, episode_requests):
    return System(200_000, Constant(1e13), horizon=1e15, stall_limit=1000)
