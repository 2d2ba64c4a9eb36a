"""Environments in the closed loop of sessions: schedules of policies, saved states, episodes of several sizes."""

from __future__ import annotations

import numpy as np
import pytest

import kvgym
from kvgym.envs.agents import play
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.environment import ServingEnv

CLOSED = {
    "scenario": "a100-llama2-70b",
    "batch_time": {"kind": "affine", "constant": 0.31, "per_prefill_token": 0.02, "per_context_token": 0.001},
    "kv_capacity": 120,
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 3.0},
        "lengths": {
            "kind": "independent",
            "prompt": {"kind": "uniform", "low": 1, "high": 12},
            "output": {"kind": "uniform", "low": 1, "high": 8},
        },
        "num_requests": 20,
        "predictions": {"kind": "exact"},
        "prefixes": {
            "turns": {"number": 4, "open": 5, "max_context": 90, "gaps": [{"median": 8.0, "mean": 12.0}]},
            "block": 4,
        },
    },
}
CACHE = {"prefix_cache": "computed", "prefix_block": 4, "progress_on_evict": "recompute"}


def scheduling(**system):
    return ServingEnv(**CLOSED, action="admit_count", compiled=False, system={"sessions": "closed", **system})


@pytest.mark.parametrize("system", [{}, CACHE], ids=["no cache", "prefix cache"])
def test_a_policy_has_the_schedule_of_a_simulation(system):
    env = scheduling(**system)
    result, _ = play(env, kvgym.make_policy("fcfs"), workload_seed=3)
    requests = env.episodes.requests(3)
    run = kvgym.simulate(env.episodes.system, requests, "fcfs")
    assert result.completed
    for name in ("start_time", "first_token_time", "finish_time", "num_evictions", "num_recomputed_tokens"):
        np.testing.assert_array_equal(result.requests[name], run.requests[name])
    np.testing.assert_array_equal(result.table.arrival_time, run.table.arrival_time)
    assert (run.table.arrival_time != requests.arrival_time).any()


def test_a_saved_state_goes_on_with_the_turns_that_are_to_come():
    env = scheduling(**CACHE)
    env.reset(seed=1)
    block, steps = env.episodes.slots[0].block, 0
    while not (block["scheduled"][0] > 1 and block["workers"][0]["total_finished"] > 0):
        env.step(1)
        steps += 1
    assert steps > 2
    state, ends = env.get_state(), []
    for _ in range(2):
        env.set_state(state)
        rewards = []
        while True:
            _, reward, terminated, truncated, _ = env.step(1)
            rewards.append(reward)
            if terminated or truncated:
                break
        ends.append((rewards, env.result().requests.tobytes()))
    assert ends[0] == ends[1]
    assert env.result().completed


def test_a_routing_environment_goes_on_from_a_saved_state():
    env = RoutingEnv(**CLOSED, workers=2, compiled=False, system={"sessions": "closed"})
    env.reset(seed=0)
    for k in range(8):
        env.step(k % 2)
    state, ends = env.get_state(), []
    for _ in range(2):
        env.set_state(state)
        ended, k = False, 0
        while not ended:
            _, _, terminated, truncated, _ = env.step(k % 2)
            ended, k = terminated or truncated, k + 1
        ends.append(env.result().requests.tobytes())
    assert ends[0] == ends[1]
    assert env.result().completed
