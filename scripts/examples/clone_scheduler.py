"""Clone a scheduler: record a dataset of its steps, fit a network to its answers, and compare the two.

    python scripts/examples/clone_scheduler.py
    python scripts/examples/clone_scheduler.py --id kvgym/AdmitCount-v0 --scheduler mc_sf

The clone is a model of sb3-contrib, so that MaskablePPO can train it further with ``model.learn``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from torch import Tensor

import kvgym
from kvgym.agents.sb3.networks import policy_for
from kvgym.envs import AgentPolicy
from kvgym.envs.demonstrations.dataset import record_dataset
from kvgym.experiments.changes import build_scenario

RUSH = {"scenario": "rush", "rate": 24, "num_requests": 400}
WINDOWS = {"queue_order": "predicted", "queue_window": 64, "active_window": 16}


class AtRandom:
    """Answers drawn from those that are possible."""

    rng = np.random.default_rng(0)

    def predict(self, observation: Any, deterministic: bool = True, action_masks: Any = None) -> Any:
        """Return an answer."""
        return self.rng.choice(np.flatnonzero(action_masks)), None


def recorded(env: Any, scheduler: str, seeds: Iterable[int]) -> list[Tensor]:
    """Return the observations, answers and masks of a scheduler's steps."""
    episodes = record_dataset(env, scheduler, workload_seeds=seeds)
    parts = [(each.observations[:-1], each.actions, each.masks[:-1]) for each in episodes]
    return [torch.as_tensor(np.concatenate(part)) for part in zip(*parts, strict=True)]


def cloned(env: Any, steps: list[Tensor], network: Any, epochs: int) -> MaskablePPO:
    """Return a model that gives the recorded answers with the highest likelihood."""
    policy, arguments = policy_for(network, "maskable_ppo", env.unwrapped.config)
    model = MaskablePPO(policy, env, policy_kwargs=arguments, seed=0, device="cpu")
    optimizer = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(steps[0])).split(512):
            log_likelihood = model.policy.evaluate_actions(*(part[rows] for part in steps))[1]
            optimizer.zero_grad()
            (-log_likelihood.mean()).backward()
            optimizer.step()
    return model


def main() -> None:
    """Record, clone, and compare on requests that the clone has not seen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--id", default="kvgym/AdmitEvict-v0")
    parser.add_argument("--scheduler", default="work_conserving_sjf_lookahead:chunk=32768")
    parser.add_argument("--network", default="mlp", choices=("mlp", "slots"))
    parser.add_argument(
        "--requests", type=int, default=2000, help="of a run of the comparison, at 10 a second"
    )
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=10, help="of the comparison")
    options = parser.parse_args()
    torch.set_num_threads(1)
    env: Any = gym.make(options.id, **RUSH, **WINDOWS)
    steps = recorded(env, options.scheduler, range(options.episodes))
    model = cloned(env, steps, options.network, options.epochs)
    others, answers, masks = (part.numpy() for part in recorded(env, options.scheduler, range(1000, 1002)))
    right = np.mean(model.predict(others, deterministic=True, action_masks=masks)[0] == answers)
    print(f"{len(steps[0]):,} steps; {right:.2%} of the answers right on other requests")
    arguments = env.unwrapped.config.model_dump()
    made: dict[str, Any] = {"clone": model, "random": AtRandom()}
    players = [AgentPolicy(player, name=name, **arguments) for name, player in made.items()]
    scenario = build_scenario("rush", rate=10, num_requests=options.requests)
    seeds = range(3_000_000, 3_000_000 + options.seeds)
    comparison = kvgym.compare(scenario, [options.scheduler, "fcfs", *players], seeds=seeds)
    for name in comparison.policies:
        print(f"{name}: mean latency {comparison.estimate(name, 'e2e_latency_mean').value:.2f} s")


if __name__ == "__main__":
    main()
