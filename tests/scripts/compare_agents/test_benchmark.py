"""Benchmarks: all contestants run on the same requests, also with true lengths; a failure stops only its own run."""

from dataclasses import replace

import numpy as np
import pytest
from compare_agents import benchmark as module
from compare_agents.benchmark import Benchmark, same_requests
from compare_agents.contestants import Given, Tuned
from compare_agents.contests import Seeds

from helpers.comparing_runs import save_agent, small
from kvgym.errors import KVGymError
from kvgym.metrics import compute_metrics
from kvgym.policy import Decision, Policy, PolicyInfo, make_policy
from kvgym.runner import simulate

LATENCY = "e2e_latency_mean"


class Idle(Policy):
    """Admits no request."""

    info = PolicyInfo(name="idle", summary="does nothing")

    def schedule(self, view):
        return Decision()


@pytest.mark.parametrize("kind", ["noisy", "interval", "none"])
def test_true_lengths_are_of_the_same_requests(kind):
    benchmark = Seeds(2, 1).benchmark(small(kind), LATENCY)
    for mine, exact in zip(benchmark.tables(), benchmark.with_true_lengths(), strict=True):
        assert same_requests(mine, exact)
        assert (exact.predicted_output_len == exact.output_len).all()
        assert (mine.predicted_output_len is None) == (kind != "noisy")
        if kind == "noisy":
            assert (mine.predicted_output_len != mine.output_len).any()
    first, second = benchmark.tables()
    assert not same_requests(first, second)
    moved = first.replace(arrival_time=first.arrival_time + 1e-9)
    assert not same_requests(first, moved)


def test_requests_that_change_with_predictions_are_an_error(monkeypatch):
    benchmark = Seeds(1, 1).benchmark(small(), LATENCY)
    monkeypatch.setattr(module, "same_requests", lambda first, second: False)
    with pytest.raises(KVGymError, match="the requests change with the predictions"):
        benchmark.with_true_lengths()
    assert "the requests change" in Given("agent", "a", "ranked", true_lengths=True).play(benchmark).error


def test_an_agent_with_true_lengths_plays_its_own_weights(tmp_path):
    spec = save_agent(tmp_path / "mine.json", waiting=2.0, attained=0.9)
    benchmark = Seeds(2, 1).benchmark(small("interval", rate=80.0), LATENCY)
    exact = small("exact", rate=80.0)
    policy, system = make_policy("ranked", waiting=2.0, attained=0.9), exact.make_system()
    expected = [
        compute_metrics(simulate(system, exact.make_workload().sample(s), policy, seed=s))[LATENCY]
        for s in benchmark.seeds
    ]
    found = Given("true lengths", "mine, exact", spec, agent=True, true_lengths=True).play(benchmark)
    np.testing.assert_allclose(found.values, expected, rtol=1e-9)
    assert Given("agent", "mine", spec, agent=True).play(benchmark).values != found.values


def test_a_policy_without_progress_fails_alone():
    benchmark = Seeds(3, 1).benchmark(small(system={"stall_limit": 50}), LATENCY)
    found = benchmark.run(Idle(), "idle")
    assert found.values == ()
    assert found.error.startswith("seed 2,000,000: policy 'idle'")
    assert len(benchmark.run(make_policy("fcfs"), "fcfs").values) == 3


def test_requests_left_at_the_horizon_are_an_error():
    benchmark = Seeds(1, 1).benchmark(small(system={"horizon": 1.0}), LATENCY)
    assert "left at the horizon" in benchmark.run(make_policy("fcfs"), "fcfs").error


def test_a_tuning_that_fails_is_an_outcome():
    benchmark = Seeds(1, 1).benchmark(small("none"), LATENCY)
    found = Tuned("scheduler", "mc_sf", "mc_sf", {"protection": (0.0, 0.1)}).play(benchmark)
    assert found.values == ()
    assert "predicted" in found.error


def test_tuning_uses_the_tuning_seeds_only():
    benchmark = Benchmark(small(rate=80.0), LATENCY, (2_000_000,), (1000, 1001))
    found = Tuned("scheduler", "sarathi", "sarathi", {"token_budget": (64, 1024)}).play(benchmark)

    def cost(budget):
        policy = make_policy("sarathi", token_budget=budget)
        return np.mean(
            [replace(benchmark, seeds=(seed,)).run(policy, "").values for seed in benchmark.tuning_seeds]
        )

    best = min((64, 512, 1024), key=cost)  # 512 is the default, which is tried too
    assert make_policy(found.spec).hyperparameters().get("token_budget", 512) == best
    assert len(found.values) == 1


def test_a_replay_has_a_value_per_block_of_requests(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{0.3 * k},{20 + k},{10 + k % 7}" for k in range(90)]
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *lines]) + "\n")
    scenario = small("none")
    workload = {
        "name": "t",
        "lengths": {"kind": "trace", "path": str(trace)},
        "predictions": {"kind": "none"},
    }
    benchmark = Seeds(30, 1).benchmark(scenario.override(workload=workload), LATENCY)
    assert benchmark.seeds == (2_000_000,)
    found = benchmark.run(make_policy("fcfs"), "fcfs")
    result = simulate(benchmark.scenario.make_system(), benchmark.tables()[0], "fcfs")
    latency = result.requests["finish_time"] - result.table.arrival_time
    assert len(found.values) == 40
    assert found.values[0] == pytest.approx(latency[:3].mean())
    assert found.values[-1] == pytest.approx(latency[-2:].mean())
