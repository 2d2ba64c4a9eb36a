"""Train a small network on a task of the benchmark in one file, with PyTorch alone, and enter it.

    python scripts/examples/train_on_task.py --updates 60                     # about a minute
    PYTHONPATH=scripts/examples kvgym benchmark train_on_task:Mine --name mine

REINFORCE in kvgym/Priority-v0: environments of a group serve the same requests, so that a difference between their
latencies is due to the decisions; the network chooses the length that the scheduler below takes as predicted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kvgym

TASK, WEIGHTS = "hidden-kinds", Path(__file__).with_suffix(".pt")
OPTIONS: dict[str, Any] = {"scheduler": "ranked_latency"}


class Network(torch.nn.Module):
    """A mean for each observation, in [-1, 1] as the environment takes actions; one deviation for all."""

    def __init__(self, inputs: int) -> None:
        """Make the layers."""
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.deviation = 0.12  # two thirds of a factor of two

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the means, (n, 1)."""
        return self.body(observation)

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Return actions, as :class:`kvgym.AgentPolicy` requests them."""
        with torch.no_grad():
            return self(torch.as_tensor(observation)).clip(-1, 1).numpy(), None


def train(updates: int, seed: int, num_envs: int = 64) -> Network:
    """Train a network; print the mean latency of each tenth update's episodes."""
    torch.manual_seed(seed)
    envs = kvgym.make_task(TASK, num_envs, group_size=8, **OPTIONS)
    network = Network(envs.single_observation_space.shape[0])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    for update in range(updates):
        observation, _ = envs.reset(seed=(1000 * seed + update) * num_envs)
        logs, returns, over = [], np.zeros(num_envs), np.zeros(num_envs, bool)
        while not over.all():
            normal = torch.distributions.Normal(network(torch.as_tensor(observation)), network.deviation)
            action = normal.sample()
            logs.append(normal.log_prob(action)[:, 0] * torch.as_tensor(~over))
            observation, reward, ended, cut, _ = envs.step(action.clip(-1, 1).numpy())
            returns += reward * ~over
            over |= ended | cut
        groups = returns.reshape(-1, 8)
        advantage = torch.as_tensor(((groups - groups.mean(1, keepdims=True)) / groups.std()).ravel())
        loss = -(torch.stack(logs).sum(0) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 0:
            print(f"update {update}: {-returns.mean():.2f} s", flush=True)
    return network


class Mine(kvgym.AgentPolicy):
    """The trained network as an entry of the benchmark."""

    def __init__(self) -> None:
        """Load the weights; the environment's arguments are those of the training."""
        env = kvgym.make_task(TASK, **OPTIONS)
        network = Network(env.observation_space.shape[0])
        network.load_state_dict(torch.load(WEIGHTS))
        super().__init__(network, name="mine", **env.spec.kwargs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.save(train(options.updates, options.seed).state_dict(), WEIGHTS)
