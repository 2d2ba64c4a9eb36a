"""Train a small network on a task of the benchmark in one file, with PyTorch alone, and enter it.

    python scripts/examples/train_on_task.py                                  # about two minutes
    PYTHONPATH=scripts/examples kvgym benchmark train_on_task:Mine --name mine

REINFORCE in kvgym/Priority-v0: the network chooses the length that the scheduler below takes as predicted. The
environments of a pair serve the same requests, with noise of opposite signs: a difference between their latencies is
due to the decisions.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kvgym
from kvgym.envs import feature_names

TASK, WEIGHTS = "hidden-kinds", Path(__file__).with_suffix(".pt")
OPTIONS: dict[str, Any] = {"scheduler": "ranked_latency"}
FIRST_VALIDATION = 1_000_000


class Network(torch.nn.Module):
    """A mean for each observation, in [-1, 1] as the environment takes actions; one deviation for all."""

    def __init__(self, inputs: int) -> None:
        """Make the layers; the only input is the feature at place ``inputs``, standardised."""
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.register_buffer("place", torch.tensor([inputs]))
        self.register_buffer("centre", torch.zeros(1))
        self.register_buffer("spread", torch.ones(1))
        self.deviation = 0.12  # a factor of two

    def forward(self, observation: Any) -> torch.Tensor:
        """Return the means, of the observation's shape without its last axis."""
        x = torch.as_tensor(observation)[..., self.place]
        return self.deviation * self.body((x - self.centre) / self.spread)[..., 0]

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Return the action of one observation, or of several, as :class:`kvgym.AgentPolicy` requests them."""
        with torch.no_grad():
            return self(observation).clip(-1, 1)[..., None].numpy(), None


def play(envs: Any, network: Network, noise: float, **start: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Play an episode in each environment.

    Returns:
        Its return (N,), the logarithm of the density of its actions (N,), and all observations.
    """
    observation, _ = envs.reset(**start)
    logs, returns = torch.zeros(envs.num_envs), torch.zeros(envs.num_envs)
    seen, over = [], np.zeros(envs.num_envs, bool)
    signs = torch.tensor([1.0, -1.0]).repeat(envs.num_envs // 2)
    while not over.all():
        seen.append(observation.copy())
        mean = network(observation)
        normal = torch.distributions.Normal(mean, network.deviation)
        drawn = torch.randn(envs.num_envs // 2).repeat_interleave(2) * signs
        action = (mean + noise * network.deviation * drawn).detach()
        logs = logs + normal.log_prob(action) * torch.as_tensor(~over)
        observation, reward, ended, cut, _ = envs.step(action.clip(-1, 1)[:, None].numpy())
        returns += torch.as_tensor(reward * ~over)
        over |= ended | cut
    return returns, logs, np.concatenate(seen)


def train(updates: int, seed: int, num_envs: int = 64) -> None:
    """Train a network, and save the best of every tenth on validation seeds."""
    torch.manual_seed(seed)
    envs = kvgym.make_task(TASK, num_envs, group_size=2, **OPTIONS)
    validation = kvgym.make_task(TASK, 16, **OPTIONS)
    seeds = {"options": {"workload_seed": range(FIRST_VALIDATION, FIRST_VALIDATION + 16)}}
    network = Network(feature_names(envs.unwrapped.config).index("asked.prompt"))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    inputs = play(envs, network, 0.0, seed=seed)[2][:, network.place.item()]
    network.centre[:], network.spread[:] = float(inputs.mean()), float(inputs.std())
    best = np.inf
    for update in range(updates + 1):
        if update % 10 == 0:
            with torch.no_grad():
                latency = -play(validation, network, 0.0, **seeds)[0].mean().item()
            print(f"update {update}: {latency:.2f} s on validation seeds", flush=True)
            if latency < best:
                best = latency
                torch.save(network.state_dict(), WEIGHTS)
        returns, logs, _ = play(envs, network, 1.0)
        pairs = returns.reshape(-1, 2)
        advantage = (pairs - pairs.mean(1, keepdim=True)).ravel() / pairs.std(1).mean()
        optimizer.zero_grad()
        (-(logs * advantage).mean()).backward()
        optimizer.step()


class Mine(kvgym.AgentPolicy):
    """The trained network as an entry of the benchmark."""

    def __init__(self) -> None:
        """Load the weights; the environment's arguments are those of the training."""
        network = Network(0)
        network.load_state_dict(torch.load(WEIGHTS))
        super().__init__(network, name="mine", **kvgym.make_task(TASK, **OPTIONS).spec.kwargs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.updates, options.seed)
