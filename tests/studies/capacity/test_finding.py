"""Capacities: by bisection per seed, on paired seeds, with equal bits in any process."""

import json
import math

import polars as pl
import pytest

from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.metrics.catalogue import metric_names
from kvgym.studies.capacity.finding import find_capacity

SLOTTED = Scenario(
    name="slotted",
    summary="",
    batch_time={"kind": "affine", "constant": 0.1},
    kv_capacity=400,
    workload={
        "arrivals": {"kind": "deterministic", "rate": 3.0},
        "num_requests": 60,
        "lengths": {
            "kind": "independent",
            "prompt": {"kind": "constant", "value": 10},
            "output": {"kind": "constant", "value": 10},
        },
    },
)
"""Equal requests at fixed distances, batches of 0.1 s: a request is served in 1 s."""
TARGETS = "ttft_p99<1,tbt_p99<0.2"
LMSYS = load_scenario("a100-llama2-70b").override(workload={"preset": "lmsys", "num_requests": 120})


def find(scenario, targets, policies=None, **given):
    return find_capacity(scenario, targets, policies, **{"num_requests": 120, **given})


def outcome(result):
    """The parts of a result that must not depend on the processes."""
    return (
        [(c.label, c.held, c.failed, c.limits, c.notes, str(c.values)) for c in result.capacities],
        [{k: str(v) for k, v in probe.row().items() if k != "wall_time"} for probe in result.probes],
    )


def test_the_rate_of_a_worker_with_slots_is_known():
    """Two requests at a time, a second each: at most 2 per second; more of them pile up."""
    result = find(SLOTTED, (), ["request_level:batch=2"], seeds=1, num_requests=2000, curve=())
    (capacity,) = result.capacities
    # The rule lets 1 % pile up, and what chance may add: 2·√(N + 1) of 1,000.
    assert 1.96 < capacity.held[0] < 2.05
    assert capacity.failed[0] <= capacity.held[0] * 1.02
    assert capacity.limits == (("backlog", 1),)
    rates = [probe.rate for probe in result.probes]
    assert rates == sorted(rates)
    assert 3.0 in rates
    assert 1.5 in rates


def test_latency_of_a_lone_request_limits_nothing_or_everything():
    never = find(SLOTTED, "e2e_latency_mean<0.9", ["fcfs"], seeds=1)
    (capacity,) = never.capacities
    assert capacity.held == (0.0,)
    assert "fails at every rate" in capacity.notes[0]
    assert math.isnan(capacity.values["e2e_latency_mean"])
    easy = find(SLOTTED, "e2e_latency_mean<1.1", ["fcfs"], seeds=1)
    assert easy.capacities[0].held[0] > 3
    assert easy.capacities[0].values["e2e_latency_mean"] < 1.1


def test_several_policies_and_seeds():
    result = find(LMSYS, TARGETS, ["fcfs", "mc_sf"], seeds=[4, 7], curve=(0.5, 1.5))
    assert result.seeds == (4, 7)
    assert [c.label for c in result.capacities] == ["fcfs", "mc_sf"]
    for c in result.capacities:
        assert c.estimate.low <= c.estimate.value <= c.estimate.high
        assert c.estimate.value == pytest.approx(sum(c.held) / 2)
        assert c.on_every_seed == min(c.held)
        assert all(low < high <= low * 1.02 for low, high in zip(c.held, c.failed, strict=True))
        assert c.values["ttft_p99"] < 1
        assert sum(count for _, count in c.limits) >= 2
    own = [p for p in result.probes if p.label == "fcfs" and p.seed == 4]
    assert all(p.verdict.held for p in own if p.rate <= result.capacities[0].held[0])
    rates = [{p.rate for p in result.probes if p.label == "fcfs" and p.seed == seed} for seed in (4, 7)]
    assert len(rates[0] & rates[1]) >= 3  # the first rate, and the two of the curve


def test_processes_give_equal_bits():
    here, there = (
        find(LMSYS, TARGETS, ["fcfs", "alpha_beta"], seeds=2, curve=(0.8, 1.2), jobs=jobs) for jobs in (1, 2)
    )
    assert outcome(here) == outcome(there)


def test_runs_are_long_enough_by_default():
    result = find_capacity(SLOTTED, (), ["fcfs"], seeds=1, curve=(), tolerance=1.0)
    assert result.num_requests == (2000,)


def test_files(tmp_path):
    result = find(LMSYS, TARGETS, ["fcfs"], seeds=1, curve=(0.8,))
    folder = result.save(tmp_path / "out", command="kvgym capacity")
    probes = pl.read_parquet(folder / "probes.parquet")
    assert len(probes) == len(result.probes) == len(pl.read_csv(folder / "probes.csv"))
    assert set(metric_names()) <= set(probes.columns)
    assert probes.filter(~pl.col("held"))["reasons"].str.len_chars().min() > 0
    summary = json.loads((folder / "capacity.json").read_text())
    assert summary["targets"] == ["ttft_p99<1", "tbt_p99<0.2"]
    assert summary["capacities"][0]["rate"]["value"] == result.capacities[0].estimate.value
    assert summary["capacities"][0]["rate"]["low"] is None
    config = json.loads((folder / "config.json").read_text())
    assert config["command"] == "kvgym capacity"
    assert config["scenario"]["workload"]["num_requests"] == 120


