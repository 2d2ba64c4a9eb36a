"""Example of planning with saved states: rollouts of a base policy.

    python scripts/examples/rollouts.py

At every step it tries each number of admissions, lets a base policy finish the episode, and takes the best; see
docs/planning.md. It is clairvoyant: copies continue with the true requests of the episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import kvgym  # noqa: F401  (registers the environments)


def admit_all(env: Any, mask: Any) -> int:
    """Return the action of the base policy: as many as fit."""
    return int(mask.sum()) - 1


def finish(env: Any, mask: Any, ended: bool) -> float:
    """Return the remaining reward of the base policy, which admits as many as fit."""
    total = 0.0
    while not ended:
        _, reward, terminated, truncated, info = env.step(admit_all(env, mask))
        total, mask, ended = total + reward, info["action_mask"], terminated or truncated
    return total


def rollout_action(env: Any, mask: Any) -> int:
    """Return the action after which the base policy earns the most; the environment keeps its state."""
    state, best, chosen = env.get_state(), -np.inf, 0
    for action in np.flatnonzero(mask):
        _, reward, terminated, truncated, info = env.step(action)
        value = reward + finish(env, info["action_mask"], terminated or truncated)
        env.set_state(state)
        if value > best:
            best, chosen = value, action
    return int(chosen)


def play(env: Any, choose: Callable[[Any, Any], int], seed: int) -> float:
    """Return the total reward of an episode."""
    _, info = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        _, reward, terminated, truncated, info = env.step(choose(env, info["action_mask"]))
        total, ended = total + reward, terminated or truncated
    return total


def main() -> None:
    """Compare rollouts with their base policy."""
    env = gym.make("kvgym/AdmitCount-v0", scenario="mc-sf-model-2", num_requests=30, queue_window=4).unwrapped
    base = play(env, admit_all, seed=0)
    planned = play(env, rollout_action, seed=0)
    print(f"mean latency: {-base:.2f} s as many as fit, {-planned:.2f} s with rollouts")


if __name__ == "__main__":
    main()
