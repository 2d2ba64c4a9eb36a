"""Train a ranking with Stable-Baselines3: PPO learns what to add to the scores of the scheduler ``ranked``.

    python scripts/examples/train_ranking_with_sb3.py     # two minutes on one core

Saves the agent as ``scores.npz`` and prints its goodput next to the goodput of schedulers; see docs/train_with_sb3.md.
"""

from __future__ import annotations

from stable_baselines3 import PPO

import kvgym
from kvgym.agents import load_agent, make_sb3_env, policy_for
from kvgym.agents.sb3.export import export
from kvgym.envs import EnvConfig

UNKNOWN_LENGTHS = {"preset": "slai-paying-50", "duration": 120, "rate": 1.8, "predictions": {"kind": "none"}}
TASK = {
    "scenario": "slai-50", "workload": UNKNOWN_LENGTHS, "system": {"horizon": 120},
    "weights": {
        "attained": 0.2, "growth": 0, "prefill_value": 0.7, "prefill_pressure": 0.5, "prefill_room": 0,
        "slack": 0, "urgent": 0, "lost": 0,
    },
    "information": ["slo"],
    "hold": 16, "queue_window": 8, "active_window": 64, "reward": {"goodput": 1.0}, "load": (0.8, 1.2),
    "unit_actions": False, "token_scale": "capacity",
}  # fmt: skip


def main() -> None:
    """Train, export, and compare on unseen requests."""
    config = EnvConfig.of(action="rank_scores", **TASK)
    policy, arguments = policy_for("slots", "ppo", config, row_dim=16, context_dim=32)
    envs = make_sb3_env("rank_scores", num_envs=64, seed=0, **TASK)
    model = PPO(
        policy,
        envs,
        policy_kwargs=arguments,
        n_steps=108,
        batch_size=1728,
        gamma=0.95,
        learning_rate=5e-3,
        seed=0,
    )
    model.learn(500_000)

    export(model, {"action": "rank_scores", **TASK}).save("scores.npz")  # acts with NumPy alone
    rivals = ["ranked:slack=0,urgent=0,lost=0", "ranked", "slai"]
    comparison = kvgym.compare(
        config.make_scenario(), [load_agent("scores.npz"), *rivals], seeds=range(100, 110)
    )
    for name in comparison.policies:
        print(name, comparison.estimate(name, "goodput").value)


if __name__ == "__main__":
    main()
