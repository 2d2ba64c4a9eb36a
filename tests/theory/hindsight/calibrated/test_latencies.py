"""Latencies of requests alone: no run is faster on any number of workers, and a run alone is hardly slower."""

import numpy as np
import pytest

from kvgym.batch_time import AffineBatchTime
from kvgym.experiments.scenario import load_scenario
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.floors import alone_is_least
from kvgym.theory.hindsight.calibrated.latencies import least_latencies
from kvgym.workloads.table import RequestTable

LATENCIES = [
    f"{family}_{s}" for family in ("ttft", "e2e_latency", "tbt") for s in ("mean", "p50", "p90", "p99", "max")
]


def test_by_hand():
    """A batch takes 1 s and 0.1 s for each prompt token; a decode 1 s and 0.01 s for each cached token."""
    model = AffineBatchTime(constant=1.0, per_prefill_token=0.1, per_context_token=0.01, include_new=False)
    table = RequestTable([0.0, 5.0], [10, 20], [3, 1], ttft_slo=[2.5, 2.5], tbt_slo=[1.1, 1.1])
    least = least_latencies(table, System(kv_capacity=100, batch_time=model))
    assert least.ttft == pytest.approx([2.0, 3.0])
    assert least.e2e == pytest.approx([2.0 + 1.11 + 1.12, 3.0])
    assert least.best("tbt_mean", table) == pytest.approx(1.115)
    assert least.best("tbt_max", table) == pytest.approx(1.12, rel=0.003)
    assert least.best("makespan", table) == pytest.approx(8.0)
    assert least.best("request_throughput", table) == pytest.approx(2 / 8)
    assert least.best("token_throughput", table) == pytest.approx(4 / 8)
    assert least.best("slo_attainment", table) == 0.0
    assert least.best("slo_attainment", table.replace(tbt_slo=np.array([1.12, 1.12]))) == 0.5
    assert least.best("ttft_std", table) is None
    assert least.best("queueing_delay_p99", table) is None


@pytest.mark.parametrize("scenario", ["a100-llama3-8b", "a100-llama2-70b", "mc-sf-low"])
@pytest.mark.parametrize("workers", [1, 3])
def test_no_run_is_faster(scenario, workers):
    chosen = load_scenario(scenario)
    system = chosen.make_system()
    table = chosen.make_workload().sample(1).select(slice(0, 60), "")
    least = least_latencies(table, system)
    spread = table.replace(arrival_time=np.arange(60) * 1e4)
    for requests in (table, spread):
        cluster = system if workers == 1 else system.replicate(workers)
        router = None if workers == 1 else "join_shortest_queue"
        metrics = compute_metrics(simulate(cluster, requests, "fcfs", router=router))
        for name in LATENCIES:
            assert metrics[name] >= least.best(name, requests) * (1 - 1e-9), name
    share = 0.9 if alone_is_least(system.batch_time) else 0.4  # alone it is hardly more: the bound is of use
    for name in LATENCIES:
        assert least.best(name, spread) > share * metrics[name], name
