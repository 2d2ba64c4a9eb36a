"""Metrics on schedules small enough to work by hand."""

import math

import numpy as np
import pytest

from kvgym import RequestTable, System, compute_metrics, make_batch_time, simulate
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.metrics.attainment import check_targets, slo_met
from kvgym.metrics.catalogue import LATENCIES, SCALARS, metric_info, metric_names
from kvgym.metrics.compute import worker_metrics
from kvgym.metrics.measured import STATISTICS, tpot_of
from kvgym.simulator.recording.window import Window

UNIT = make_batch_time({"kind": "unit"})


def run(table, policy="fcfs", **system):
    return simulate(
        System(kv_capacity=system.pop("kv_capacity", 100), batch_time=UNIT, **system), table, policy
    )


def test_two_requests_by_hand():
    # Request 0 (arrives 0, s = 3, o = 2): rounds 1, 2; first token at 1, done at 2.
    # Request 1 (arrives 1, s = 5, o = 3): starts at 1; first token at 2, done at 4.
    table = RequestTable([0.0, 1.0], [3, 5], [2, 3], ttft_slo=[1.0, 0.5])
    result = run(table)
    m = compute_metrics(result)
    assert m["e2e_latency_mean"] == (2 + 3) / 2
    assert m["e2e_latency_max"] == 3
    assert m["e2e_latency_std"] == 0.5
    assert m["ttft_mean"] == 1
    assert m["queueing_delay_max"] == 0
    assert m["tbt_mean"] == m["tbt_p99"] == m["tbt_max"] == 1  # gaps: 1 | 1, 1
    assert m["tpot_mean"] == 1
    assert m["makespan"] == m["duration"] == 4
    assert (m["input_tokens"], m["output_tokens"]) == (8, 5)
    assert m["request_throughput"] == 2 / 4
    assert m["token_throughput"] == m["generated_token_throughput"] == 5 / 4
    assert m["processed_token_throughput"] == (5 + 8) / 4
    assert m["goodput"] == 1 / 4  # request 1 misses its TTFT target
    assert m["slo_attainment"] == 0.5
    # KV while rounds run: 4; 5 + 6; 7; 8 → 30 token-seconds of 100 tokens over 4 s.
    assert m["kv_utilisation"] == 30 / 400
    assert m["kv_peak"] == 11 / 100
    assert m["batch_size"] == (1 + 2 + 1 + 1) / 4
    assert m["active_requests"] == 5 / 4
    assert m["busy_fraction"] == 1
    assert m["iterations"] == 4
    rates = np.array([2 / 2, 3 / 3])
    assert m["jain_fairness"] == rates.sum() ** 2 / (2 * (rates**2).sum()) == 1
    assert (m["finished"], m["unfinished"], m["evictions"], m["max_wait"]) == (2, 0, 0, 0)


def test_lost_progress_is_a_gap_and_not_a_second_token():
    # M = 9. Both start at 0: rounds need 8, then 10 > 9, so request 1 is evicted at 1 with one token lost.
    # Request 0 (s = 3, o = 3) runs rounds 2, 3 and ends at 3; request 1 restarts at 3: tokens at 4 (again
    # the first) and 5 (new).
    table = RequestTable([0, 0], [3, 3], [3, 2])
    result = run(table, kv_capacity=9)
    m = compute_metrics(result)
    assert result.requests["num_evictions"].tolist() == [0, 1]
    assert result.requests["first_token_time"].tolist() == [1, 1]
    assert result.requests["finish_time"].tolist() == [3, 5]
    assert m["recomputed_tokens"] == 4
    assert m["generated_token_throughput"] == 6 / 5
    assert m["token_throughput"] == 5 / 5
    assert m["tbt_max"] == 4  # the second token of request 1: from 1 to 5
    assert m["tbt_mean"] == (1 + 1 + 4) / 3
    assert m["tbt_std"] == pytest.approx(np.std([1, 1, 4]))
    assert int(result.gap_counts.sum()) == 3


