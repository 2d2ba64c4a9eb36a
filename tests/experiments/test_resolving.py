"""Hyperparameters that a system decides: values, labels, clusters."""

import pytest

from kvgym.batch_time import load_hardware
from kvgym.experiments.changes import build_scenario
from kvgym.experiments.comparison import compare, label_of
from kvgym.experiments.resolving import requests_for, resolve_policy
from kvgym.experiments.scenario import load_scenario
from kvgym.policies.policy import make_policy
from kvgym.simulator.system import System, Worker
from kvgym.utils.hyperparameters import all_hyperparameters
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import make_workload

TABLE = RequestTable([0], [5], [5])


def system_on(*gpus: str) -> System:
    models = [load_hardware(f"roofline:model=llama3-8b,gpu={gpu}").batch_time() for gpu in gpus]
    if len(models) == 1:
        return System(kv_capacity=1000, batch_time=models[0])
    return System.cluster(Worker(1000, model) for model in models)


@pytest.mark.parametrize(
    ("spec", "gpus", "label", "budget"),
    [
        ("vllm_v1", ["h100"], "vllm_v1:max_num_batched_tokens=8192,max_num_seqs=1024", 8192),
        ("vllm_v1", ["a100-80gb"], "vllm_v1", 2048),
        ("vllm_v1:watermark=0.1", ["l4", "l4"], "vllm_v1:watermark=0.1", 2048),
        ("vllm_v1:max_num_seqs=64", ["b200"], "vllm_v1:max_num_seqs=64,max_num_batched_tokens=16384", 16384),
        ("vllm_v1:max_num_batched_tokens=512", ["h100"],
         "vllm_v1:max_num_batched_tokens=512,max_num_seqs=512", 512),
        ("vllm_v1", ["h100", "h100"], "vllm_v1:max_num_batched_tokens=8192,max_num_seqs=1024", 8192),
        ("vllm_v1", ["h100", "l4"], "vllm_v1", "auto"),
        ("vllm_v1:policy=priority", ["l4"], "vllm_v1:policy=priority,engine_version=0.33", 2048),
        ("vllm_v1:long_prefill_token_threshold=9,engine_version=0.24", ["l4"],
         "vllm_v1:long_prefill_token_threshold=9,engine_version=0.24", 2048),
    ],
)  # fmt: skip
def test_labels_name_values_that_are_not_the_usual_ones(
    spec: str, gpus: list[str], label: str, budget: int | str
) -> None:
    made = resolve_policy(make_policy(spec), system_on(*gpus), TABLE)
    assert label_of(made) == label
    assert all_hyperparameters(made)["max_num_batched_tokens"] == budget


def test_policies_without_such_hyperparameters_are_returned_unchanged() -> None:
    policy = make_policy("sarathi")
    assert resolve_policy(policy, system_on("h100"), TABLE) is policy


def test_a_comparison_names_the_values_and_repeats_by_its_labels() -> None:
    chosen = load_scenario("vllm-v1").override(
        hardware={"model": "llama3-8b", "gpu": "h100"},
        workload={"preset": "stab-1-1", "num_requests": 20, "rate": 20},
    )
    first = compare(chosen, ["vllm_v1"], seeds=1)
    (label,) = first.policies
    assert label == "vllm_v1:max_num_batched_tokens=8192,max_num_seqs=1024"
    assert first.hyperparameters[label]["max_num_batched_tokens"] == 8192
    again = compare(chosen, [label], seeds=1)
    assert again.policies == first.policies
    latency = [found.values(label, "e2e_latency_mean")[0] for found in (first, again)]
    assert latency[0] == latency[1]
    small = compare(chosen, ["vllm_v1:max_num_batched_tokens=64"], seeds=1)
    assert small.runs[0].metrics["e2e_latency_mean"] != latency[0]


@pytest.mark.parametrize("only_needed", [False, True])
def test_predictions_only_for_policies_that_need_them(only_needed):
    workload = make_workload(
        {"preset": "lmsys", "num_requests": 30, "rate": 2.0,
         "predictions": {"kind": "interval", "epsilon": 0.5, "point": "middle", "only_needed": only_needed}}
    )  # fmt: skip
    table = workload.sample(0)
    for name in ("mc_sf", "a_min", "fcfs"):  # need a length, need an interval, know neither
        assert requests_for(make_policy(name), table, workload) is table
    without = requests_for(make_policy("ranked"), table, workload)  # uses both where they exist
    assert (without is table) != only_needed
    assert (without.predicted_output_len is None) == (without.predicted_low is None) == only_needed


def test_a_comparison_withholds_predictions_that_are_not_needed():
    changes = {"num_requests": 200, "rate": 30.0}
    offered = compare(build_scenario("rush", **changes), ["ranked", "mc_sf"], seeds=1)
    without = compare(build_scenario("rush", **changes, predictions="none"), ["ranked"], seeds=1)
    shown = compare(build_scenario("rush", **changes, predictions="rank:tau=0.56"), ["ranked"], seeds=1)

    def latency(comparison):
        return comparison.estimate("ranked", "e2e_latency_mean").value

    assert latency(offered) == latency(without) != latency(shown)
    assert ["§" in offered.signs(label) for label in offered.policies] == [False, True]
