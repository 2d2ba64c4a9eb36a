"""Autoscalers by rates and tokens: sizes worked by hand from the definitions of the platforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers.runs.pools import FLEET, WORKER, asked, pool, view_at
from kvgym.baselines.autoscalers.by_rate import workers_for
from kvgym.baselines.autoscalers.engines import Engine
from kvgym.baselines.autoscalers.metrics import token_velocity
from kvgym.baselines.autoscalers.saturation import capacity_step
from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError
from kvgym.policies.scaling import AutoscalerInfo, make_autoscaler
from kvgym.simulator.cluster.fleet_view import Ahead
from kvgym.simulator.system import Worker
from kvgym.workloads.classes import KnownRates, RateProfile

PREFILL = Worker(10_000, AffineBatchTime(constant=0.02, per_prefill_token=1e-4), "prefill")
DECODE = Worker(10_000, AffineBatchTime(constant=0.02, per_decode_token=0.001), "decode")


@pytest.mark.parametrize(("queued", "workers"), [(24_000, 6), (3_000, 3)])
def test_token_velocity_is_the_larger_of_queue_and_memory(queued: float, workers: int) -> None:
    assert math.ceil(token_velocity(queued, 2696, 1.9)) == workers


def test_token_velocity_of_one_role_counts_its_own_part() -> None:
    assert token_velocity(24_000, 2696, 9.0, "prefill") == pytest.approx(24_000 / 2696 / 1.5)
    assert token_velocity(24_000, 2696, 1.9, "decode") == pytest.approx(1.9 / 0.8)


def test_keda_scales_by_tokens() -> None:
    rule = make_autoscaler("keda:metric=tokens,target=1,down=0")
    assert rule.needs == {"tokens"}
    assert not make_autoscaler("keda").needs
    # 8,192 tokens take 0.8392 s: 35,000 are 3.59 s, by 1.5 s.
    assert asked(rule, (0.0, pool([1, 1], prefill_tokens=np.array([20_000, 15_000])))) == [3]
    assert asked(rule, (0.0, pool([1, 1], kv=np.array([1.0, 0.9])))) == [3]


@pytest.mark.parametrize(
    ("demand", "ready", "starting", "step"),
    [(300e3, 2, 1, 1), (100e3, 4, 0, -2), (170e3, 2, 0, 0), (1e3, 0, 0, 1)],
)
def test_steps_by_the_tokens_that_workers_hold(demand: float, ready: int, starting: int, step: int) -> None:
    assert capacity_step(demand, 100e3, ready, starting, 0.85, 0.7) == step


def test_wva_v2_learns_what_a_worker_can_hold() -> None:
    rule = make_autoscaler("wva_v2")
    rule.reset(FLEET, np.random.SeedSequence(0))
    busy = pool([9, 15], kv=np.array([0.5, 0.6]), waiting=np.array([0, 6]))
    counted = {"arrivals": 10, "prompt_tokens": 1000, "completions": 5, "finished_tokens": 1000}
    # First 8,000 tokens by memory and 6,000 as observed: 11,600 are not above 0.85 of 2 x 7,000 nor below 0.7.
    assert rule.scale(view_at(0.0, busy, **counted)) == [2]
    assert rule.scale(view_at(60.0, busy)) == [3]  # of 2 x 6,000 they are
    outside = pool([], target=0, unrouted=100)  # 30,000 tokens, by 6,000 as seen with such outputs
    assert rule.scale(view_at(120.0, outside)) == [6]


def test_wva_v2_derives_it_from_the_limits_of_a_batch_before() -> None:
    rule = make_autoscaler("wva_v2:batch_tokens=30")
    rule.reset(FLEET, np.random.SeedSequence(0))
    counted = {"arrivals": 1, "prompt_tokens": 100, "completions": 1, "finished_tokens": 200}
    assert rule.scale(view_at(0.0, pool([9, 9], kv=np.array([0.4, 0.4])), **counted)) == [
        3
    ]  # 4,000 each, 20 at a time


def test_the_rate_of_a_prefill_worker_is_of_the_largest_batch_within_its_target() -> None:
    assert Engine(PREFILL, 8192, 100).rate(1000, 50, ttft=0.5) == pytest.approx(4 / 0.42)
    assert Engine(PREFILL, 8192, 100).rate(1000, 50, ttft=0.01) == pytest.approx(
        8 / 0.82
    )  # none is: the fastest
    assert Engine(PREFILL, 600, 100).rate(1000, 50) == pytest.approx(1 / 0.14)  # two batches for each


def test_the_rate_of_a_decode_worker_follows_its_time_and_its_memory() -> None:
    assert Engine(DECODE, 8192, 100).rate(1000, 1000, itl=0.025) == pytest.approx(5 / 25)
    assert Engine(DECODE, 8192, 100).rate(1000, 1000) == pytest.approx(6 / 26)


def test_a_mixed_worker_takes_prompts_as_fast_as_requests_leave() -> None:
    assert Engine(WORKER, 8192, 100).rate(100, 100, itl=0.042) == pytest.approx(20 / 4.2)
    # Each of 10 decodes comes with a prompt token on average; a new prompt takes (100 + n) tokens.
    assert Engine(WORKER, 8192, 100).rate(100, 100, ttft=0.042) == pytest.approx(10 / 3.1)


def test_rates_make_sizes() -> None:
    assert workers_for(5.2, 4.5) == 2


def planned(spec: str, *counts: int) -> list[int]:
    """Return the sizes of a planner at multiples of 180 s, with requests of 100 and 100 tokens counted before each."""
    rule = make_autoscaler(spec)
    rule.reset(FLEET, np.random.SeedSequence(0))
    sizes = []
    for k, n in enumerate(counts):
        counted = {"arrivals": n, "prompt_tokens": 100 * n, "completions": n // 2, "finished_tokens": 50 * n}
        sizes.append(int(rule.scale(view_at(180.0 * k, pool([1]), **counted))[0]))
    return sizes


def test_dynamo_divides_the_rate_by_that_of_a_worker() -> None:
    assert make_autoscaler("dynamo").interval == 5.0
    assert planned("dynamo:ttft=5,itl=0.042", 0, 1800, 3600) == [1, 3, 5]
    assert planned("dynamo:ttft=5,itl=0.042,share=0.5", 0, 1800, 3600) == [1, 5, 9]
    assert planned("dynamo:ttft=5,itl=0.042,predictor=trend", 0, 1800, 3600, 0) == [1, 5, 7, 1]
    assert planned("dynamo:ttft=5,itl=0.042,demand=completions", 0, 1800, 3600) == [1, 2, 3]


def test_dynamo_is_asked_as_often_as_it_decides() -> None:
    for spec, later in (("dynamo", 180.0), ("dynamo:load=true", 5.0), ("dynamo:adjust=60", 60.0)):
        rule = make_autoscaler(spec)
        rule.reset(FLEET, np.random.SeedSequence(0))
        assert rule.next_time(0.0) == later


def loaded(spec: str, *pools: Any) -> list[int]:
    """Return the sizes by load of a planner that knows lengths of 100 and 100 tokens and a rate of nearly 0."""
    rule = make_autoscaler(spec)
    rule.reset(FLEET, np.random.SeedSequence(0))
    counted = {"arrivals": 1, "prompt_tokens": 100, "completions": 1, "finished_tokens": 100}
    rule.scale(view_at(180.0, pool([1]), **counted))
    return [int(rule.scale(view_at(185.0, each))[0]) for each in pools]


def test_dynamo_adds_a_worker_when_all_would_be_late() -> None:
    spec = "dynamo:load=true,ttft=0.5,itl=1"
    late, soon = np.array([8000, 8000]), np.array([8000, 0])
    assert loaded(spec, pool([1, 1], prefill_tokens=late), pool([1, 1], prefill_tokens=soon)) == [3, 2]
    busy = pool([1, 1], prefill_tokens=late, starting=1, target=3)
    assert loaded(spec, busy) == [3]  # nothing while one starts
    assert loaded("dynamo:load=true,ttft=5,itl=0.03", pool([20, 20], active=np.array([20, 20]))) == [3]


def test_dynamo_removes_a_worker_if_the_others_can_do_its_work() -> None:
    spec = "dynamo:load=true,ttft=0.5,itl=1"
    # A queue of 1,700 tokens, doubled, adds 0.34 s to the first token, less than 0.8 x (0.5 - 0.03); 1,900 do not.
    for tokens, size in ((1700, 1), (1900, 2)):
        assert loaded(spec, pool([1, 1], prefill_tokens=np.array([tokens, tokens]))) == [size]
    assert loaded(spec, pool([1, 1], kv=np.array([0.5, 0.5]))) == [2]  # the memory of one does not suffice
    assert loaded(spec, pool([0])) == [1]
    decoding = "dynamo:load=true,itl=0.06"
    for active, size in (
        (10, 1),
        (20, 2),
    ):  # twice as many and the next one: 0.041 + 0.002 s and 0.061 + 0.004 s
        assert loaded(decoding, pool([1, 1], active=np.array([active, active]))) == [size]


def test_foresight_looks_until_the_next_worker_could_be_ready() -> None:
    rule = make_autoscaler("foresight")
    rule.reset(FLEET, np.random.SeedSequence(0))
    plain, burst = RateProfile((0.0, 100.0), (5.0, 20.0)), RateProfile((0.0, 50.0, 100.0), (5.0, 10.0, 20.0))
    ahead = Ahead(KnownRates(plain, burst), 100.0, 100.0)
    # 66 requests fit, which take 0.0926 s for a token each: 7.13 a second, of which 0.8 are planned for.
    sizes = [rule.scale(view_at(time, pool([1]), ahead=ahead))[0] for time in (0.0, 24.0, 26.0)]
    assert sizes == [1, 1, 4]  # a start-up of 60 s, and 15 s until the next question
    knows = make_autoscaler("foresight:bursts=true")
    knows.reset(FLEET, np.random.SeedSequence(0))
    assert knows.scale(view_at(0.0, pool([1]), ahead=ahead)) == [2]
    assert rule.info.clairvoyant


def test_needs_are_checked() -> None:
    with pytest.raises(ConfigError, match="needs = 'everything'; valid: tokens, arrivals_ahead"):
        AutoscalerInfo(name="all_knowing", summary="knows everything", needs=frozenset({"everything"}))
