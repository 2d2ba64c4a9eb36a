"""With the defaults of an id, everything that runs and waits is in view, so that plain schedulers can be played."""

import gymnasium as gym
import pytest

import kvgym
from kvgym.envs.demonstrations.dataset import record_dataset

CHOOSING = ["kvgym/AdmitCount-v1", "kvgym/AdmitEvict-v1", "kvgym/Flags-v1", "kvgym/Tokens-v1"]
BUSIEST = 2
"""The seed below 8 with the most running requests, 157; 195 wait."""


@pytest.mark.parametrize("version", CHOOSING)
def test_fcfs_is_played_as_it_is_simulated(version):
    env = gym.make(version, information=(), num_requests=1000, rate=8.5, disable_env_checker=True)
    (episode,) = record_dataset(env, "fcfs", workload_seeds=[BUSIEST])
    scenario = env.unwrapped.config.make_scenario()
    latency = kvgym.compare(scenario, ["fcfs"], seeds=[BUSIEST]).estimate("fcfs", "e2e_latency_mean").value
    assert episode.terminated
    assert episode.rewards.sum() == pytest.approx(-latency, rel=1e-9)


@pytest.mark.parametrize("version", CHOOSING)
def test_earlier_versions_keep_their_scenario_and_windows(version):
    config = gym.make(version.replace("v1", "v0"), num_requests=5).unwrapped.config
    assert (config.scenario, config.queue_window, config.active_window) == ("a100-llama2-70b", 16, 16)
