"""Masked PPO in one file, in the style of CleanRL, on kvgym's native vector environment.

    python scripts/frameworks/cleanrl_ppo.py
    python scripts/frameworks/cleanrl_ppo.py --num-requests 200 --rate 50 --kv-capacity 6144

Needs torch and kvgym. Prints the mean end-to-end latency of the policy before and after training, next to
``fcfs`` and ``mc_sf`` on the same held-out requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import kvgym
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.config import EnvConfig

ENV_ID = "kvgym/AdmitCount-v0"


class Agent(nn.Module):
    """Two small networks: logits of the actions, and the value of an observation."""

    def __init__(self, features: int, actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, actions),
        )  # fmt: skip
        self.critic = nn.Sequential(
            nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )
        for layer in (*self.actor, *self.critic):
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)

    def distribution(self, observation: Tensor, mask: Tensor) -> Categorical:
        """Return the distribution over the allowed actions."""
        return Categorical(logits=self.actor(observation).masked_fill(~mask, -1e9))

    def value(self, observation: Tensor) -> Tensor:
        """Return the value of each observation."""
        return self.critic(observation).squeeze(-1)

    @torch.no_grad()
    def predict(
        self, observation: Any, deterministic: bool = True, action_masks: Any = None
    ) -> tuple[int, None]:
        """Act on one observation, for kvgym.envs.AgentPolicy.

        Always samples, regardless of ``deterministic``, because PPO improves the sampled policy. The most probable
        action alone may wait for ever while the worker is empty, which a comparison reports as a livelock.
        """
        choice = self.distribution(torch.as_tensor(observation), torch.as_tensor(action_masks))
        return int(choice.sample()), None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-requests", type=int, default=100, help="requests per episode")
    parser.add_argument("--rate", type=float, default=30.0, help="requests per second")
    parser.add_argument("--kv-capacity", type=int, help="KV tokens (default: the hardware's, 16492)")
    parser.add_argument("--eval-seeds", type=int, default=20, help="held-out workload seeds")
    parser.add_argument("--rollout", type=int, default=64, help="steps of each environment per update")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatch", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.999)
    parser.add_argument("--gae-lambda", type=float, default=0.98)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--entropy", type=float, default=0.003)
    return parser.parse_args(arguments)


def advantages(
    rewards: Tensor, values: Tensor, terminated: Tensor, ended: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Return generalised advantage estimates, shape (T, N).

    Under NEXT_STEP the observation after an end is the last one of that episode. So ``values[t + 1]`` is the value
    of a truncated episode, and estimates do not cross ``ended``.

    Args:
        rewards: (T, N).
        values: (T + 1, N).
        terminated: (T, N), the episode finished.
        ended: (T, N), it finished or was truncated.
        gamma: discount.
        gae_lambda: λ.
    """
    out, following = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * values[t + 1] * ~terminated[t] - values[t]
        following = delta + gamma * gae_lambda * ~ended[t] * following
        out[t] = following
    return out