@pytest.mark.parametrize(("first_token", "gaps"), [("counted", 2), ("uncounted", 3), ("decode", 2)])
def test_tpot_divides_by_the_gaps_there_are(first_token, gaps):
    table = RequestTable([0], [4], [3])
    result = run(table, first_token=first_token)
    assert int(result.gap_counts.sum()) == gaps
    assert compute_metrics(result)["tpot_mean"] == 1


def test_one_token_requests_have_no_tpot():
    table = RequestTable([0], [4], [1])
    m = compute_metrics(run(table))
    assert math.isnan(m["tpot_mean"])
    assert math.isnan(m["tbt_p50"])
    assert m["e2e_latency_mean"] == 1


def test_tpot_leaves_out_requests_without_a_gap():
    table = RequestTable([0, 0, 0], [4, 4, 4], [1, 2, 3])
    result = run(table)
    assert tpot_of(result).tolist() == [pytest.approx(math.nan, nan_ok=True), 1, 1]
    assert compute_metrics(result)["tpot_mean"] == 1


@pytest.mark.parametrize("horizon", [{}, {"horizon": 5.0}])
def test_a_run_without_requests(horizon):
    m = compute_metrics(run(RequestTable([], [], []), **horizon))
    assert m["makespan"] == m["duration"] == m["finished"] == m["unfinished"] == m["max_wait"] == 0
    assert all(math.isnan(m[name]) for name in ("e2e_latency_mean", "request_throughput", "batch_size"))


def test_horizon_counts_those_still_waiting():
    table = RequestTable([0, 0, 50], [6, 6, 6], [4, 4, 4], ttft_slo=[9, np.inf, np.inf])
    result = run(table, kv_capacity=10, horizon=5.0)
    m = compute_metrics(result)
    assert not result.completed
    assert (m["finished"], m["unfinished"]) == (1, 1)  # request 2 has not arrived by then
    assert m["makespan"] == m["duration"] == 5
    assert (m["input_tokens"], m["output_tokens"]) == (6, 4)  # of the one that finished
    # Request 1 starts when request 0 ends, at 4.
    assert m["max_wait"] == 4
    assert m["slo_attainment"] == 1 / 2


@pytest.mark.parametrize("slo", [None, [np.inf, np.inf]])
def test_without_a_target_there_is_no_goodput(slo):
    table = RequestTable([0, 1], [3, 5], [2, 3], ttft_slo=slo)
    m = compute_metrics(run(table))
    assert math.isnan(m["goodput"])
    assert math.isnan(m["slo_attainment"])
    one = compute_metrics(run(table.replace(tbt_slo=[np.inf, 1.0])))
    assert one["slo_attainment"] == 1


def test_what_arrives_until_the_end_of_the_last_batch_has_arrived():
    """Batches take 2 s: the last one before the horizon of 5 s ends at 6 s. Request 1 never enters the queue."""
    table = RequestTable([0, 5.5, 6, 6.5], [3] * 4, [5] * 4, tbt_slo=[2] * 4)
    two = make_batch_time({"kind": "affine", "constant": 2.0})
    m = compute_metrics(simulate(System(kv_capacity=100, batch_time=two, horizon=5.0), table, "fcfs"))
    assert (m["makespan"], m["finished"], m["unfinished"]) == (6, 0, 3)
    assert m["max_wait"] == 0.5
    assert m["slo_attainment"] == 0
    assert math.isnan(m["jain_fairness"])
    assert m["kv_utilisation"] == (4 + 5 + 6) / 3 / 100


def test_waits_in_a_window_are_those_of_its_arrivals():
    """Request 0 fills the memory until 4. At the horizon, 3, request 1 has waited for 2.5 s and request 2 for 1 s."""
    table = RequestTable([0, 0.5, 2, 9], [6] * 4, [4] * 4)
    system = System(kv_capacity=10, batch_time=UNIT, horizon=3.0)
    m = compute_metrics(simulate(system, table, "fcfs", window=Window(1)))
    assert (m["max_wait"], m["unfinished"]) == (1, 3)


