"""The routing environment: schedules as in simulate, rewards by hand and in total, masks, texts and pictures."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from helpers.environments.routing_play import (
    APART,
    CLUSTERS,
    SMALL,
    TIGHT,
    features,
    random_episode,
    same_schedule,
)
from kvgym.envs.routing.agents import play_router
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.errors import ConfigError
from kvgym.policies.routing import Router, RouterInfo

# ---------------------------------------------------------------- schedules and returns


class Zigzag(Router):
    """A router in plain Python that uses the request and the workers."""

    info = RouterInfo(name="zigzag", summary="by prompt, clock and free memory")

    def reset(self, num_workers, seed):
        self.rng = np.random.default_rng(seed)

    def route(self, view):
        free = (view.column("kv_capacity") - view.column("kv_tokens"))[view.candidates]
        if self.rng.random() < 0.5:
            return view.candidates[int(np.argmax(free))]
        return view.candidates[int(view.request.prompt_len[0] + 10 * view.clock) % len(view.candidates)]


@pytest.mark.parametrize("policy", ["mc_sf", "fcfs", "sarathi:token_budget=64"])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    "router", ["round_robin", "uniform_random", "join_shortest_queue", "least_outstanding_work", Zigzag()]
)
def test_a_router_gives_the_schedule_of_simulate(router, cluster, policy):
    env = RoutingEnv(policy=policy, horizon=1e5, **TIGHT, **CLUSTERS[cluster])
    for seed in (0, 3):
        result, total = play_router(env, router, workload_seed=seed)
        expected = kvgym.simulate(
            env.config.make_scenario().make_system(), result.table, policy, router=router, seed=seed
        )
        assert result.completed
        assert same_schedule(result, expected)
        np.testing.assert_array_equal(result.worker["iteration"], expected.worker["iteration"])
        np.testing.assert_array_equal(result.gap_counts, expected.gap_counts)
        latency = expected.requests["finish_time"] - expected.table.arrival_time
        assert total == pytest.approx(-latency.sum() / len(latency), rel=1e-9)


def test_routers_differ():
    env = RoutingEnv(policy="fcfs", horizon=1e5, **{**TIGHT, "rate": 50.0})
    found = {play_router(env, r)[1] for r in ("round_robin", "uniform_random", "join_shortest_queue")}
    assert len(found) == 3


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_step_per_choice(cluster):
    """New requests need a step, and prefilled ones another, unless there is only one worker."""
    env = RoutingEnv(**TIGHT, **CLUSTERS[cluster])
    steps = random_episode(env, 1)
    asked = [info["request"] for info in (steps[0][1], *(step[4] for step in steps[1:-1]))]
    n = len(env.result().table)
    once = sorted([*range(n)] * (2 if cluster == "apart" else 1))
    if cluster in ("equal", "unlike"):
        assert asked == once
    elif cluster == "apart":  # those of one output token are done after the prefill
        assert {*asked} == {*once}
        assert sum(asked.count(i) == 2 for i in range(n)) == (env.result().table.output_len > 1).sum()
    else:
        assert sorted(asked) == np.flatnonzero(env.result().table.output_len > 1).tolist()
    assert steps[-1][4]["request"] == -1
    times = [step[4]["time"] for step in steps[1:]]
    assert times == sorted(times)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("scale", [None, 1.0])
def test_totals_agree_with_the_metrics(cluster, scale):
    weights = dict(zip(REWARD_TERMS, (1.0, 0.5, 0.25, 2.0, 0.125), strict=True))
    env = RoutingEnv(policy="fcfs", reward=weights, reward_scale=scale, **TIGHT, **CLUSTERS[cluster])
    steps = random_episode(env, 5)
    terms = sum(step[4]["reward_terms"] for step in steps[1:])
    metrics, table = dict(zip(env.metric_names, steps[-1][4]["metrics"], strict=True)), env.result().table
    found = dict(zip(REWARD_TERMS, terms * (scale or len(table)), strict=True))
    assert found["latency"] == pytest.approx(-len(table) * metrics["e2e_latency_mean"], rel=1e-9)
    assert found["ttft"] == pytest.approx(-len(table) * metrics["ttft_mean"], rel=1e-9)
    assert found["tokens"] == pytest.approx(table.output_len.sum())
    assert found["goodput"] == pytest.approx(len(table))
    assert found["evictions"] == pytest.approx(-metrics["recomputed_tokens"])
    assert metrics["evictions"] > 0
    for step in steps[1:]:
        weighted = sum(w * x for w, x in zip(weights.values(), step[4]["reward_terms"], strict=True))
        assert step[1] == pytest.approx(weighted)


def by_hand(workload, **arguments):
    """Return an environment of two workers in slotted time, with a second per batch and unscaled rewards."""
    return RoutingEnv(
        scenario="mc-sf-model-2", workers=2, policy="fcfs", workload=workload, reward_scale=1.0, **arguments
    )


def terms(latency=0.0, ttft=0.0, tokens=0.0, goodput=0.0, evictions=0.0):
    return [latency, ttft, tokens, goodput, evictions]


def test_terms_by_hand(requests_of):
    """Requests 0 (2 tokens) and 1 (1 token) arrive at 0; 2 (1 token) arrives at 1, when 1 has just finished."""
    env = by_hand(requests_of((0, 6, 2), (0, 10, 1), (1, 3, 1)))
    _, info = env.reset(seed=0)
    assert (info["time"], info["request"], info["reward_terms"].tolist()) == (0, 0, [0] * 5)
    found = [env.step(action) for action in (0, 1, 0)]
    assert [step[4]["reward_terms"].tolist() for step in found] == [
        terms(),
        terms(latency=-2, ttft=-1, tokens=2, goodput=1),
        terms(latency=-2, ttft=-2, tokens=2, goodput=2),
    ]
    assert [step[1] for step in found] == [0, -2, -2]
    assert [(step[2], step[4]["time"], step[4]["request"]) for step in found] == [
        (False, 0, 1),
        (False, 1, 2),
        (True, 2, -1),
    ]
    assert env.result().requests["worker"].tolist() == [0, 1, 0]
    assert found[-1][4]["completed"]


def test_time_in_an_empty_system_costs_nothing(requests_of):
    env = by_hand(requests_of((0, 6, 1), (0.5, 3, 1), (10, 4, 1)))
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(3)] == [-0.5, -0.5 - 1.5, -1.0]


@pytest.mark.parametrize(("ttft_slo", "tbt_slo", "good"), [(1.0, 1.0, 1), (0.5, 9, 0), (9, 0.5, 0)])
def test_goodput(ttft_slo, tbt_slo, good, requests_of):
    workload = requests_of((0, 4, 3), classes=[{"ttft_slo": ttft_slo, "tbt_slo": tbt_slo}])
    env = by_hand(workload, reward={"goodput": 2.0})
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(1)
    assert (reward, terminated) == (2.0 * good, True)
    assert dict(zip(env.metric_names, info["metrics"], strict=True))["slo_attainment"] == good


# ---------------------------------------------------------------- ends


def test_unfinished_requests_count_until_the_horizon():
    env = RoutingEnv(horizon=0.6, reward_scale=1.0, **TIGHT)
    steps = random_episode(env, 2)
    result, info = env.result(), steps[-1][4]
    assert steps[-1][2:4] == (False, True)
    assert not info["completed"]
    assert 0 < (result.requests["status"] == 3).sum() < len(result.table)
    left = np.where(np.isnan(result.requests["finish_time"]), info["time"], result.requests["finish_time"])
    inside = np.maximum(left - result.table.arrival_time, 0).sum()
    assert sum(step[1] for step in steps[1:]) == pytest.approx(-inside, rel=1e-9)


def test_an_episode_that_is_over_before_it_begins():
    workload = {"preset": "mcsf-model-2", "arrivals": {"start": 50}}
    env = RoutingEnv(scenario="mc-sf-model-2", workload=workload, horizon=10.0)
    _, info = env.reset(seed=0)
    assert info["action_mask"].all()
    assert info["request"] == -1
    _, reward, terminated, truncated, info = env.step(2)
    assert (reward, terminated, truncated, info["completed"]) == (0.0, False, True, False)
    assert info["time"] <= 10
    result, total = play_router(env, "round_robin")
    assert total == 0
    assert not result.completed


def test_a_livelock_truncates(requests_of):
    """A scheduler that protects nearly all memory never admits the request."""
    env = RoutingEnv(
        scenario="mc-sf-model-2", workers=2, policy="alpha_greedy:alpha=0.9,strict=True", stall_limit=20,
        reward_scale=1.0, workload=requests_of((0, 6, 1), (1, 1, 1)),
    )  # fmt: skip
    env.reset(seed=0)
    assert not any(env.step(0)[2:4])
    _, reward, terminated, truncated, info = env.step(1)
    assert (terminated, truncated, info["completed"]) == (False, True, False)
    assert reward < -10
    assert not any(env.reset(seed=0)[1]["reward_terms"])
    assert not any(env.step(0)[2:4])


def test_stepping_needs_a_reset():
    env = RoutingEnv(**SMALL)
    for call in (lambda: env.step(0), env.result, lambda: env.view):
        with pytest.raises(gym.error.ResetNeeded):
            call()
    random_episode(env, 0)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.close()
    env.close()


def test_time_before_the_first_choice_counts_in_the_first_step(requests_of):
    """The only prefill worker needs no choice; request 1 is done after its prefill, 0 is handed over at 1."""
    apart = [{"role": "prefill"}, {"role": "decode", "count": 2}]
    arguments = {"scenario": "mc-sf-model-2", "policy": "fcfs", "reward_scale": 1.0, "workers": apart}
    env = RoutingEnv(workload=requests_of((0, 6, 2), (0, 5, 1)), **arguments)
    _, info = env.reset(seed=0)
    assert (info["time"], info["request"], info["reward_terms"].tolist()) == (1, 0, [0] * 5)
    _, reward, terminated, _, info = env.step(2)
    assert (reward, terminated, info["time"]) == (-3, True, 2)
    assert info["reward_terms"].tolist() == terms(latency=-3, ttft=-2, tokens=3, goodput=2)
    env = RoutingEnv(workload=requests_of((0, 6, 1), (0, 5, 1)), **arguments)  # never a choice
    assert env.reset(seed=0)[1]["request"] == -1
    _, reward, terminated, _, info = env.step(0)
    assert (reward, terminated, info["time"]) == (-2, True, 1)


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_masks(cluster):
    env = RoutingEnv(**TIGHT, **CLUSTERS[cluster])
    _, info = env.reset(seed=0)
    ended = False
    while not ended:
        expected = [k in env.view.candidates for k in range(env.action_space.n)]
        assert sum(expected) > 1
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == expected == env.action_masks().tolist()
        assert [features(env)[f"worker.{k}.candidate"] for k in range(len(expected))] == expected
        handed_over = cluster in ("apart", "lonely") and not expected[0]
        assert features(env)["request.handover"] == handed_over
        _, _, ended, _, info = env.step(env.action_space.sample(info["action_mask"]))
        assert info["ignored"] == 0
    assert info["action_mask"].all()


@pytest.mark.parametrize("action", [0, 1, np.int64(1)])
def test_a_masked_out_action_joins_the_shortest_queue(action):
    arguments = {**TIGHT, "workers": APART}
    env, twin = RoutingEnv(**arguments), RoutingEnv(**arguments)
    for one in (env, twin):
        one.reset(seed=0)
        while one.view.candidates.start == 0:
            one.step(0)
    for _ in range(10):
        if env.view.candidates.start == 0:
            break
        load = env.view.column("outstanding_requests")[2:]
        *_, info = env.step(action)
        assert info["ignored"] == 1
        assert twin.step(2 + int(np.argmin(load)))[4]["ignored"] == 0
        assert same_schedule(env.result(), twin.result())


def test_play_refuses_invalid_choices():
    class Wrong(Router):
        info = RouterInfo(name="wrong", summary="always the first worker")

        def route(self, view):
            return 0

    env = RoutingEnv(**TIGHT, workers=APART)
    with pytest.raises(ConfigError, match="router 'wrong' chose worker 0"):
        play_router(env, Wrong())


# ---------------------------------------------------------------- rendering


def test_text(requests_of):
    env = by_hand(requests_of((0, 20, 2), (0, 10, 1), (0.5, 3, 1)), render_mode="ansi")
    with pytest.raises(gym.error.ResetNeeded):
        env.render()
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    text = env.render().splitlines()
    assert text[0] == "t = 0.500 s   0 finished, 0 evictions"
    assert text[1] == "request 2: 3 prompt tokens, 1 output tokens predicted"
    assert [line.split()[:2] for line in text[4:6]] == [[">", "0"], [">", "1"]]
    assert text[4].split()[-3:] == ["2", "0", "0"]
    assert text[5].split()[-3:] == ["0", "0", "0"]
    assert all(len(line) <= 80 for line in text)
    env.step(1)
    assert "nothing left to route" in env.render()
    assert "3 finished" in env.render()
    blind = by_hand(requests_of((0, 20, 2)), render_mode="ansi", information=[])
    blind.reset(seed=0)
    assert blind.render().splitlines()[1] == "request 0: 20 prompt tokens"


def test_picture():
    env = RoutingEnv(render_mode="rgb_array", **TIGHT)
    env.reset(seed=0)
    first = env.render()
    assert (first.shape, first.dtype) == ((600, 800, 3), np.uint8)
    np.testing.assert_array_equal(first, env.render())
    for _ in range(30):
        env.step(int(np.argmax(env.action_masks())))
    assert (env.render() != first).any()
    assert (np.abs(env.render().astype(int) - (0, 0x72, 0xB2)).sum(axis=2) == 0).sum() > 50  # a bar in blue


def test_rendering_needs_a_mode():
    env = RoutingEnv(**SMALL)
    with pytest.warns(UserWarning, match="needs render_mode"):
        assert env.render() is None
