"""Replays of simulated logs: no error with equal settings, a known one with different settings."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.servers.served_logs import TRUE, scenario, served
from kvgym.errors import ConfigError
from kvgym.servers.validation.replay import (
    METRICS,
    STATISTICS,
    loss,
    mean_error,
    replay_log,
    summed_up,
    without_long,
)
from kvgym.servers.validation.results import replay_summary


@pytest.fixture(scope="module")
def log():
    return served(scenario(engine=TRUE))


def test_the_same_settings_give_no_error(log):
    replay = replay_log(log, scenario(engine=TRUE), "vllm")
    found = replay.differences()
    assert [(d.metric, d.statistic) for d in found] == [(m, s) for m in METRICS for s in STATISTICS]
    for difference in found:
        assert difference.error.value == pytest.approx(0, abs=1e-9)
        assert difference.error.low == pytest.approx(0, abs=1e-9)
        assert difference.error.high == pytest.approx(0, abs=1e-9)
        assert difference.simulated == pytest.approx(difference.observed)
    assert all(replay.rank_correlation(metric) == pytest.approx(1) for metric in METRICS)
    totals = replay.totals()
    assert np.isnan(totals.pop("evictions")[0])  # the log has none
    assert all(x == pytest.approx(y) for x, y in totals.values())
    assert loss(replay) == pytest.approx(0, abs=1e-9)


def test_a_slower_engine_gives_slower_tokens(log):
    replay = replay_log(log, scenario(engine={"base_ms": 30.0, "per_request_ms": 0.2}), "vllm")
    tokens = {d.statistic: d for d in replay.differences() if d.metric == "tbt"}
    assert tokens["p50"].error.value > 0.2
    assert 0 < tokens["mean"].error.low < tokens["mean"].error.value < tokens["mean"].error.high
    assert loss(replay) > 0.2
    assert replay.totals()["makespan"][1] > replay.totals()["makespan"][0]


def test_the_mean_error_averages_the_shown_errors(log):
    replay = replay_log(log, scenario(engine=TRUE), "vllm")
    assert mean_error(replay) == pytest.approx(0, abs=1e-9)
    slower = replace(replay, log=replace(log, ttft=log.ttft / 0.87, e2e_latency=log.e2e_latency / 0.87))
    assert all(d.error.value == pytest.approx(-0.13) for d in slower.differences())
    assert mean_error(slower) == pytest.approx(0.13)


def test_skipped_requests_are_replayed_but_not_compared(log):
    replay = replay_log(log.skipping(50), scenario(engine=TRUE), "vllm")
    assert len(replay.result.requests) == len(log)
    observed, simulated = replay.pairs("ttft")
    assert observed.tolist() == log.ttft[50:].tolist()
    assert simulated == pytest.approx(observed)
    makespan, of_replay = replay.totals()["makespan"]
    ends = log.arrival_time + log.e2e_latency
    assert makespan == pytest.approx(ends[50:].max() - log.arrival_time[50])
    assert of_replay == pytest.approx(makespan)
    assert replay.totals()["request_throughput"][0] == pytest.approx((len(log) - 50) / makespan)
    assert replay_summary(replay)["skipped"] == 50
    odd = np.arange(len(log)) % 2 == 1
    assert log.skipping(50).select(odd, "half").skip == 25
    assert log.compared() is log
    with pytest.raises(ConfigError, match=r"skip = 200: served.csv has 200 requests, none is left"):
        log.skipping(200)


def test_statistics_by_hand():
    figures = dict(zip(STATISTICS, summed_up(np.arange(101.0)), strict=True))
    assert figures == pytest.approx({"mean": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99})


def test_policies_that_need_predictions_get_the_true_lengths(log):
    assert replay_log(log, scenario(engine=TRUE), "mc_sf").result.completed
    assert replay_log(log, scenario(engine=TRUE), "a_min").result.completed


def test_clusters_and_horizons():
    chosen = scenario(engine=TRUE, workers=2, router="round_robin")
    log = served(chosen)
    limited = chosen.override(system={**chosen.system.model_dump(), "horizon": 1.0})
    assert loss(replay_log(log, limited, "vllm")) == pytest.approx(0, abs=1e-9)


def test_logs_of_single_tokens_have_no_token_times(log):
    short = replace(log, output_len=np.ones(len(log), np.int64), e2e_latency=log.ttft)
    replay = replay_log(short, scenario(engine=TRUE), "vllm")
    assert {d.metric for d in replay.differences()} == {"ttft", "e2e_latency"}
    assert np.isnan(replay.rank_correlation("tbt"))
    with pytest.raises(ConfigError, match="no positive times"):
        loss(replay)


def test_one_request_has_no_interval(log):
    first = np.arange(len(log)) == 0
    replay = replay_log(log.select(first, "one"), scenario(engine=TRUE), "vllm")
    assert all(np.isnan(d.error.low) for d in replay.differences())


def test_requests_longer_than_memory_are_left_out_with_a_note(log):
    total = log.prompt_len + log.output_len
    limit = int(np.median(total))
    kept = without_long(log, limit)
    assert len(kept) == int((total <= limit).sum())
    assert f"{int((total > limit).sum())} of {len(log)} requests" in kept.notes[0]
    assert without_long(log, int(total.max())) is log
    with pytest.raises(ConfigError, match="no request fits"):
        without_long(log, 1)


def test_a_log_without_token_times_or_without_any_time_has_a_summary(log):
    short = replace(log, output_len=np.ones(len(log), np.int64), e2e_latency=log.ttft)
    summary = replay_summary(replay_log(short, scenario(engine=TRUE), "vllm"))
    assert summary["loss"] is None
    assert set(summary["metrics"]) == {"ttft", "e2e_latency"}
    first = short.select(np.arange(len(log)) == 0, "one")
    nothing = replace(first, ttft=np.zeros(1), e2e_latency=np.zeros(1))
    replay = replay_log(nothing, scenario(engine=TRUE), "vllm")
    assert set(replay.totals()) == {"makespan", "evictions"}
    assert np.isnan(replay_summary(replay)["totals"]["makespan"]["error"])


def test_parts_add_up_to_the_error_and_name_its_source(log):
    replay = replay_log(log, scenario(engine=TRUE), "vllm")

    def largest(changed):
        parts = replace(replay, log=changed).parts()
        total = sum(part.observed - part.simulated for part in parts)
        assert total == pytest.approx((changed.e2e_latency - log.e2e_latency).mean(), abs=1e-9)
        return parts[0].name, parts[0].observed - parts[0].simulated

    delayed = replace(log, ttft=log.ttft + 0.05, e2e_latency=log.e2e_latency + 0.05)
    assert largest(delayed) == ("client and API", pytest.approx(0.05))
    slower = replace(log, e2e_latency=log.ttft + 1.2 * (log.e2e_latency - log.ttft))
    assert largest(slower) == (
        "batches between tokens",
        pytest.approx(0.2 * (log.e2e_latency - log.ttft).mean()),
    )
    waits = np.where(np.arange(len(log)) % 2, 0.3, 0.0)
    late = replace(log, ttft=log.ttft + waits, e2e_latency=log.e2e_latency + waits)
    assert largest(late) == ("queue and prompts", pytest.approx(waits.mean()))


@pytest.mark.parametrize(("slow", "found"), [(0, 0), (40, 25), (60, 50)])
def test_a_start_up_phase_is_recognised(log, slow, found):
    replay = replay_log(log, scenario(engine=TRUE), "vllm")
    assert len(log) == 8 * 25
    factor = np.where(np.arange(len(log)) < slow, 1.25, 1.0)
    noise = np.random.default_rng(0).normal(1.0, 0.01, len(log))
    changed = replace(log, e2e_latency=log.ttft + factor * noise * (log.e2e_latency - log.ttft))
    assert replace(replay, log=changed).start_up() in (found, found + 25)
    assert (replace(replay, log=changed).start_up() == 0) == (slow == 0)


def test_a_log_of_the_engines_own_times_is_replayed_without_its_api(log):
    api = scenario(engine={"base_ms": 1, "api_ms": 500})
    outside, inside = (
        replay_log(replace(log, inside=flag), api, "fcfs").simulated("ttft") for flag in (False, True)
    )
    without = replay_log(log, scenario(engine={"base_ms": 1}), "fcfs").simulated("ttft")
    np.testing.assert_array_equal(inside, without)
    assert (outside >= 0.5).all()
