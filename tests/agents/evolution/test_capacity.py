"""The estimated sustained rate of a service, by hand and against simulation."""

import numpy as np
import pytest

import kvgym
from kvgym.agents.evolution.capacity import sustained_rate, worker_rate
from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.metrics.compute import compute_metrics
from kvgym.simulator.system import System, Worker
from kvgym.workloads.table import RequestTable


def table(prompt, output, count=4):
    return RequestTable.from_columns(
        arrival_time=np.zeros(count),
        prompt_len=np.full(count, prompt),
        output_len=np.full(count, output),
        predicted_output_len=np.full(count, output),
    )


def test_by_hand():
    """s = 10, o = 20: 400 token-iterations each, so 1.5 complete per iteration of 600 tokens, among 30 decodes."""
    model = AffineBatchTime(
        0.1, per_prefill_token=0.01, per_decode_token=0.002, per_context_token=1e-4, include_new=False
    )
    iteration = 0.1 + 30 * 0.002 + 600 * 1e-4  # 0.22 s
    expected = 1 / (iteration / 1.5 + 10 * 0.01)
    assert worker_rate(600, model, table(10, 20)) == pytest.approx(expected)
    system = System(kv_capacity=607, batch_time=model, block_size=8)  # 75 whole blocks are 600 tokens
    assert sustained_rate(system, table(10, 20)) == pytest.approx(expected)
    assert sustained_rate(system.replicate(3), table(10, 20)) == pytest.approx(3 * expected)


def test_an_overloaded_worker_serves_about_the_estimate():
    model = AffineBatchTime(0.02, per_prefill_token=1e-4, per_context_token=1e-5)
    system, many = System(kv_capacity=5_000, batch_time=model), table(100, 50, 2_000)
    served = compute_metrics(kvgym.simulate(system, many, "mc_sf", seed=0))["request_throughput"]
    assert served == pytest.approx(sustained_rate(system, many), rel=0.1)


def test_systems_without_an_estimate():
    model = AffineBatchTime(0.1)
    apart = System.cluster([Worker(600, model, "prefill"), Worker(600, model, "decode")])
    with pytest.raises(ConfigError, match="give the family a rate"):
        sustained_rate(apart, table(10, 20))
    with pytest.raises(ConfigError, match="no requests"):
        sustained_rate(System(kv_capacity=600, batch_time=model), table(10, 20).select(slice(0, 0)))
