"""Train an agent with Stable-Baselines3 that sets the knobs of a scheduler at twice the sustainable load.

    python scripts/examples/train_with_sb3.py                             # some minutes on two cores
    python scripts/examples/train_with_sb3.py --steps 4096 --seeds 2      # to test that it runs

With training seeds 0, 1 and 2 the agent ends at a mean end-to-end latency of 14.3, 13.9 and 14.1 s on unseen
requests, from 15.3, 15.2 and 14.4 s untrained; MC-SF with a margin takes 16.3 s, Sarathi-Serve with its best token
budget 18.6 s, FCFS 24.3 s. Another processor rounds PyTorch's sums differently: 13.6 s with seed 0. The
best of the 24 fixed settings that the agent chooses from takes 13.55 s, ``ranked`` set by hand 13.07 s: this shows how
to train, and docs/train_priority.md where it pays.
"""

from __future__ import annotations

import argparse

from sb3_contrib import MaskablePPO

import kvgym
from kvgym.agents import make_sb3_env
from kvgym.envs import AgentPolicy, EnvConfig

TASK = {
    "workload": {
        "preset": "lmsys",
        "num_requests": 1000,
        "rate": 20,
        "predictions": {"kind": "noisy", "epsilon": 0.5},
    },
    "knobs": {"protection": [0, 1, 2, 3], "cap": [7], "budget": [1, 2, 3, 4, 5, 7], "quantum": [0]},
    "hold": 16,
    "queue_order": "volume",
    "queue_window": 8,
    "active_window": 8,
    "reward_reference": "sarathi:order=spf,token_budget=128",
}


def main() -> None:
    """Train, then compare with the untrained agent and a scheduler on held-out seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50_000, help="training steps")
    parser.add_argument("--seed", type=int, default=0, help="training seed")
    parser.add_argument("--seeds", type=int, default=10, help="workloads of the comparison")
    options = parser.parse_args()
    envs = make_sb3_env("kvgym/Knobs-v0", num_envs=64, seed=options.seed, **TASK)
    model = MaskablePPO(
        "MlpPolicy",
        envs,
        n_steps=64,
        batch_size=512,
        n_epochs=6,
        gamma=1.0,
        gae_lambda=0.98,
        learning_rate=1e-3,
        seed=options.seed,
    )
    untrained = MaskablePPO("MlpPolicy", envs, seed=options.seed)
    model.learn(options.steps)
    agents = [
        AgentPolicy(made, name=name, action="knobs", **TASK)
        for made, name in ((model, "ppo"), (untrained, "untrained"))
    ]
    comparison = kvgym.compare(
        EnvConfig.of(action="knobs", **TASK).make_scenario(),
        [*agents, "mc_sf:protection=0.1,overrun=extend"],
        seeds=range(1000, 1000 + options.seeds),
    )
    for policy in comparison.policies:
        print(policy, comparison.estimate(policy, "e2e_latency_mean").value)


if __name__ == "__main__":
    main()
