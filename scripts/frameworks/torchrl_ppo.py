"""Masked PPO with TorchRL on kvgym's native vector environment.

    python scripts/frameworks/torchrl_ppo.py
    python scripts/frameworks/torchrl_ppo.py --num-requests 200 --rate 50 --kv-capacity 6144

Needs torchrl, torch and kvgym, see docs/frameworks.md. Prints the mean end-to-end latency of the policy before
and after training, next to ``fcfs`` and ``mc_sf`` on the same held-out requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, TransformedEnv
from torchrl.envs.transforms import ActionMask, DTypeCastTransform
from torchrl.modules import MaskedCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import kvgym
from kvgym.envs.agents import AgentPolicy
from kvgym.envs.scheduling.config import EnvConfig

ENV_ID = "kvgym/AdmitCount-v0"


class Sampler:
    """Adds ``predict`` to the actor, for kvgym.envs.AgentPolicy.

    Always samples, regardless of ``deterministic``, because PPO improves the sampled policy. The most probable action
    alone may wait for ever while the worker is empty, which a comparison reports as a livelock.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    @torch.no_grad()
    def predict(self, observation: dict[str, Any], deterministic: bool = True) -> tuple[int, None]:
        """Act on one observation."""
        logits = self.network(torch.as_tensor(observation["observations"]))
        mask = torch.as_tensor(observation["action_mask"]).bool()
        return int(MaskedCategorical(logits=logits, mask=mask).sample()), None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--num-requests", type=int, default=100, help="requests per episode")
    parser.add_argument("--rate", type=float, default=30.0, help="requests per second")
    parser.add_argument("--kv-capacity", type=int, help="KV tokens (default: the hardware's, 16492)")
    parser.add_argument("--eval-seeds", type=int, default=20, help="held-out workload seeds")
    parser.add_argument("--batch", type=int, default=4096, help="steps per update")
    parser.add_argument("--minibatch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    return parser.parse_args(arguments)


def make_env(num_envs: int, task: dict[str, Any]) -> TransformedEnv:
    """Return the native vector environment, wrapped for TorchRL.

    Autoreset is DISABLED, because TorchRL resets ended environments itself, with Gymnasium's ``reset_mask``.
    """
    envs = gym.make_vec(ENV_ID, num_envs=num_envs, autoreset_mode=gym.vector.AutoresetMode.DISABLED, **task)
    base = GymWrapper(envs, categorical_action_encoding=True)
    boolean = DTypeCastTransform(torch.float32, torch.bool, in_keys=["action_mask"])
    return TransformedEnv(base).append_transform(boolean).append_transform(ActionMask())


def network(features: int, outputs: int) -> nn.Sequential:
    """Return a small network."""
    return nn.Sequential(
        nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def train(args: argparse.Namespace, task: dict[str, Any], actor_net: nn.Module) -> dict[str, float]:
    """Train the actor; return steps and steps per second."""
    env = make_env(args.num_envs, task)
    env.set_seed(args.seed)
    features = env.observation_spec["observations"].shape[-1]
    actor = ProbabilisticActor(
        TensorDictModule(actor_net, in_keys=["observations"], out_keys=["logits"]),
        spec=env.action_spec,
        in_keys={"logits": "logits", "mask": "action_mask"},
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(features, 1), in_keys=["observations"])
    loss_module = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.003, critic_coeff=0.5, normalize_advantage=True
    )
    gae = GAE(gamma=0.999, lmbda=0.98, value_network=critic)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=1e-3, eps=1e-5)
    collector = Collector(
        env,
        actor,
        frames_per_batch=args.batch,
        total_frames=-(-args.steps // args.batch) * args.batch,
        auto_register_policy_transforms=False,  # nothing here needs InitTracker
    )
    steps = 0
    start, start_cpu = time.perf_counter(), time.process_time()
    for batch in collector:
        with torch.no_grad():
            gae(batch)
        flat = batch.reshape(-1)
        steps += len(flat)
        for _ in range(args.epochs):
            for rows in torch.randperm(len(flat)).split(args.minibatch):
                update(loss_module, flat[rows], optimizer)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    collector.shutdown()
    return {"steps": steps, "steps_per_second": steps / seconds, "steps_per_cpu_second": steps / cpu}


def update(loss_module: ClipPPOLoss, minibatch: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take one gradient step."""
    losses = loss_module(minibatch)
    loss: Tensor = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
    optimizer.step()


def evaluate(actor_net: nn.Module, task: dict[str, Any], seeds: int) -> dict[str, float]:
    """Return mean end-to-end latencies on the same held-out requests, seconds, by policy."""
    torch.manual_seed(0)
    policy = AgentPolicy(Sampler(actor_net), name="agent", action="admit_count", **task)
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
    torch.set_num_threads(1)  # small networks: more threads only wait for each other
    torch.manual_seed(args.seed)
    one = gym.make(ENV_ID, **task)
    actor_net = network(one.observation_space["observations"].shape[0], int(one.action_space.n))
    before = evaluate(actor_net, task, args.eval_seeds)["agent"]
    torch.manual_seed(args.seed)
    found = train(args, task, actor_net)
    after = evaluate(actor_net, task, args.eval_seeds)
    print(f"{found['steps']:,.0f} steps of {args.num_envs} environments")
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
