"""With the defaults of an id, everything that runs and waits is in view, so that plain schedulers can be played."""

import gymnasium as gym
import pytest

import kvgym
from kvgym.envs.demonstrations.dataset import record_dataset

CHOOSING = ["kvgym/AdmitCount-v0", "kvgym/AdmitEvict-v0", "kvgym/Flags-v0", "kvgym/Tokens-v0"]
BUSIEST = 2
"""The seed below 8 with the most running requests, 157; 195 wait."""


@pytest.mark.parametrize("name", CHOOSING)
def test_fcfs_is_played_as_it_is_simulated(name):
    env = gym.make(name, information=(), num_requests=1000, rate=8.5, disable_env_checker=True)
    (episode,) = record_dataset(env, "fcfs", workload_seeds=[BUSIEST])
    scenario = env.unwrapped.config.make_scenario()
    latency = kvgym.compare(scenario, ["fcfs"], seeds=[BUSIEST]).estimate("fcfs", "e2e_latency_mean").value
    assert episode.terminated
    assert episode.rewards.sum() == pytest.approx(-latency, rel=1e-9)
