"""Time ends of episodes: alone, and in a vector of 64 environments against a single one.

An end is the metrics of an episode, the requests of the next one, and its start. In a vector they come together unless
``stagger`` spreads them. Everything is the least of several rounds; threads need a core each.

    python scripts/speed/endings.py            # a minute
    python scripts/speed/endings.py --smoke    # seconds: checks that it runs
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np

from harness import command_line, write_json
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from vectors import NARROW

TASKS: dict[str, dict[str, Any]] = {
    "AdmitCount": {**NARROW, "num_requests": 256},
    "Priority": {"scenario": "hidden-kinds"},
}
MANY, STAGGER = 64, 200


def least(action: Any, repeats: int, before: Any = None) -> float:
    """Return the least time of an action, microseconds of CPU time; ``before`` is called each time, too."""
    spent = []
    for k in range(repeats):
        if before is not None:
            before(k)
        begun = time.thread_time()
        action(k)
        spent.append(time.thread_time() - begun)
    return 1e6 * min(spent)


def parts_of_an_end(name: str, repeats: int) -> dict[str, float]:
    """Return the CPU time of each part of an end, microseconds."""
    env: Any = gym.make(f"kvgym/{name}-v0", disable_env_checker=True, **TASKS[name]).unwrapped
    env.reset(seed=0)
    action = env.action_space.high if env.action_space.shape else 1
    while not any(env.step(action)[2:4]):
        pass
    episodes = env.episodes
    metrics = least(lambda k: episodes.metrics(0), repeats)  # before a new episode is there
    requests = least(lambda k: episodes.prepare(0, k), repeats)
    start = least(lambda k: episodes.begin([0]), repeats, lambda k: episodes.prepare(0, k))
    return {"metrics": metrics, "requests": requests, "start": start}


def alone(steps: int) -> float:
    """Return the time of a step of a single environment, ends included, microseconds."""
    env: Any = gym.make("kvgym/Priority-v0", disable_env_checker=True, **TASKS["Priority"]).unwrapped
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape, np.float32)
    begun = time.perf_counter()
    for _ in range(steps):
        if any(env.step(action)[2:4]):
            env.reset()
    return (time.perf_counter() - begun) / steps * 1e6


def together(threads: int, steps: int) -> dict[str, float]:
    """Return the ``time`` of an environment's step in a vector, microseconds, and the ``longest`` step, in medians."""
    arguments = {**TASKS["Priority"], "num_threads": threads, "stagger": STAGGER, "action": "priority"}
    envs = ServingVectorEnv(MANY, **arguments)
    envs.reset(seed=0)
    actions = np.zeros(envs.action_space.shape, np.float32)
    for _ in range(STAGGER):
        envs.step(actions)
    spent = []
    for _ in range(steps):
        begun = time.perf_counter()
        envs.step(actions)
        spent.append(time.perf_counter() - begun)
    envs.close()
    return {"time": 1e6 * sum(spent) / (MANY * steps), "longest": max(spent) / statistics.median(spent)}


def main() -> None:
    """Run the benchmark."""
    options = command_line(__doc__).parse_args()
    repeats, rounds, steps = (3, 1, 5) if options.smoke else (300, 5, 600)
    results: dict[str, Any] = {}
    for name in TASKS:
        found = results[name] = parts_of_an_end(name, repeats)
        shown = ", ".join(f"{what} {cost:.0f}" for what, cost in found.items())
        print(f"end of an episode of {name}: {sum(found.values()):.0f} us ({shown})", flush=True)
    single = min(alone(steps) for _ in range(rounds))
    print(f"Priority alone: {single:.1f} us per step", flush=True)
    for threads in (1, 2):
        runs = [together(threads, steps) for _ in range(rounds)]
        found = results[f"{threads} threads"] = {what: min(run[what] for run in runs) for what in runs[0]}
        print(
            f"vector of {MANY}, {threads} threads: {found['time']:.1f} us, {single / found['time']:.2f} times as fast; "
            f"longest step {found['longest']:.1f} medians",
            flush=True,
        )
    write_json(options.json, {**results, "single": single})


if __name__ == "__main__":
    main()
