"""Agents in the routing environment and as routers."""

from __future__ import annotations

import numpy as np
import pytest

import kvgym
from helpers.environments.routing_play import (
    CLUSTERS,
    TIGHT,
    same_schedule,
)
from kvgym.envs.routing.agents import AgentRouter, play_router
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.errors import ConfigError

# ---------------------------------------------------------------- agents


class Hashing:
    """Chooses by a hash of the observation; without masks also outside the mask."""

    workers = 5

    def predict(self, observation, *, deterministic=True):
        parts = observation.values() if isinstance(observation, dict) else [observation]
        flat = np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
        number = int(abs(float(flat @ np.arange(1, len(flat) + 1))) * 1e6)
        return np.array(np.random.default_rng(number).integers(self.workers)), None


class Masked(Hashing):
    def predict(self, observation, *, deterministic=True, action_masks=None):
        allowed = np.flatnonzero(action_masks)
        return np.int64(allowed[int(super().predict(observation)[0]) % len(allowed)]), None


@pytest.mark.parametrize("model", [Hashing(), Masked()], ids=["plain", "masked"])
@pytest.mark.parametrize("observation", ["flat", "dict", "rllib"])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_agent_acts_in_simulate_as_in_the_environment(cluster, observation, model):
    arguments = {**TIGHT, **CLUSTERS[cluster], "observation": observation, "policy": "fcfs"}
    env = RoutingEnv(**arguments)
    model.workers = int(env.action_space.n)
    agent = AgentRouter(model, name="mine", **arguments)
    for seed in (0, 1):
        found, _ = env.reset(options={"workload_seed": seed})
        ended = False
        while not ended:
            masks = {"action_masks": env.action_masks()} if isinstance(model, Masked) else {}
            found, _, ended, _, _ = env.step(model.predict(found, **masks)[0])
        expected = kvgym.simulate(
            env.scenario.make_system(), env.result().table, "fcfs", router=agent, seed=seed
        )
        assert same_schedule(env.result(), expected)


def test_an_agent_on_another_cluster():
    agent = AgentRouter(Masked(), name="mine", **TIGHT, workers=3)
    assert repr(agent) == "mine()"
    env = RoutingEnv(**TIGHT, workers=4)
    with pytest.raises(ConfigError, match="'mine' was trained with 3 workers; this cluster has 4"):
        play_router(env, agent)
    system, table = RoutingEnv(**TIGHT, workers=3).system, env.workload.sample(0)
    blind = table.replace(predicted_output_len=None)
    with pytest.raises(ConfigError, match="requests have no predicted_output_len"):
        kvgym.simulate(system, blind, "fcfs", router=agent)


def test_training(tmp_path):
    contrib = pytest.importorskip("sb3_contrib")
    torch = pytest.importorskip("torch")
    from stable_baselines3.common.env_util import make_vec_env

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        arguments = {**TIGHT, "num_requests": 20, "policy": "fcfs"}
        env = make_vec_env("kvgym/Route-v0", 2, seed=0, env_kwargs=arguments)
        model = contrib.MaskablePPO(
            "MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu",
            policy_kwargs={"net_arch": [8]},
        )  # fmt: skip
        model.learn(128)
        assert len(model.ep_info_buffer) >= 4
        agent = AgentRouter(model, **arguments)
        task = RoutingEnv(**arguments)
        found, total = play_router(task, agent, workload_seed=3)
        again = kvgym.simulate(task.system, found.table, "fcfs", router=agent, seed=3)
        assert same_schedule(found, again)
        assert total < 0
    finally:
        torch.set_num_threads(threads)
