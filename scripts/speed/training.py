"""Speed of training with Stable-Baselines3; needs kvgym[train]."""

from __future__ import annotations

import time
from typing import Any

from kvgym.envs.scheduling.vector_environment import ServingVectorEnv


def train_fps(algorithm: str, task: dict[str, Any], envs: int, rollouts: int) -> dict[str, float]:
    """Return environment steps per second of CPU time of a training run, and the share spent in the environment.

    Args:
        algorithm: "PPO" or "MaskablePPO".
        task: arguments of the environment.
        envs: number of native environments.
        rollouts: of 64 steps of each environment, after one for warm-up.
    """
    import torch
    from stable_baselines3 import PPO

    from kvgym.agents.sb3.vec_env import SB3VecEnv

    torch.set_num_threads(1)
    if algorithm == "MaskablePPO":
        from sb3_contrib import MaskablePPO as Algorithm
    else:
        Algorithm = PPO
    venv = SB3VecEnv(ServingVectorEnv(envs, action="admit_count", autoreset_mode="SameStep", **task))
    inside = 0.0
    wait = venv.step_wait

    def timed() -> Any:
        nonlocal inside
        started = time.process_time()
        result = wait()
        inside += time.process_time() - started
        return result

    venv.step_wait = timed
    steps = 64
    model = Algorithm(
        "MlpPolicy", venv, n_steps=steps, batch_size=min(4096, steps * envs), n_epochs=4, seed=0, device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
    )  # fmt: skip
    model.learn(steps * envs)  # warm up
    inside, started = 0.0, time.process_time()
    model.learn(rollouts * steps * envs, reset_num_timesteps=True)
    elapsed = time.process_time() - started
    return {"fps": rollouts * steps * envs / elapsed, "share_in_environment": inside / elapsed}