def train(args: argparse.Namespace, task: dict[str, Any], agent: Agent) -> dict[str, float]:
    """Train the agent; return steps per second and the mean latency of the last episodes."""
    envs = gym.make_vec(ENV_ID, num_envs=args.num_envs, **task)  # native; autoreset NEXT_STEP
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    t_max, n = args.rollout, args.num_envs
    updates = max(1, args.steps // (t_max * n))
    observations = torch.zeros(t_max + 1, n, *envs.single_observation_space.shape)
    masks = torch.zeros(t_max + 1, n, int(envs.single_action_space.n), dtype=torch.bool)
    actions, log_probs = torch.zeros(t_max, n, dtype=torch.long), torch.zeros(t_max, n)
    rewards, valid = torch.zeros(t_max, n), torch.zeros(t_max, n, dtype=torch.bool)
    terminated, ended = torch.zeros_like(valid), torch.zeros_like(valid)
    latency = envs.unwrapped.metric_names.index("e2e_latency_mean")
    recent: list[float] = []

    observation, info = envs.reset(seed=args.seed)
    over = np.zeros(n, bool)  # ended by the last step: the next one only resets
    start, start_cpu = time.perf_counter(), time.process_time()
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update / updates)
        for t in range(t_max):
            observations[t], masks[t] = torch.as_tensor(observation), torch.as_tensor(info["action_mask"])
            valid[t] = torch.as_tensor(~over)
            with torch.no_grad():
                choice = agent.distribution(observations[t], masks[t])
                actions[t] = choice.sample()
                log_probs[t] = choice.log_prob(actions[t])
            observation, reward, term, trunc, info = envs.step(actions[t].numpy())
            over = term | trunc
            rewards[t] = torch.as_tensor(reward)
            terminated[t], ended[t] = torch.as_tensor(term), torch.as_tensor(over)
            if over.any():
                recent += info["metrics"][info["_metrics"], latency].tolist()
        observations[t_max] = torch.as_tensor(observation)
        with torch.no_grad():
            values = agent.value(observations)
        advantage = advantages(rewards, values, terminated, ended, args.gamma, args.gae_lambda)
        target = advantage + values[:-1]
        keep = valid.flatten().nonzero().squeeze(-1)  # steps that only reset are not transitions
        flat = [
            x.flatten(0, 1) for x in (observations[:-1], masks[:-1], actions, log_probs, advantage, target)
        ]
        for _ in range(args.epochs):
            for rows in keep[torch.randperm(len(keep))].split(args.minibatch):
                loss = ppo_loss(agent, [x[rows] for x in flat], args)
                optimizer.zero_grad()
                loss.backward()
                for part in (agent.actor, agent.critic):
                    nn.utils.clip_grad_norm_(part.parameters(), 0.5)
                optimizer.step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    envs.close()
    return {
        "steps": updates * t_max * n,
        "steps_per_second": updates * t_max * n / seconds,
        "steps_per_cpu_second": updates * t_max * n / cpu,
        "episodes": len(recent),
        "last_latency": float(np.mean(recent[-200:])) if recent else float("nan"),
    }


def ppo_loss(agent: Agent, batch: list[Tensor], args: argparse.Namespace) -> Tensor:
    """Return the clipped PPO loss of a minibatch."""
    observation, mask, action, old_log_prob, advantage, target = batch
    choice = agent.distribution(observation, mask)
    ratio = (choice.log_prob(action) - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    policy = torch.min(ratio * advantage, ratio.clamp(1 - args.clip, 1 + args.clip) * advantage).mean()
    value = 0.5 * (agent.value(observation) - target).square().mean()
    return -policy + 0.5 * value - args.entropy * choice.entropy().mean()


def evaluate(agent: Agent, task: dict[str, Any], seeds: int) -> dict[str, float]:
    """Return mean end-to-end latencies on the same held-out requests, seconds, by policy."""
    torch.manual_seed(0)
    policy = AgentPolicy(agent, name="agent", action="admit_count", **task)
    comparison = kvgym.compare(
        EnvConfig.of(**task).make_scenario(), [policy, "fcfs", "mc_sf"], seeds=range(100, 100 + seeds)
    )
    return {name: comparison.estimate(name, "e2e_latency_mean").value for name in comparison.policies}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train and compare; return the figures printed."""
    args = parse(arguments)
    task: dict[str, Any] = {
        "num_requests": args.num_requests,
        "rate": args.rate,
        "kv_capacity": args.kv_capacity,
        "epochs": "decision",
        "queue_order": "predicted",
        "scenario": "a100-llama2-70b",
        "queue_window": 16,
        "active_window": 16,
        "must_admit": False,
        "token_scale": "capacity",
    }
    torch.set_num_threads(1)  # small networks: more threads only wait for each other
    torch.manual_seed(args.seed)
    env = gym.make(ENV_ID, **task)
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n))
    before = evaluate(agent, task, args.eval_seeds)["agent"]
    torch.manual_seed(args.seed)
    found = train(args, task, agent)
    after = evaluate(agent, task, args.eval_seeds)
    print(f"{found['steps']:,.0f} steps of {args.num_envs} environments, {found['episodes']:,.0f} episodes")
    rates = [f"{found[key]:,.0f}" for key in ("steps_per_second", "steps_per_cpu_second")]
    print(f"training: {rates[0]} steps/s ({rates[1]} per second of CPU time)")
    print(f"mean end-to-end latency on {args.eval_seeds} held-out workload seeds (s):")
    print(f"  before training  {before:.3f}")
    print(f"  after training   {after['agent']:.3f}")
    print(f"  fcfs             {after['fcfs']:.3f}")
    print(f"  mc_sf            {after['mc_sf']:.3f}")
    return {**found, "before": before, **after}


if __name__ == "__main__":
    main()