def test_fairness_of_unequal_rates():
    """Request 1 waits for 4 s: 4 tokens in 4 s, and 2 tokens in 6 s."""
    table = RequestTable([0, 0], [6, 6], [4, 2])
    m = compute_metrics(run(table, kv_capacity=10))
    assert m["jain_fairness"] == pytest.approx((1 + 1 / 3) ** 2 / (2 * (1 + 1 / 9)), rel=1e-15)


def test_workers_by_hand():
    """Request 0 needs 4 and 5 KV tokens on worker 0, request 1 needs 6, 7, 8 on worker 1; nothing else happens."""
    table = RequestTable([1, 1], [3, 5], [2, 3])
    result = simulate(System(kv_capacity=100, batch_time=UNIT).replicate(2), table, "fcfs")
    common = {"moved_here": 0, "routed": 1, "finished": 1, "evictions": 0, "batch_size": 1, "ttft_mean": 1}
    assert worker_metrics(result) == [
        {
            "worker": 0, "role": "mixed", "kv_capacity": 100, **common, "e2e_latency_mean": 2,
            "request_throughput": 1 / 3, "generated_token_throughput": 2 / 3, "kv_utilisation": 9 / 300,
            "kv_peak": 0.05, "busy_fraction": 2 / 3, "iterations": 2,
        },
        {
            "worker": 1, "role": "mixed", "kv_capacity": 100, **common, "e2e_latency_mean": 3,
            "request_throughput": 1 / 3, "generated_token_throughput": 1, "kv_utilisation": 21 / 300,
            "kv_peak": 0.08, "busy_fraction": 1, "iterations": 3,
        },
    ]  # fmt: skip
    m = compute_metrics(result)
    assert m["kv_utilisation"] == (9 + 21) / 600
    assert (m["kv_peak"], m["busy_fraction"], m["batch_size"], m["iterations"]) == (0.08, 5 / 6, 1, 5)
    assert (m["makespan"], m["duration"], m["active_requests"]) == (3, 4, 5 / 3)


def test_metrics_within_slos_need_slos():
    table = RequestTable([0, 1], [3, 5], [2, 3])
    for name in ("goodput", "slo_attainment"):
        with pytest.raises(ConfigError, match=f"{name} counts requests within their own SLOs"):
            check_targets(["ttft_mean", name], table)
        for column in ("ttft_slo", "tbt_slo"):
            check_targets([name], table.replace(**{column: [np.inf, 1.0]}))
        with pytest.raises(ConfigError):
            check_targets([name], table.replace(ttft_slo=[np.inf, np.inf]))
    check_targets(["ttft_mean"], table)


def test_tbt_slo_uses_the_worst_gap():
    table = RequestTable([0, 0], [3, 3], [3, 2], tbt_slo=[1.0, 3.9])
    assert slo_met(run(table, kv_capacity=9)).tolist() == [True, False]


def test_percentiles_of_gaps_are_close_to_exact():
    rng = np.random.default_rng(0)
    n = 300
    table = RequestTable.from_columns(
        arrival_time=np.cumsum(rng.exponential(0.01, n)),
        prompt_len=rng.integers(1, 60, n),
        output_len=rng.integers(2, 60, n),
    )
    affine = make_batch_time({"kind": "affine", "constant": 0.01, "per_context_token": 1e-5})
    result = simulate(System(kv_capacity=600, batch_time=affine), table, "fcfs", log=True)
    # Tight enough for evictions, so that some gaps are long.
    assert result.worker[0]["total_evicted"] > 0
    m = compute_metrics(result)
    assert m["tbt_p50"] <= m["tbt_p90"] <= m["tbt_p95"] <= m["tbt_p99"] <= m["tbt_max"]
    delivered = int(table.output_len.sum()) - n
    assert int(result.gap_counts.sum()) == delivered
    total = float((result.requests["finish_time"] - result.requests["first_token_time"]).sum())
    assert m["tbt_mean"] * delivered == pytest.approx(total, rel=1e-12)


