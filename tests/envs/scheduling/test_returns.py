"""The return identity: undiscounted latency rewards add up to minus the total end-to-end latency."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from helpers.environments.plain import plain_env
from helpers.selection import others_long
from kvgym.envs import SCHEDULING_IDS as IDS
from kvgym.metrics.compute import compute_metrics

SYSTEMS = (
    {"scenario": "mc-sf-model-2", "num_requests": 15},
    {
        "scenario": "a100-llama2-70b",
        "num_requests": 40,
        "rate": 200.0,
        "kv_capacity": 250,
        "workload": {"preset": "lmsys", "limits": {"max_prompt_len": 40, "max_output_len": 30}},
        "system": {"first_token": "uncounted", "progress_on_evict": "recompute"},
    },
    {
        "scenario": "a100-llama2-70b",
        "num_requests": 25,
        "rate": 20.0,
        "kv_capacity": 200,
        "workload": {"preset": "lmsys", "limits": {"max_prompt_len": 40, "max_output_len": 30}},
        "system": {"progress_on_evict": "kept", "requeue": "back"},
        "overflow": "clear",
        "queue_order": "predicted",
        "information": ("predicted_length",),
    },
)


def finish(env, seed, masked, evicts=0.05):
    """Play an episode to its completion; return the rewards."""
    env.action_space.seed(seed)
    rng = np.random.default_rng(seed)
    q, a = env.config.queue_window, env.config.active_window
    rewards, terminated = [], False
    while not terminated:
        mask = env.sample_mask() if masked else None
        action = env.action_space.sample(mask)
        if env.config.action == "tokens":
            action[-1] = -1.0  # a wait without future arrivals lasts until the horizon
        if rng.random() > evicts:  # few evictions, so that episodes end
            if env.config.action == "flags":
                action[q:] = 0
            elif env.config.action == "admit_evict" and q <= action < q + a:
                action = q + a
            elif env.config.action == "tokens":
                action[2 * q : 2 * (q + a) : 2] = 1.0
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        assert not truncated
    return rewards, info


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
@pytest.mark.parametrize(
    ("epochs", "system"),
    others_long(
        list(itertools.product(["iteration", "decision"], range(len(SYSTEMS)))),
        {(("iteration", "decision")[k % 2], k) for k in range(len(SYSTEMS))},
    ),
)
@pytest.mark.parametrize("action", dict.fromkeys(IDS.values()))
def test_return_identity(action, system, epochs, masked):
    for scale in (None, 1.0):
        env = plain_env(
            action=action, epochs=epochs, reward_scale=scale, horizon=1e6, queue_window=4, active_window=4,
            **SYSTEMS[system],
        )  # fmt: skip
        for seed in (3, 4):
            env.reset(seed=seed)
            rewards, info = finish(env, seed, masked)
            result = env.result()
            metrics = compute_metrics(result)
            total = metrics["e2e_latency_mean"] * metrics["finished"]
            assert metrics["finished"] == len(result.table)
            expected = -total / (len(result.table) if scale is None else scale)
            assert sum(rewards) == pytest.approx(expected, rel=1e-9)
            assert info["completed"]
            np.testing.assert_array_equal(info["metrics"], list(metrics.values()))
            if scale is None:
                assert sum(rewards) == pytest.approx(-metrics["e2e_latency_mean"], rel=1e-9)


@pytest.mark.parametrize("epochs", ["iteration", "decision"])
@pytest.mark.parametrize("action", dict.fromkeys(IDS.values()))
def test_truncated_return_is_the_time_in_the_system(action, epochs):
    """At a horizon, unfinished requests count until the end of the episode."""
    env = plain_env(action=action, epochs=epochs, horizon=25.0, reward_scale=1.0, **SYSTEMS[0])
    for seed in range(4):
        env.reset(seed=seed)
        env.action_space.seed(seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, info = env.step(env.action_space.sample(env.sample_mask()))
            total, ended = total + reward, terminated or truncated
        result = env.result()
        left = np.where(
            np.isnan(result.requests["finish_time"]), info["time"], result.requests["finish_time"]
        )
        inside = np.maximum(left - result.table.arrival_time, 0.0)
        assert total == pytest.approx(-inside.sum(), rel=1e-9)
        assert truncated
        assert not info["completed"]


def test_skipped_epochs_give_the_same_schedule():
    """With the same admissions wherever there is a choice, epochs only change the number of steps."""
    totals, steps = [], []
    for epochs in ("iteration", "decision"):
        env = plain_env(action="admit_count", epochs=epochs, **SYSTEMS[1])
        env.reset(seed=1)
        total, ended, count = 0.0, False, 0
        while not ended:
            _, reward, terminated, truncated, _ = env.step(int(env.action_masks().sum()) - 1)
            total, ended, count = total + reward, terminated or truncated, count + 1
        totals.append(total)
        steps.append(count)
    assert totals[0] == pytest.approx(totals[1], rel=1e-12)
    assert steps[1] < steps[0]
