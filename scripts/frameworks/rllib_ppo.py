"""Masked PPO with RLlib's new API stack on kvgym's native vector environment.

    python scripts/frameworks/rllib_ppo.py
    python scripts/frameworks/rllib_ppo.py --num-requests 200 --rate 50 --kv-capacity 6144
    python scripts/frameworks/rllib_ppo.py --address auto --env-runners 4    # on a cluster

Needs ``ray[rllib]``, torch and kvgym in a separate environment, see docs/frameworks.md. Prints the mean
end-to-end latency of the policy before and after training, next to ``fcfs`` and ``mc_sf`` on the same held-out
requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.tune.registry import register_env
from torch import Tensor, nn

import kvgym
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.config import EnvConfig

ENV_ID = "kvgym/AdmitCount-v0"


class MaskedModule(TorchRLModule, ValueFunctionAPI):
    """Two small networks over ``observations``; ``action_mask`` excludes actions."""

    def setup(self) -> None:
        """Build the networks."""
        features, actions = self.observation_space["observations"].shape[0], int(self.action_space.n)
        self.actor, self.critic = (
            nn.Sequential(
                nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
            )
            for outputs in (actions, 1)
        )

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Tensor]:
        observation = batch[Columns.OBS]
        logits = self.actor(observation["observations"])
        return {Columns.ACTION_DIST_INPUTS: logits.masked_fill(observation["action_mask"] < 0.5, -1e9)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Return the value of each observation."""
        return self.critic(batch[Columns.OBS]["observations"]).squeeze(-1)


class Sampler:
    """Adds ``predict`` to a module, for kvgym.envs.AgentPolicy.

    Always samples, regardless of ``deterministic``, because PPO improves the sampled policy. The most probable action
    alone may wait for ever while the worker is empty, which a comparison reports as a livelock.
    """

    def __init__(self, module: MaskedModule) -> None:
        self.module = module

    @torch.no_grad()
    def predict(self, observation: dict[str, Any], deterministic: bool = True) -> tuple[int, None]:
        """Act on one observation."""
        batch = {Columns.OBS: {key: torch.as_tensor(part)[None] for key, part in observation.items()}}
        logits = self.module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        return int(torch.distributions.Categorical(logits=logits).sample()), None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--num-requests", type=int, default=100, help="requests per episode")
    parser.add_argument("--rate", type=float, default=30.0, help="requests per second")
    parser.add_argument("--kv-capacity", type=int, help="KV tokens (default: the hardware's, 16492)")
    parser.add_argument("--eval-seeds", type=int, default=20, help="held-out workload seeds")
    parser.add_argument("--batch", type=int, default=4096, help="steps per update")
    parser.add_argument(
        "--env-runners", type=int, default=0, help="processes that collect, on any node; 0 = only this one"
    )
    parser.add_argument("--address", help="a running Ray cluster: auto or HOST:PORT (default: start one)")
    return parser.parse_args(arguments)


def make_env(config: Any) -> Any:
    """Return the native vector environment; RLlib adds num_envs to the configuration."""
    import kvgym.envs  # noqa: F401  (registers the ids in RLlib's processes too)

    arguments = dict(config)
    num_envs = arguments.pop("num_envs", None)
    if num_envs is None:
        return gym.make(ENV_ID, **arguments)
    return gym.make_vec(ENV_ID, num_envs=num_envs, **arguments)


def configure(args: argparse.Namespace, task: dict[str, Any]) -> PPOConfig:
    """Return the configuration: this process learns, and collects if there are no other runners."""
    return (
        PPOConfig()
        .environment("kvgym-native", env_config=task)
        .env_runners(
            num_env_runners=args.env_runners,
            num_envs_per_env_runner=args.num_envs,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .learners(num_learners=0)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=MaskedModule))
        .training(
            train_batch_size_per_learner=args.batch,
            minibatch_size=min(1024, args.batch),
            num_epochs=4,
            lr=1e-3,
            gamma=0.999,
            lambda_=0.98,
            entropy_coeff=0.003,
            vf_clip_param=1e6,
            grad_clip=0.5,
        )
        .debugging(seed=args.seed, log_level="ERROR")
    )


def evaluate(module: MaskedModule, task: dict[str, Any], seeds: int) -> dict[str, float]:
    """Return mean end-to-end latencies on the same held-out requests, seconds, by policy."""
    torch.manual_seed(0)
    policy = AgentPolicy(Sampler(module), name="agent", action="admit_count", **task)
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
        "observation": "rllib",
    }
    own: dict[str, Any] = {"num_cpus": 2, "include_dashboard": False} if args.address is None else {}
    ray.init(address=args.address, log_to_driver=False, logging_level="ERROR", **own)
    try:
        torch.set_num_threads(1)  # small networks: more threads only wait for each other
        register_env("kvgym-native", make_env)
        algorithm = configure(args, task).build_algo()
        before = evaluate(algorithm.get_module(), task, args.eval_seeds)["agent"]
        start, start_cpu = time.perf_counter(), time.process_time()
        steps = 0
        while steps < args.steps:
            result = algorithm.train()
            steps = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        after = evaluate(algorithm.get_module(), task, args.eval_seeds)
        algorithm.stop()
    finally:
        ray.shutdown()
    found = {"steps": steps, "steps_per_second": steps / seconds, "steps_per_cpu_second": steps / cpu}
    print(f"{steps:,} steps of {args.num_envs} environments")
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