def test_clusters_by_number_of_workers_and_router():
    result = find(
        LMSYS,
        TARGETS,
        ["fcfs"],
        routers=["round_robin", "join_shortest_queue"],
        workers=[1, 2],
        seeds=1,
        curve=(),
    )
    assert [c.label for c in result.capacities] == [
        "fcfs ×1", "fcfs via round_robin ×2", "fcfs via join_shortest_queue ×2",
    ]  # fmt: skip
    one, *two = result.capacities
    assert result.efficiency(one) == 1
    for c in two:
        assert result.efficiency(c) == pytest.approx(c.estimate.value / 2 / one.estimate.value)
        assert 0.5 < result.efficiency(c) < 2
    sizes = {(p.workers, p.played.num_requests) for p in result.probes}
    assert sizes == {(1, 120), (2, 240)}


def test_goodput_counts_requests_within_their_own_slos():
    result = find(LMSYS, "goodput>=0.9", ["fcfs"], seeds=1, curve=(), request_slos={"ttft": 1.0, "tbt": 0.5})
    (capacity,) = result.capacities
    assert capacity.held[0] > 0
    assert capacity.values["slo_attainment"] >= 0.9
    with pytest.raises(ConfigError, match="their own SLOs, and these have none"):
        find(LMSYS, "goodput>=0.9", ["fcfs"])


def test_all_policies_that_can_run():
    result = find(SLOTTED, (), ["fcfs:protection=0.1", "all"], seeds=1, curve=(), tolerance=0.5)
    labels = [c.label for c in result.capacities]
    assert labels[0] == "fcfs:protection=0.1"
    assert "mc_sf" in labels
    assert "fcfs" not in labels
    assert "wait" not in labels
    assert any(note.startswith("wait is excluded: policy 'wait' needs class") for note in result.notes)


def test_a_livelocking_policy_has_no_capacity_and_a_reason():
    result = find(
        LMSYS, TARGETS, ["alpha_greedy:alpha=0.99,strict=True", "fcfs"], seeds=1, curve=(), tolerance=0.5
    )
    stuck, fine = result.capacities
    assert stuck.estimate.value == 0
    assert len(stuck.limits[0][0]) > len("unfinished")
    assert fine.estimate.value > 0


def test_a_trace_is_compressed_until_it_fails(azure_trace):
    source = {"name": "t", "lengths": {"kind": "trace", "path": str(azure_trace)}}
    scenario = load_scenario("a100-llama3-8b").override(workload=source)
    result = find_capacity(scenario, "tbt_p99<0.1", ["vllm_v1"], curve=(0.5,))
    assert result.replays
    assert result.seeds == (0,)
    assert result.num_requests == (200,)
    assert result.capacities[0].estimate.value > 0


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"policies": []}, ConfigError, "no policies"),
        ({"policies": ["fcfs", "fcfs"]}, ConfigError, "listed twice"),
        ({"policies": ["wait"]}, ConfigError, "needs class"),
        ({"policies": ["fcfss"]}, UnknownNameError, "fcfs"),
        ({"seeds": []}, ConfigError, "at least one"),
        ({"seeds": [1, 1]}, ConfigError, "expected different"),
        ({"seeds": [-1]}, ConfigError, "≥ 0"),
        ({"workers": [0]}, ConfigError, "workers 0"),
        ({"workers": [2, 2]}, ConfigError, "given twice"),
        ({"workers": []}, ConfigError, "no numbers of workers"),
        ({"routers": ["round_robin"]}, ConfigError, "routers need a cluster"),
        ({"tolerance": 0.0}, ConfigError, "tolerance"),
        ({"curve": (0.0,)}, ConfigError, "curve"),
        ({"num_requests": 10}, ConfigError, "too few"),
        ({"targets": "speed<1"}, UnknownNameError, "metric"),
    ],
)
def test_errors_are_raised_before_anything_runs(changes, error, says):
    arguments = {"targets": TARGETS, "policies": ["fcfs"], **changes}
    with pytest.raises(error, match=says):
        find(LMSYS, **arguments)


def test_a_policy_that_has_rules_for_low_rates_only_is_searched_there():
    scenario = load_scenario("wait-low").override(workload={"preset": "wait-low", "num_requests": 200})
    result = find_capacity(scenario, (), ["all"], seeds=1, num_requests=200, curve=(), tolerance=0.5)
    assert {"wait", "nested_wait"} <= {c.label for c in result.capacities}
