"""Bounds under calibrated batch times: by hand, and below every run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from helpers.runs.random_runs import RandomPolicy, systems, tables
from kvgym.batch_time import AffineBatchTime, RooflineBatchTime, UnitBatchTime, load_hardware
from kvgym.errors import ConfigError, LivelockError, WorkloadError
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import simulate
from kvgym.simulator.system import System, Worker
from kvgym.theory.hindsight.calibrated.bounds import LATENCIES, METRICS, bound_calibrated, bounds_calibrated
from kvgym.workloads.table import RequestTable

UNIT = UnitBatchTime()


def requests(*rows):
    """Requests from (arrival, prompt, output)."""
    arrival, prompt, output = zip(*rows, strict=True)
    return RequestTable(arrival, prompt, output)


def test_one_request_takes_its_prefill_and_a_decode_for_each_further_token():
    model = AffineBatchTime(1.0, 0.1, 0.2, 0.01)
    # Prefill of 4: 1 + 0.4 + 0.01 * 4. Decodes find 5 and 6 tokens: 1 + 0.2 + 0.01 * 6, then 7.
    alone = 1.44 + 1.26 + 1.27
    found = bound_calibrated(requests((2.0, 4, 3)), System(20, model))
    assert found.value == pytest.approx(alone) == found.alone
    first = bound_calibrated(requests((2.0, 4, 3)), System(20, model), "ttft_mean")
    assert first.value == pytest.approx(1.44)


@pytest.mark.parametrize(
    ("first_token", "whole", "first"), [("counted", 3, 1), ("uncounted", 4, 1), ("decode", 4, 2)]
)
def test_bounds_by_first_token_rule(first_token, whole, first):
    system = System(20, UNIT, first_token=first_token)
    table = requests((0.0, 4, 3))
    assert bound_calibrated(table, system).value == pytest.approx(whole)
    assert bound_calibrated(table, system, "ttft_mean").value == pytest.approx(first)


def test_a_memory_for_one_makes_a_queue():
    # Each fills the memory for one batch: the second waits for the first.
    table = requests((0.0, 3, 1), (0.0, 3, 1), (0.0, 3, 1))
    found = bound_calibrated(table, System(4, UNIT))
    assert found.value == pytest.approx((1 + 2 + 3) / 3)
    assert bound_calibrated(table, System(4, UNIT), "makespan").value == pytest.approx(3)
    assert bound_calibrated(table, System(4, UNIT), "token_throughput").value == pytest.approx(1)
    # With room for all, one batch serves them.
    assert bound_calibrated(table, System(12, UNIT)).value == pytest.approx(1)


def test_one_batch_of_a_long_prompt_and_short_ones_on_a_roofline():
    # Reads of the short prompts hide behind the products of the long one; one batch fills the memory, and is all.
    table = requests((0.0, 2_000, 1), *[(0.0, 20, 1)] * 60)
    system = System(2_001 + 60 * 21, RooflineBatchTime("a100-80gb", "llama3-8b"))
    reached = compute_metrics(simulate(system, table, "fcfs"), METRICS)
    for metric in ("makespan", "token_throughput"):
        assert bound_calibrated(table, system, metric).value == pytest.approx(reached[metric], rel=1e-12)


def test_blocks_take_more_memory_than_tokens():
    table = requests((0.0, 3, 1), (0.0, 3, 1))
    assert bound_calibrated(table, System(8, UNIT), "makespan").value == pytest.approx(1)
    assert bound_calibrated(table, System(8, UNIT, block_size=8), "makespan").value == pytest.approx(2)


def test_short_requests_go_first():
    # Work: (s + 1 ... s + o) / M. The short one: 2 / 10; the long one: (2 + ... + 9) / 10 = 4.4.
    table = requests((0.0, 1, 8), (0.0, 1, 1))
    assert bound_calibrated(table, System(10, UNIT)).value == pytest.approx((8 + 1) / 2)
    crowd = requests(*[(0.0, 1, 8)] * 30, (0.0, 1, 1))
    found = bound_calibrated(crowd, System(10, UNIT))
    # 30 of 4.4 s one after the other, at least up to the mean time of their work, after 0.2 s.
    assert found.value > (0.2 + sum(0.2 + 4.4 * (k + 0.5) for k in range(30))) / 31
    assert found.method == "mean times of the work on one machine"


def test_two_workers_equal_one_of_twice_the_speed():
    table = requests(*[(0.0, 3, 1)] * 8)
    one = System(4, UNIT)
    assert bound_calibrated(table, one, "makespan").value == pytest.approx(8)
    assert bound_calibrated(table, one.replicate(2), "makespan").value == pytest.approx(4)
    # A worker twice as slow adds half of what the other does.
    slow = System.cluster([Worker(4, UNIT), Worker(4, AffineBatchTime(2.0))])
    assert bound_calibrated(table, slow, "makespan").value == pytest.approx(8 / 1.5)


def test_separate_workers_add_their_times_and_the_transfer():
    workers = [Worker(20, UNIT, "prefill"), Worker(20, AffineBatchTime(0.5), "decode")]
    system = System.cluster(workers, transfer_latency=0.25, transfer_time=0.1)
    # Prefill 1 s, 5 tokens moved, two decodes.
    assert bound_calibrated(requests((0.0, 4, 3)), system).value == pytest.approx(1 + 0.25 + 0.5 + 1)
    assert bound_calibrated(requests((0.0, 4, 1)), system).value == pytest.approx(1)
    crowd = requests(*[(0.0, 4, 30 - k) for k in range(40)][:20])
    both = System.cluster([Worker(40, UNIT, "prefill"), Worker(40, UNIT, "decode")])
    held = sum(4 + 1 + j for o in range(11, 31) for j in range(1, o))
    assert bound_calibrated(crowd, both, "makespan").value >= 1 + held / 40


def test_recomputation_may_be_cheaper_than_decodes():
    # Prompt tokens cost nothing here, so a token may come from another prefill.
    model = AffineBatchTime(1.0, 0.0, 5.0)
    table = requests((0.0, 2, 3))
    assert bound_calibrated(table, System(20, model)).value == pytest.approx(1 + 6 + 6)
    assert bound_calibrated(table, System(20, model, progress_on_evict="recompute")).value == pytest.approx(3)


def test_calibrated_batches_bound_calibrated_runs():
    hardware = load_hardware("llama3-8b-a100-tp1")
    rng = np.random.default_rng(0)
    table = RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(0.02, 200)),
        prompt_len=rng.integers(1, 900, 200),
        output_len=(output := rng.integers(1, 300, 200)),
        predicted_output_len=output,
    )
    system = System(12_000, hardware.batch_time())
    reached = compute_metrics(simulate(system, table, "mc_sf"), METRICS)
    for metric in ("e2e_latency_mean", "ttft_mean", "makespan"):
        bound = bound_calibrated(table, system, metric)
        assert bound.alone <= bound.value <= reached[metric], metric
        assert metric == "ttft_mean" or reached[metric] < 2.5 * bound.value, metric
    assert bound_calibrated(table, system).value > 1.2 * bound_calibrated(table, system).alone
    assert bound_calibrated(table, system, "token_throughput").value >= reached["token_throughput"]


@settings(max_examples=number(100, 30), deadline=None)
@given(
    table=tables(), system=systems(), seed=st.integers(0, 2**32 - 1), workers=st.sampled_from([1, 1, 1, 2])
)
def test_no_random_run_beats_the_bound(table, system, seed, workers):
    system = system if workers == 1 else system.replicate(workers)
    try:
        table = table.replace(e2e_slo=table.ttft_slo + table.output_len)
        result = simulate(system, table, RandomPolicy(seed, table), seed=seed)
    except LivelockError:
        return
    figures = compute_metrics(result, METRICS)
    for metric, bound in bounds_calibrated(table, system).items():
        if metric in LATENCIES:
            assert figures[metric] >= bound.value * (1 - 1e-9), metric
        else:
            assert figures[metric] <= bound.value * (1 + 1e-9), metric


def test_kv_that_is_written_an_iteration_later_holds_less_memory():
    """A decode holds what was generated before it: 1 + 2 + … tokens less than if each token were written at once."""
    crowd = requests(*[(0.0, 4, 30)] * 20)
    at_once, later = (System(40, UNIT, output_kv=kv) for kv in ("at_once", "next_iteration"))
    held = 20 * sum(4 + j for j in range(1, 30))  # of the decodes, without the prefills
    values = [bound_calibrated(crowd, system, "makespan").value for system in (at_once, later)]
    assert held / 40 <= values[1] < values[0]
    assert compute_metrics(simulate(later, crowd, "fcfs"), ["makespan"])["makespan"] >= values[1]


def test_metrics_and_systems_without_bound_are_rejected():
    table, system = requests((0.0, 3, 1)), System(10, UNIT)
    with pytest.raises(ConfigError, match="no bound on metric 'tbt_p99'; there is one on: e2e_latency_mean"):
        bound_calibrated(table, system, "tbt_p99")
    with pytest.raises(ConfigError, match=r"horizon = 5 s: .*without horizon"):
        bound_calibrated(table, System(10, UNIT, horizon=5.0))
    with pytest.raises(ConfigError, match="a bound assumes that every request computes its whole prompt"):
        bound_calibrated(table, System(10, UNIT, prefix_cache="computed"))
    with pytest.raises(ConfigError, match="a bound needs the same arrivals for every schedule"):
        bound_calibrated(table, System(10, UNIT, sessions="closed"))
    with pytest.raises(ConfigError, match="no requests"):
        bound_calibrated(table.select(slice(0, 0)), system)
    with pytest.raises(WorkloadError, match="can never be served"):
        bound_calibrated(requests((0.0, 30, 1)), system)
