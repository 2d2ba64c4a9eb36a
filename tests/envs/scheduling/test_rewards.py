"""Reward terms, each by hand in slotted time: a second per batch, memory of 40 tokens, no scaling."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.environments.plain import plain_env
from kvgym.envs.scheduling.tables import REWARD_TERMS

ALL = dict.fromkeys(REWARD_TERMS, 1.0)


def make(workload, action="admit_count", **arguments):
    """Return an environment with unscaled terms."""
    return plain_env(
        action=action, scenario="mc-sf-model-2", workload=workload, queue_window=3, active_window=3,
        **{"reward": ALL, "reward_scale": 1.0, **arguments},
    )  # fmt: skip


def terms_of(env, *actions):
    """Return the reward terms of each step by name."""
    env.reset(seed=0)
    found = []
    for action in actions:
        _, reward, *_, info = env.step(action)
        found.append(dict(zip(REWARD_TERMS, info["reward_terms"].tolist(), strict=True)))
        assert reward == pytest.approx(sum(env.config.reward.get(k, 0) * v for k, v in found[-1].items()))
    return found


def terms(latency=0.0, ttft=0.0, tokens=0.0, goodput=0.0, evictions=0.0):
    return dict(zip(REWARD_TERMS, (latency, ttft, tokens, goodput, evictions), strict=True))


def test_terms_by_hand(requests_of):
    """Requests 0 (2 tokens) and 1 (1 token) start at 0; 2 (1 token) arrives at 1."""
    env = make(requests_of((0, 6, 2), (0, 10, 1), (1, 3, 1)))
    assert terms_of(env, 2, 1) == [
        terms(latency=-2, ttft=-1, tokens=2, goodput=1),
        terms(latency=-2, ttft=-2, tokens=2, goodput=2),
    ]
    assert env.result().completed


def test_arrivals_inside_a_batch_and_idle_time(requests_of):
    """Request 1 arrives in the middle of a batch; the system is empty from 2 to 10."""
    env = make(requests_of((0, 6, 1), (0.5, 3, 1), (10, 4, 1)))
    found = terms_of(env, 1, 1, 1)
    assert [t["latency"] for t in found] == [-1.5, -1.0, -1.0]
    assert [t["ttft"] for t in found] == [-1.0, -1.5, -1.0]


def test_waiting_with_nothing_to_run(requests_of):
    """Without active and admitted requests the worker waits a second, or until the next arrival."""
    env = make(requests_of((0, 6, 1), (1.25, 3, 1)))
    found = terms_of(env, 0, 0, 0)
    assert [t["latency"] for t in found] == [-1.0, -0.25, -2.0]
    env = make(requests_of((0, 6, 1), (1.25, 3, 1)), idle_time=0.5)
    assert [t["latency"] for t in terms_of(env, 0, 0, 0, 0)] == [-0.5, -0.5, -0.25, -1.0]


def test_evictions(requests_of):
    """Admit, run (4 + 1 tokens held), run (6), evict: 6 tokens are lost and generated again without reward."""
    env = make(requests_of((0, 4, 5)), action="admit_evict")
    admit, evict, run = 0, 3, 6
    found = terms_of(env, admit, run, run, evict, run, admit, run, run, run, run, run)
    assert found == [
        terms(),
        terms(latency=-1, tokens=1),
        terms(latency=-1, tokens=1),
        terms(),  # time passes when the batch runs
        terms(latency=-1, evictions=-6),
        terms(),
        terms(latency=-1),  # tokens the user has already
        terms(latency=-1),
        terms(latency=-1, tokens=1),
        terms(latency=-1, tokens=1),
        terms(latency=-1, tokens=1, ttft=-1, goodput=1),
    ]
    kept = make(requests_of((0, 4, 5)), action="admit_evict", system={"progress_on_evict": "kept"})
    assert sum(t["evictions"] for t in terms_of(kept, admit, run, evict, run)) == 0


def test_overflow_counts_as_evictions(requests_of):
    env = make(requests_of((0, 4, 5), (0, 4, 5)), kv_capacity=10)
    assert [t["evictions"] for t in terms_of(env, 2, 0)] == [0, -5]


@pytest.mark.parametrize(
    ("ttft_slo", "tbt_slo", "good"), [(1.0, 1.0, 1), (0.5, 9.0, 0), (9.0, 0.5, 0), (None, None, 1)]
)
def test_goodput(ttft_slo, tbt_slo, good, requests_of):
    workload = requests_of((0, 4, 3), classes=[{"ttft_slo": ttft_slo, "tbt_slo": tbt_slo}])
    found = terms_of(make(workload), 1, 0, 0)
    assert [t["goodput"] for t in found] == [0, 0, good]
    env = make(workload)
    terms_of(env, 1, 0, 0)
    metrics = dict(zip(env.metric_names, env.episodes.metrics(0), strict=True))
    # Without a target there is no share of requests that met theirs; the reward counts all that finish.
    expected = math.nan if ttft_slo is None else good
    assert metrics["slo_attainment"] == pytest.approx(expected, nan_ok=True)


def test_skipped_time_adds_up(requests_of):
    """There is nothing to decide until the second request arrives: the iterations before are one step."""
    env = make(requests_of((0, 4, 5), (3.5, 4, 1)), epochs="decision")
    assert terms_of(env, 1, 1) == [
        terms(latency=-4 - 0.5, tokens=4),
        terms(latency=-2, ttft=-1 - 1.5, tokens=2, goodput=2),
    ]
    knobs = make(requests_of((0, 4, 5)), action="knobs", hold=3)
    assert [t["latency"] for t in terms_of(knobs, [0, 7, 9, 0], [0, 7, 9, 0])] == [-3, -2]


@pytest.mark.parametrize("name", REWARD_TERMS)
def test_weights_and_scale(name, requests_of):
    workload = requests_of((0, 6, 2), (0, 10, 1), (1, 3, 1))
    plain = terms_of(make(workload), 2, 1)
    env = plain_env(
        action="admit_count",
        scenario="mc-sf-model-2",
        workload=workload,
        queue_window=3,
        reward={name: 0.5},
    )
    env.reset(seed=0)
    for action, expected in zip((2, 1), plain, strict=True):
        _, reward, *_, info = env.step(action)
        assert reward == pytest.approx(0.5 * expected[name] / 3)  # three requests per episode
        np.testing.assert_allclose(info["reward_terms"], np.array(list(expected.values())) / 3)


def test_default_is_minus_the_mean_latency(requests_of):
    env = plain_env(scenario="mc-sf-model-2", workload=requests_of((0, 6, 2), (0, 10, 1), (1, 3, 1)))
    env.reset(seed=0)
    assert env.step(2)[1] + env.step(1)[1] == pytest.approx(-(2 + 1 + 1) / 3)


def test_totals_agree_with_the_metrics():
    """The terms of a completed episode add up to totals of the run."""
    env = plain_env(
        action="admit_count", scenario="mc-sf-model-2", num_requests=30, reward_scale=1.0, horizon=1e6
    )
    env.reset(seed=3)
    total = np.zeros(len(REWARD_TERMS))
    ended = False
    while not ended:
        *_, ended, _, info = env.step(int(env.action_masks().sum()) - 1)
        total += info["reward_terms"]
    metrics, result = dict(zip(env.metric_names, info["metrics"], strict=True)), env.result()
    found = dict(zip(REWARD_TERMS, total, strict=True))
    assert found["latency"] == pytest.approx(-30 * metrics["e2e_latency_mean"], rel=1e-12)
    assert found["ttft"] == pytest.approx(-30 * metrics["ttft_mean"], rel=1e-12)
    assert found["tokens"] == result.table.output_len.sum()
    assert found["goodput"] == 30
    assert found["evictions"] == -metrics["recomputed_tokens"]
    assert metrics["evictions"] > 0
