"""The clairvoyant reference: its information, its results, and its exclusion from the best schedulers."""

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime, UnitBatchTime
from kvgym.experiments.changes import build_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES, PolicyInfo
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.studies.capacity.entries import find_policies
from kvgym.workloads.table import RequestTable

UNIT = System(60, UnitBatchTime())
AFFINE = System(300, AffineBatchTime(0.05, 1e-3, 1e-3, 1e-4))


def requests(n=60, seed=0, **columns):
    rng = np.random.default_rng(seed)
    return RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(0.5, n)),
        prompt_len=rng.integers(1, 20, n),
        output_len=rng.integers(1, 30, n),
        **columns,
    )


def mean(system, table, policy):
    return compute_metrics(simulate(system, table, policy))["e2e_latency_mean"]


def exactly(table):
    return table.replace(predicted_output_len=table.output_len)


def test_only_policies_that_need_true_lengths_are_clairvoyant():
    assert {name for name in POLICIES if POLICIES[name].info.clairvoyant} == {"clairvoyant"}
    assert PolicyInfo("a", "b", uses=frozenset({"true_length"})).clairvoyant


@pytest.mark.parametrize("system", [UNIT, AFFINE])
def test_predictions_do_not_matter(system):
    table = requests()
    wrong = table.replace(predicted_output_len=31 - table.output_len)
    assert mean(system, table, "clairvoyant") == mean(system, wrong, "clairvoyant")


def test_it_is_at_least_as_good_as_schedulers_with_exact_predictions():
    for seed in range(3):
        table = exactly(requests(seed=seed))
        for system, rivals in ((UNIT, ("mc_sf", "ranked", "fcfs")), (AFFINE, ("mc_sf", "fcfs", "vllm_v1"))):
            best = min(mean(system, table, rival) for rival in rivals)
            assert mean(system, table, "clairvoyant") < 1.02 * best


def test_its_look_ahead_never_evicts():
    for seed in range(5):
        result = simulate(UNIT, requests(seed=seed), "clairvoyant:passed=3")
        assert result.completed
        assert result.worker["total_evicted"].sum() == 0
        assert result.worker["peak_kv_tokens"].max() <= 60


def test_batch_times_choose_the_rule():
    table = requests().faster(20.0)
    assert mean(UNIT, table, "clairvoyant") == mean(UNIT, table, "clairvoyant:rule=look_ahead")
    assert mean(AFFINE, table, "clairvoyant") == mean(AFFINE, table, "clairvoyant:rule=ranked")
    assert mean(AFFINE, table, "clairvoyant:ranking=ranked_chat") != mean(AFFINE, table, "clairvoyant")
    assert mean(AFFINE, table, "clairvoyant") != mean(AFFINE, table, "clairvoyant:rule=look_ahead")


def test_workers_of_both_kinds():
    from kvgym.simulator.system import Worker

    mixed = System.cluster([Worker(300, AFFINE.batch_time), Worker(60, UnitBatchTime())])
    assert simulate(mixed, requests(), "clairvoyant").completed


def test_all_schedulers_are_without_it():
    scenario = build_scenario("a100-llama2-70b", num_requests=20)
    made, notes = find_policies(["all"], scenario, seed=0)
    assert "clairvoyant" not in {policy.info.name for policy in made}
    assert any("clairvoyant is excluded" in note for note in notes)
    made, _ = find_policies(["clairvoyant"], scenario, seed=0)
    assert [policy.info.name for policy in made] == ["clairvoyant"]
