"""Rewards relative to a reference policy: its rewards by hand, and sums of returns."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from kvgym.envs.agents import action_of
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.reward_reference import ReferenceRewards
from kvgym.errors import ConfigError, KVGymError
from kvgym.policies.policy import Policy, PolicyInfo
from kvgym.policies.runner import system_info

CLASSES = [{"ttft_slo": 4.0, "tbt_slo": 2.0}]
REFERENCE = "alpha_beta:alpha=0.2,beta=0.3"
WEIGHTS = (
    {"latency": 1.0},
    {"ttft": 2.0},
    {"goodput": 1.0},
    {"latency": 0.5, "ttft": 1.0, "goodput": -3.0},
    {"latency": 1.0, "tokens": 0.0},
)


def make(**arguments):
    """Return an environment of 30 requests in slotted time, with targets that some of them miss."""
    return ServingEnv(**{
        "action": "admit_count", "scenario": "mc-sf-model-2", "num_requests": 30, "horizon": 1e5,
        "workload": {"preset": "mcsf-model-2", "classes": CLASSES}, "reward_reference": REFERENCE, **arguments,
    })  # fmt: skip


def play(env, seed):
    """Play an episode at random; return the rewards, the weighted terms and the last clock."""
    env.reset(options={"workload_seed": seed})
    env.action_space.seed(seed)
    rewards, own, ended = [], 0.0, False
    while not ended:
        _, reward, terminated, truncated, info = env.step(env.action_space.sample(env.sample_mask()))
        terms = dict(zip(env.reward_terms, info["reward_terms"].tolist(), strict=True))
        own += sum(weight * terms[name] for name, weight in env.config.reward.items())
        rewards.append(reward)
        ended = terminated or truncated
    assert env.result().completed == terminated
    return rewards, own


def return_of(run, reward, scale):
    """Return the return of a policy's run, computed from its records."""
    r, arrival, end = run.requests, run.table.arrival_time, float(run.worker[0]["clock"])
    done = ~np.isnan(r["finish_time"])
    ttft = r["first_token_time"] - arrival
    inside = np.maximum(np.where(done, r["finish_time"], end) - arrival, 0.0)[arrival < run.system.horizon]
    good = (ttft <= CLASSES[0]["ttft_slo"]) & (r["max_token_gap"] <= CLASSES[0]["tbt_slo"])
    terms = {"latency": -inside.sum(), "ttft": -ttft[done].sum(), "goodput": float((good & done).sum())}
    return sum(weight * terms.get(name, 0.0) for name, weight in reward.items()) / scale


@pytest.mark.parametrize("horizon", [1e5, 30.0], ids=["completed", "cut short"])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("reward", WEIGHTS, ids="-".join)
def test_the_return_is_the_relative_improvement(reward, scale, horizon):
    env = make(reward=reward, reward_scale=scale, horizon=horizon)
    for seed in range(3):
        rewards, own = play(env, seed)
        table = env.episodes.workload.sample(seed)
        run = kvgym.simulate(env.episodes.system, table, REFERENCE, seed=seed)
        assert run.completed == (horizon == 1e5)
        expected = return_of(run, reward, 30 if scale is None else scale)
        assert sum(rewards) == pytest.approx((own - expected) / abs(expected), rel=1e-9, abs=1e-9)
        assert len(rewards) > 10
        if run.completed and reward == {"latency": 1.0} and scale is None:
            mean = kvgym.compute_metrics(run)["e2e_latency_mean"]
            assert sum(rewards) == pytest.approx(own / mean + 1, abs=1e-9)


def test_the_reference_itself_earns_nothing():
    """At every step the reference's own decisions have a reward of 0."""
    env = make(action="admit_evict", reward_reference="fcfs", queue_window=30, active_window=30)
    policy = kvgym.make_policy("fcfs")
    env.reset(options={"workload_seed": 2})
    table = env.episodes.slots[0].table
    policy.reset(system_info(env.episodes.system, table, 2, policy.info.needs))
    ended = False
    while not ended:
        for action in action_of(env, policy.schedule(env.view)):
            _, reward, ended, _, _ = env.step(action)
            assert reward == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("horizon", [np.inf, 12.0])
def test_rewards_of_a_policy_up_to_any_moment(horizon):
    """They equal the time in the system, summed request by request."""
    env = make(horizon=None if horizon == np.inf else horizon)
    run = kvgym.simulate(env.episodes.system, env.episodes.workload.sample(1), "fcfs")
    found = ReferenceRewards(run, {"latency": 2.0, "ttft": 1.0}, 5.0)
    end = float(run.worker[0]["clock"])
    r, arrival = run.requests, run.table.arrival_time
    finish = np.where(np.isnan(r["finish_time"]), np.inf, r["finish_time"])
    for time in [*np.linspace(-1.0, end + 5.0, 60), *finish[finish < np.inf], np.inf]:
        inside = np.maximum(np.minimum(finish, min(time, end)) - arrival, 0.0)[arrival < horizon].sum()
        waits = (r["first_token_time"] - arrival)[(finish < np.inf) & (finish <= time)].sum()
        assert found.until(time) == pytest.approx(-(2 * inside + waits) / 5, rel=1e-12, abs=1e-12)
    early, rest = found.step(5.0, False), found.step(6.0, True)
    assert early == found.until(5.0)
    assert early + rest == pytest.approx(found.until(np.inf), rel=1e-12)
    assert found.total == pytest.approx(-found.until(np.inf))


