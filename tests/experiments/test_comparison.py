"""Comparisons: equal workloads for all policies, failures that affect no other run, files."""

import json

import numpy as np
import polars as pl
import pytest

from kvgym import compare
from kvgym.errors import ConfigError
from kvgym.experiments.comparison import Comparison
from kvgym.experiments.runs import RunRecord
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.catalogue import metric_names
from kvgym.policies.routing import make_router

SMALL = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 80}, seeds=3)


@pytest.fixture(scope="module")
def comparison():
    return compare(SMALL, ["mc_sf", "fcfs", "alpha_beta:alpha=0.2,beta=0.3"], keep_examples=True)


def test_every_policy_sees_the_same_requests(comparison):
    assert comparison.policies == ("mc_sf", "fcfs", "alpha_beta:alpha=0.2,beta=0.3")
    assert len(comparison.runs) == 9
    assert all(r.completed_once for r in comparison.runs)
    tables = [result.table for result in comparison.examples.values()]
    assert all(np.array_equal(t.arrival_time, tables[0].arrival_time) for t in tables)
    # The lightly loaded first moments do not depend on the policy: equal token counts by completion.
    spans = [
        comparison.values(p, "token_throughput") * comparison.values(p, "makespan")
        for p in comparison.policies
    ]
    assert np.allclose(spans[0], spans[1])


