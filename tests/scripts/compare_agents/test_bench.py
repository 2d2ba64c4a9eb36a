"""The bench: the same requests for everybody, also with true lengths; what fails says so and stops nobody."""

from dataclasses import replace

import numpy as np
import pytest
from compare_agents import bench as module
from compare_agents.bench import Bench, same_requests
from compare_agents.cells import Seeds
from compare_agents.entrants import Given, Tuned

from helpers.comparing_runs import save_agent, small
from kvgym.errors import KVGymError
from kvgym.metrics import compute_metrics
from kvgym.policy import Decision, Policy, PolicyInfo, make_policy
from kvgym.runner import simulate

LATENCY = "e2e_latency_mean"


class Idle(Policy):
    """Admits nobody, for ever."""

    info = PolicyInfo(name="idle", summary="does nothing")

    def schedule(self, view):
        return Decision()


@pytest.mark.parametrize("kind", ["noisy", "interval", "none"])
def test_true_lengths_are_of_the_same_requests(kind):
    bench = Seeds(2, 1).bench(small(kind), LATENCY)
    for mine, exact in zip(bench.tables(), bench.with_true_lengths(), strict=True):
        assert same_requests(mine, exact)
        assert (exact.predicted_output_len == exact.output_len).all()
        assert (mine.predicted_output_len is None) == (kind != "noisy")
        if kind == "noisy":
            assert (mine.predicted_output_len != mine.output_len).any()
    first, second = bench.tables()
    assert not same_requests(first, second)
    moved = first.replace(arrival_time=first.arrival_time + 1e-9)
    assert not same_requests(first, moved)


def test_other_requests_are_not_passed_off_as_the_same(monkeypatch):
    bench = Seeds(1, 1).bench(small(), LATENCY)
    monkeypatch.setattr(module, "same_requests", lambda first, second: False)
    with pytest.raises(KVGymError, match="the requests change with the predictions"):
        bench.with_true_lengths()
    assert "the requests change" in Given("agent", "a", "ranked", true_lengths=True).play(bench).error


def test_an_agent_with_true_lengths_plays_its_own_weights(tmp_path):
    spec = save_agent(tmp_path / "mine.json", waiting=2.0, attained=0.9)
    bench = Seeds(2, 1).bench(small("interval", rate=80.0), LATENCY)
    exact = small("exact", rate=80.0)
    policy, system = make_policy("ranked", waiting=2.0, attained=0.9), exact.make_system()
    expected = [
        compute_metrics(simulate(system, exact.make_workload().sample(s), policy, seed=s))[LATENCY]
        for s in bench.seeds
    ]
    found = Given("true lengths", "mine, exact", spec, agent=True, true_lengths=True).play(bench)
    np.testing.assert_allclose(found.values, expected, rtol=1e-9)
    assert Given("agent", "mine", spec, agent=True).play(bench).values != found.values


def test_whoever_makes_no_progress_is_told_and_the_rest_goes_on():
    bench = Seeds(3, 1).bench(small(system={"stall_limit": 50}), LATENCY)
    found = bench.run(Idle(), "idle")
    assert found.values == ()
    assert found.error.startswith("seed 2,000,000: policy 'idle'")
    assert len(bench.run(make_policy("fcfs"), "fcfs").values) == 3


def test_requests_that_are_left_are_no_latency():
    bench = Seeds(1, 1).bench(small(system={"horizon": 1.0}), LATENCY)
    assert "left at the horizon" in bench.run(make_policy("fcfs"), "fcfs").error


def test_a_tuning_that_fails_is_an_outcome():
    bench = Seeds(1, 1).bench(small("none"), LATENCY)
    found = Tuned("scheduler", "mc_sf", "mc_sf", {"protection": (0.0, 0.1)}).play(bench)
    assert found.values == ()
    assert "predicted" in found.error


def test_tuning_uses_the_tuning_seeds_only():
    bench = Bench(small(rate=80.0), LATENCY, (2_000_000,), (1000, 1001))
    found = Tuned("scheduler", "sarathi", "sarathi", {"token_budget": (64, 1024)}).play(bench)

    def cost(budget):
        policy = make_policy("sarathi", token_budget=budget)
        return np.mean([replace(bench, seeds=(seed,)).run(policy, "").values for seed in bench.tuning_seeds])

    best = min((64, 512, 1024), key=cost)  # 512 is the default, which is tried too
    assert make_policy(found.spec).hyperparameters().get("token_budget", 512) == best
    assert len(found.values) == 1


def test_a_replay_has_blocks_of_requests_for_seeds(tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{0.3 * k},{20 + k},{10 + k % 7}" for k in range(90)]
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *lines]) + "\n")
    scenario = small("none")
    workload = {
        "name": "t",
        "lengths": {"kind": "trace", "path": str(trace)},
        "predictions": {"kind": "none"},
    }
    bench = Seeds(30, 1).bench(scenario.override(workload=workload), LATENCY)
    assert bench.seeds == (2_000_000,)
    found = bench.run(make_policy("fcfs"), "fcfs")
    result = simulate(bench.scenario.make_system(), bench.tables()[0], "fcfs")
    latency = result.requests["finish_time"] - result.table.arrival_time
    assert len(found.values) == 40
    assert found.values[0] == pytest.approx(latency[:3].mean())
    assert found.values[-1] == pytest.approx(latency[-2:].mean())
