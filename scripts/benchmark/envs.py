"""Time the environments: raw steps, the native vector environment, and training with Stable-Baselines3.

Everything in one process on one core, process CPU time, median of some repetitions. Actions are greedy
admissions (the most that fits), so that the worker is busy.

    python scripts/benchmark/envs.py                # about 3 minutes; needs kvgym[train] for the last part
    python scripts/benchmark/envs.py --smoke        # seconds: shows that it runs, the figures mean nothing
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from kvgym.envs import SCHEDULING_IDS
from kvgym.envs.routing.environment import RoutingEnv
from kvgym.envs.scheduling.environment import ServingEnv
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv

AFFINE = {"kind": "affine", "constant": 0.02, "per_prefill_token": 1e-4, "per_context_token": 1e-6}
TASK: dict[str, Any] = {"num_requests": 256, "batch_time": AFFINE}


def microseconds(work: Callable[[], tuple[int, float]], repeats: int) -> float:
    """Return the median CPU time per unit; ``work`` returns how many units it did and the seconds they took."""
    figures = []
    for _ in range(repeats):
        count, seconds = work()
        figures.append(1e6 * seconds / count)
    return statistics.median(figures)


def busiest(env: ServingEnv) -> Any:
    """Return the action that admits the most at once, by kind of action."""
    kind, mask = env.config.action, env.episodes.masks[0]
    if kind == "admit_count":
        return int(mask.sum()) - 1
    if kind == "admit_evict":
        return 0 if mask[0] else mask.size - 1
    if kind == "flags":
        flags = mask[1::2].astype(np.int8)
        flags[env.config.queue_window :] = 0
        return flags
    return np.array([2, 6, 7, 0])


def play(env: Any, steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that replays the first steps of a busy episode, through the wrappers of ``env``."""
    inner = env.unwrapped
    env.reset(seed=0)
    actions: list[Any] = []
    ended = False
    while not ended and len(actions) < steps:
        actions.append(busiest(inner))
        _, _, terminated, truncated, _ = env.step(actions[-1])
        ended = terminated or truncated

    def work() -> tuple[int, float]:
        env.reset(seed=0)
        step = env.step
        started = time.process_time()
        for action in actions[:-1]:
            step(action)
        return len(actions) - 1, time.process_time() - started

    return work


def route(steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that steps the routing environment, taking its workers in turn; ends and resets included."""
    env = RoutingEnv(num_requests=1000)
    env.reset(seed=0)  # compile

    def work() -> tuple[int, float]:
        started = time.process_time()
        env.reset(seed=0)
        for k in range(steps):
            if env.step(k & 3)[2]:
                env.reset(seed=0)
        return steps, time.process_time() - started

    return work


def play_vector(envs: Any, steps: int, *, restart: bool) -> Callable[[], tuple[int, float]]:
    """Return work that steps a vector environment with admit counts.

    With ``restart`` every repetition is the beginning of fresh episodes, of which none ends; without, it goes
    on from the last one, ends and new episodes included.
    """
    masks = envs.reset(seed=0)[1]["action_mask"]

    def work() -> tuple[int, float]:
        nonlocal masks
        if restart:
            masks = envs.reset(seed=0)[1]["action_mask"]
        started = time.process_time()
        for _ in range(steps):
            masks = envs.step(masks.sum(axis=1) - 1)[4]["action_mask"]
        return steps * envs.num_envs, time.process_time() - started

    return work


def cartpole(steps: int) -> Callable[[], tuple[int, float]]:
    """Return work that steps the unwrapped CartPole-v1."""
    env = gym.make("CartPole-v1").unwrapped

    def work() -> tuple[int, float]:
        env.reset(seed=0)
        started = time.process_time()
        for k in range(steps):
            if env.step(k & 1)[2]:
                env.reset()
        return steps, time.process_time() - started

    return work


def train_fps(algorithm: str, envs: int, rollouts: int) -> dict[str, float]:
    """Return frames per second of a training run, and the share of time inside the environment."""
    import torch
    from stable_baselines3 import PPO

    from kvgym.agents.vec_env import SB3VecEnv

    torch.set_num_threads(1)
    if algorithm == "MaskablePPO":
        from sb3_contrib import MaskablePPO as Algorithm
    else:
        Algorithm = PPO
    venv = SB3VecEnv(ServingVectorEnv(envs, action="admit_count", autoreset_mode="SameStep", **TASK))
    inside = 0.0
    wait = venv.step_wait

    def timed() -> Any:
        nonlocal inside
        started = time.perf_counter()
        result = wait()
        inside += time.perf_counter() - started
        return result

    venv.step_wait = timed
    steps = 64
    model = Algorithm(
        "MlpPolicy", venv, n_steps=steps, batch_size=min(4096, steps * envs), n_epochs=4, seed=0, device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
    )  # fmt: skip
    model.learn(steps * envs)  # warm up
    inside, started = 0.0, time.perf_counter()
    model.learn(rollouts * steps * envs, reset_num_timesteps=True)
    elapsed = time.perf_counter() - started
    return {"fps": rollouts * steps * envs / elapsed, "share_in_environment": inside / elapsed}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    steps, repeats = (50, 1) if options.smoke else (3000, 7)
    results: dict[str, Any] = {}

    def report(name: str, value: Any) -> None:
        results[name] = value
        print(f"{name}: {value:.3f} us" if isinstance(value, float) else f"{name}: {value}", flush=True)

    for kind in SCHEDULING_IDS.values():
        ServingEnv(action=kind, **TASK).reset()  # compile
    report("CartPole-v1 raw step", microseconds(cartpole(steps), repeats))
    for name, kind in SCHEDULING_IDS.items():
        report(f"{name} raw step", microseconds(play(ServingEnv(action=kind, **TASK), steps), repeats))
    report(
        "kvgym/AdmitCount-v0 gym.make step",
        microseconds(play(gym.make("kvgym/AdmitCount-v0", **TASK), steps), repeats),
    )
    profile = {"num_requests": 256}
    report(
        "kvgym/AdmitCount-v0 raw step, profile",
        microseconds(play(ServingEnv(action="admit_count", **profile), steps), repeats),
    )
    report("kvgym/Route-v0 raw step, 4 workers", microseconds(route(steps), repeats))
    sync = gym.make_vec("kvgym/AdmitCount-v0", num_envs=8, vectorization_mode="sync", **TASK)
    short, long = (2, 3) if options.smoke else (300, 1500)
    report("SyncVectorEnv 8", microseconds(play_vector(sync, short, restart=True), min(repeats, 3)))
    for count in (8, 64, 256, 1024):
        for label, task in (("affine", TASK), ("profile", profile)):
            native = ServingVectorEnv(count, action="admit_count", **task)
            name = f"native {count}, {label}"
            report(
                f"{name}, steps alone",
                microseconds(play_vector(native, short, restart=True), min(repeats, 3)),
            )
            report(
                f"{name}, ends of episodes included",
                microseconds(play_vector(native, long, restart=False), 1),
            )
    if importlib.util.find_spec("sb3_contrib") is not None:
        for algorithm in ("PPO", "MaskablePPO"):
            report(
                f"{algorithm}, 256 native environments",
                train_fps(algorithm, 8 if options.smoke else 256, 1 if options.smoke else 12),
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