def made_up(clairvoyant=(), **latencies):
    """A comparison with the mean latencies of each policy by seed, and the negative as goodput."""
    runs = [
        RunRecord(policy, seed, {"e2e_latency_mean": x, "goodput": 100 - x}, "", True, 0.0)
        for policy, values in latencies.items()
        for seed, x in enumerate(values)
    ]
    seeds = tuple(range(len(runs) // len(latencies)))
    return Comparison(SMALL, tuple(latencies), seeds, tuple(runs), (80,), clairvoyant=frozenset(clairvoyant))


def test_leaders_do_not_differ_significantly():
    """b differs from a in both directions; c is slightly above a on every seed."""
    base = np.array([10.0, 20, 30, 40, 50, 60])
    swing = np.array([1.0, -1, 1, -1, 1.2, -1])
    found = made_up(c=base + 0.1, a=base, b=base + swing, d=base - 5, clairvoyant={"d"})
    for metric in ("e2e_latency_mean", "goodput"):
        assert found.leaders(metric) == ("a", "b")
    assert made_up(a=base, c=base + 0.1).leaders("e2e_latency_mean") == ("a",)
    assert made_up(a=base, c=base).leaders("e2e_latency_mean") == ("a", "c")
    assert made_up(a=[3.0], b=[2.9], c=[2.9]).leaders("e2e_latency_mean") == ("b", "c")
    assert made_up(a=[np.nan, 1], b=[5.0, 6]).leaders("e2e_latency_mean") == ("b",)
    assert made_up(a=base, clairvoyant={"a"}).leaders("e2e_latency_mean") == ()
    assert made_up(a=[0.0, 0], b=[0.0, 3]).leaders("e2e_latency_mean") == ("a", "b")
    with pytest.raises(ConfigError, match="neither more nor less"):
        found.leaders("batch_size")


def test_runs_are_reproducible(comparison):
    again = compare(SMALL, ["fcfs"], seeds=[2])
    known = next(r.metrics for r in comparison.runs if r.policy == "fcfs" and r.seed == 2)
    np.testing.assert_equal(again.runs[0].metrics, known)


def test_ratios_are_paired(comparison):
    ratio = comparison.ratio("fcfs", "mc_sf", "e2e_latency_mean")
    values = [comparison.values(p, "e2e_latency_mean") for p in ("fcfs", "mc_sf")]
    assert ratio.value == values[0].mean() / values[1].mean()
    assert comparison.ratio("fcfs", "fcfs", "e2e_latency_mean").low == 1


def test_files(comparison, tmp_path):
    folder = comparison.save(tmp_path / "deep" / "results", command="kvgym compare")
    frame = pl.read_parquet(folder / "runs.parquet")
    assert frame.shape == (9, 4 + len(metric_names()))
    assert frame.select("policy", "seed").equals(pl.read_csv(folder / "runs.csv").select("policy", "seed"))
    config = json.loads((folder / "config.json").read_text())
    assert config["scenario"]["hardware"] == "llama2-70b-a100-tp2"
    assert config["policies"]["alpha_beta:alpha=0.2,beta=0.3"] == {"alpha": 0.2, "beta": 0.3, "strict": False}
    assert config["policies"]["mc_sf"]["protection"] == 0.0
    assert config["seeds"] == [0, 1, 2]
    assert config["command"] == "kvgym compare"
    assert {"kvgym", "python", "libraries", "workload"} <= set(config)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["policies"]["fcfs"]["e2e_latency_mean"]["n"] == 3


def test_a_failing_policy_does_not_affect_the_others():
    # Threshold 0.99 M with long outputs: clearing everything repeats for ever.
    scenario = load_scenario("mc-sf-model-2").override(workload="mcsf-model-1")
    with pytest.warns(
        RuntimeWarning, match=r"^1 of 2 runs failed, .* first is alpha_greedy:alpha=0.01, seed 0: policy"
    ):
        result = compare(scenario, ["alpha_greedy:alpha=0.01", "mc_sf"], seeds=1)
    assert "nothing new has been computed" in result.errors()["alpha_greedy:alpha=0.01"]
    assert result.reference("e2e_latency_mean") == "mc_sf"
    assert result.summary()["alpha_greedy:alpha=0.01"]["e2e_latency_mean"]["value"] is None
    assert result.runs[1].completed_once
    assert repr(result) == "Comparison of alpha_greedy:alpha=0.01, mc_sf: 2 runs, 1 failed, seeds 0"


def test_unknown_names(comparison):
    with pytest.raises(ConfigError, match=r"unknown policy of this comparison 'mcsf'. Did you mean 'mc_sf'"):
        comparison.improvement("mcsf", "fcfs", "e2e_latency_mean")
    with pytest.raises(ConfigError, match=r"unknown metric 'e2e_latency'. Did you mean 'e2e_latency_"):
        comparison.estimate("mc_sf", "e2e_latency")


def test_mistakes():
    for policies, seeds, message in (
        ([], 1, "no policies"),
        (["fcfs", "fcfs"], 1, "listed twice"),
        (["fcfs"], [], "seeds .*expected different whole numbers"),
        (["nope"], 1, "unknown policy"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(SMALL, policies, seeds=seeds)
    with pytest.raises(ConfigError, match="needs predicted_length"):
        compare(
            SMALL.override(workload={"preset": "lmsys", "num_requests": 3, "predictions": {"kind": "none"}}),
            ["mc_sf"],
        )


CLUSTER = SMALL.override(workers=3, seeds=2)


def test_routers_side_by_side():
    found = compare(CLUSTER, ["fcfs"], routers=["round_robin", "weighted:pace=2.0"], keep_examples=True)
    assert found.policies == ("round_robin", "weighted:pace=2.0")
    for router in found.policies:
        alone = compare(CLUSTER.override(router=router), ["fcfs"])
        assert (
            found.values(router, "e2e_latency_mean").tolist()
            == alone.values("fcfs", "e2e_latency_mean").tolist()
        )
        assert len(found.runs[0].workers) == 3
    described = found.hyperparameters["weighted:pace=2.0"]
    assert described["policy"] == {"name": "fcfs", "protection": 0.0}
    assert (described["router"]["name"], described["router"]["pace"]) == ("weighted", 2.0)
    assert found.hyperparameters["round_robin"]["router"] == {"name": "round_robin"}
    both = compare(
        CLUSTER, ["fcfs", "mc_sf"], routers=["round_robin", make_router("uniform_random")], seeds=1
    )
    assert both.policies == tuple(
        f"{policy} via {router}"
        for policy in ("fcfs", "mc_sf")
        for router in ("round_robin", "uniform_random")
    )
    assert (
        both.values("fcfs via round_robin", "e2e_latency_mean")[0]
        == found.values("round_robin", "e2e_latency_mean")[0]
    )


def test_mistakes_with_routers():
    for scenario, routers, message in (
        (SMALL, ["round_robin"], "a scenario with several workers"),
        (CLUSTER, [], "expected at least one router"),
        (CLUSTER, ["round_robin", "round_robin"], "router round_robin is listed twice"),
        (CLUSTER, ["dice"], "unknown router 'dice'"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(scenario, ["fcfs"], routers=routers)