def test_by_hand(requests_of):
    """Together both take 2 s; one after the other, 2 s and 4 s. The reference serves them together."""
    workload = requests_of((0, 4, 2), (0, 4, 2))
    env = ServingEnv(
        action="admit_count", scenario="mc-sf-model-2", workload=workload, queue_window=2,
        reward_reference="fcfs",
    )  # fmt: skip
    env.reset(seed=0)
    rewards = [env.step(action)[1] for action in (1, 0, 1, 0)]
    # Per request, of 2 s: no difference while both are present, then (2 - 1) s of one request, twice.
    assert rewards == pytest.approx([0, 0, -0.25, -0.25])


def test_a_reference_with_a_return_of_zero():
    """If the return of the reference is 0, differences are not divided."""
    env = make(reward={"goodput": 1.0}, workload={"preset": "mcsf-model-2", "classes": [{"ttft_slo": 1e-9}]})
    rewards, own = play(env, 0)
    assert own == 0
    assert not np.any(rewards)
    over = make(workload={"preset": "mcsf-model-2", "arrivals": {"start": 50}}, horizon=10.0)
    over.reset(seed=0)
    _, reward, terminated, truncated, _ = over.step(0)
    assert (reward, terminated, truncated) == (0.0, False, True)


def test_the_stall_limit_does_not_apply_to_the_reference():
    """The stall limit ends the agent's episode, not the reference's run."""
    env = ServingEnv(
        action="admit_count", num_requests=20, stall_limit=1, reward_reference="sarathi:token_budget=64"
    )
    env.reset(seed=0)
    assert env.episodes.slots[0].reference.total > 0


class Slow(Policy):
    info = PolicyInfo(name="slow_for_a_test", summary="admits nothing")

    def schedule(self, view):
        return kvgym.Decision()


def test_invalid_references(monkeypatch):
    for reward in ({"latency": 1.0, "tokens": 0.1}, {"evictions": 1.0}):
        with pytest.raises(ConfigError, match="reward_reference supports"):
            make(reward=reward)
    monkeypatch.setattr("kvgym.envs.scheduling.reward_reference.make_policy", lambda spec: Slow())
    with pytest.raises(ConfigError, match="not a compiled policy"):
        make(reward_reference="slow_for_a_test")
    monkeypatch.undo()
    with pytest.raises(KVGymError):
        make(reward_reference="no_such_policy")
    with pytest.raises(ConfigError, match="predicted_length"):
        make(
            workload={"preset": "mcsf-model-2", "predictions": {"kind": "none"}}, information=[],
            reward_reference="mc_sf",
        )  # fmt: skip


def test_copies_keep_the_reference(equal):
    env = make()
    env.reset(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    assert copy.config.reward_reference == REFERENCE
    assert play(env, 4) == play(copy, 4)
    arguments = make().config.model_dump(exclude_defaults=True, exclude={"action"})
    vector = gym.make_vec("kvgym/AdmitCount-v0", 2, **arguments)
    vector.reset(seed=1)
    again = pickle.loads(pickle.dumps(vector.unwrapped))
    seeds = {"workload_seed": [7, 8]}
    assert equal(vector.reset(options=dict(seeds))[0], again.reset(options=dict(seeds))[0])
    total = np.zeros(2)
    for _ in range(60):
        ours, theirs = vector.step(np.array([1, 0])), again.step(np.array([1, 0]))
        np.testing.assert_array_equal(ours[1], theirs[1])
        total += ours[1]
    assert total[1] < 0


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_equals_scalar(mode):
    arguments = make(num_requests=3).config.model_dump(exclude_defaults=True, exclude={"action"})
    vector = gym.make_vec(
        "kvgym/AdmitCount-v0", 2, vectorization_mode="vector_entry_point", autoreset_mode=mode, **arguments
    )
    single = gym.make("kvgym/AdmitCount-v0", **arguments)
    vector.reset(seed=[5, 6])
    single.reset(seed=5)
    ended, episodes = False, 0
    for _ in range(400):
        rewards = vector.step(np.array([1, 0]))[1]
        if ended and mode == "NextStep":
            single.reset()
            assert rewards[0] == 0
            ended = False
            continue
        if ended:
            single.reset()
        _, reward, terminated, truncated, _ = single.step(1)
        assert rewards[0] == reward
        ended = terminated or truncated
        episodes += ended
    assert episodes > 2