def test_every_metric_is_described():
    table = RequestTable([0], [4], [2])
    computed = compute_metrics(run(table))
    assert tuple(computed) == metric_names()
    assert len(metric_names()) == len(LATENCIES) * len(STATISTICS) + len(SCALARS)
    assert all(metric_info(name).summary for name in metric_names())
    with pytest.raises(UnknownNameError, match=r"unknown metric 'tft_mean'. Did you mean 'ttft_mean'"):
        metric_info("tft_mean")


def test_selected_metrics_equal_all_metrics():
    table = RequestTable([0, 1], [4, 5], [3, 2], ttft_slo=[1, 0.5])
    result = run(table)
    every = compute_metrics(result)
    names = ("goodput", "ttft_p99", "ttft_mean", "jain_fairness", "max_wait", "tpot_mean")
    assert compute_metrics(result, names) == {name: every[name] for name in names}
    for name in metric_names():
        np.testing.assert_equal(compute_metrics(result, [name]), {name: every[name]})
    for wrong in ("speed", "ttft", "ttft_p42"):
        with pytest.raises(UnknownNameError):
            compute_metrics(result, [wrong])


def test_percentiles_equal_numpy():
    rng = np.random.default_rng(2)
    for n in (1, 2, 3, 50, 501):
        table = RequestTable.from_columns(
            arrival_time=np.sort(rng.uniform(0, 20, n)),
            prompt_len=rng.integers(1, 30, n),
            output_len=rng.integers(1, 30, n),
        )
        result = run(table)
        latency = result.requests["finish_time"] - table.arrival_time
        m = compute_metrics(result)
        for q in (50, 90, 95, 99):
            assert m[f"e2e_latency_p{q}"] == pytest.approx(np.percentile(latency, q), rel=1e-14)


def test_sessions_by_hand():
    table = RequestTable.from_columns(
        arrival_time=[0.0, 1, 9, 9], prompt_len=[3] * 4, output_len=[2, 3, 1, 1],
        session_id=[5, 6, 5, 6], turn=[1, 1, 2, 2], think_time=[0.0, 0, 2, 30],
    )  # fmt: skip
    # Turns of session 5: 0 to 2, 4 to 5. Those of session 6: 1 to 4, 34 to 35.
    m = compute_metrics(run(table, sessions="closed"))
    assert (m["first_turn_latency"], m["later_turn_latency"]) == (2.5, 1)
    assert (m["first_turn_ttft"], m["later_turn_ttft"]) == (1, 1)
    assert (m["job_completion_time_mean"], m["job_completion_time_max"]) == ((5 + 34) / 2, 34)
    assert (m["service_time_mean"], m["service_time_max"]) == ((3 + 4) / 2, 4)
    assert (m["sessions_finished"], m["sessions_unfinished"]) == (2, 0)
    # Until 20 s, the second turn of session 6 has not arrived.
    cut = run(table, sessions="closed", horizon=20.0)
    m = compute_metrics(cut)
    assert (len(cut.table), cut.to_come.tolist(), m["unfinished"]) == (3, [6], 0)
    assert (m["sessions_finished"], m["sessions_unfinished"]) == (1, 1)
    assert (m["job_completion_time_mean"], m["service_time_mean"]) == (5, 3)
    # A window is known before the run by first turns alone.
    seen = simulate(cut.system, table, "fcfs", window=Window(warm_up=0.5))
    assert (seen.window.start, seen.window.end) == (0.5, 1)
    plain = compute_metrics(run(table.replace(session_id=None, turn=None, think_time=None)))
    assert all(
        math.isnan(plain[name]) for name in ("first_turn_ttft", "service_time_mean", "sessions_finished")
    )
