"""Datasets: whole episodes, replayed and as Minari stores them."""

import gymnasium as gym
import numpy as np
import pytest

import kvgym
from kvgym.envs.demonstrations.dataset import record_dataset, write_minari
from kvgym.errors import ConfigError, UnknownNameError

SMALL = {"scenario": "a100-llama2-70b", "num_requests": 12, "rate": 20, "information": ()}


def make(**changes):
    return gym.make("kvgym/AdmitCount-v0", **{**SMALL, **changes})


@pytest.fixture(scope="module")
def episodes():
    return record_dataset(make(), "fcfs", workload_seeds=[3, 4])


def test_episodes_are_whole_and_can_be_replayed(episodes):
    env = make()
    scenario = env.unwrapped.config.make_scenario()
    for seed, episode in zip((3, 4), episodes, strict=True):
        latency = kvgym.compare(scenario, ["fcfs"], seeds=[seed]).estimate("fcfs", "e2e_latency_mean").value
        assert episode.rewards.sum() == pytest.approx(-latency)
        assert episode.terminated
        assert len(episode.observations) == len(episode.masks) == len(episode.actions) + 1
        observation, _ = env.reset(seed=seed, options={"workload_seed": seed})
        for k, action in enumerate(episode.actions):
            np.testing.assert_array_equal(observation, episode.observations[k])
            np.testing.assert_array_equal(env.unwrapped.action_masks(), episode.masks[k])
            observation, reward, *_ = env.step(action)
            assert reward == episode.rewards[k]
        np.testing.assert_array_equal(observation, episode.observations[-1])


def test_an_agent_plays_itself(episodes):
    class Same:
        def predict(self, observation, action_masks, deterministic=True):
            return int(action_masks.nonzero()[0][-1]), None

    agent = kvgym.AgentPolicy(Same(), action="admit_count", must_admit=True, queue_window=256, **SMALL)
    (found,) = record_dataset(make(), agent, workload_seeds=[3])
    assert found.terminated
    assert (found.actions == [mask.nonzero()[0][-1] for mask in found.masks[:-1]]).all()
    with pytest.raises(ConfigError, match="the agent acts in an environment with action"):
        record_dataset(make(queue_window=3), agent, workload_seeds=[3])


@pytest.mark.parametrize(
    ("name", "player"), [("Route", "least_outstanding_work"), ("Scale", "hpa:target=6"), ("Route", "random")]
)
def test_players_of_clusters_can_be_replayed(name, player):
    env = gym.make(f"kvgym/{name}-v0", num_requests=40)
    (episode,) = record_dataset(env, player, workload_seeds=[5])
    env.reset(seed=5, options={"workload_seed": 5})
    rewards = [env.step(action)[1] for action in episode.actions]
    assert rewards == episode.rewards.tolist()
    assert len(episode.observations) == len(rewards) + 1
    assert episode.terminated
    with pytest.raises(UnknownNameError, match="fcfs"):
        record_dataset(env, "fcfs")


def test_other_environments_are_refused():
    with pytest.raises(ConfigError, match="expected an environment of kvgym"):
        record_dataset(gym.make("CartPole-v1"), "random")


def test_minari_gives_back_what_was_recorded(episodes, tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_minari("kvgym/test/fcfs-v0", make(), episodes, algorithm="fcfs")
    found = minari.load_dataset("kvgym/test/fcfs-v0")
    for stored, episode in zip(found.iterate_episodes(), episodes, strict=True):
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(episode, name))
        np.testing.assert_array_equal(stored.infos["action_mask"], episode.masks)
    assert found.recover_environment().unwrapped.config.action == "admit_count"


def test_a_missing_minari_is_named(episodes, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(ConfigError, match=r"kvgym\[minari\]"):
        write_minari("x-v0", make(), episodes)
