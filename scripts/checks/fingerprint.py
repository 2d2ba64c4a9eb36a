"""Hash what a change without effect must leave alone: schedules, metrics, environments' trajectories.

python scripts/checks/fingerprint.py > before.txt         # a few minutes on one core
python scripts/checks/fingerprint.py --requests 200 --steps 500  # less than a minute
python scripts/checks/fingerprint.py --only environments

Run it before and after a change and compare the outputs with ``diff``: every line is a hash and what it covers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

import kvgym.envs  # noqa: F401  (registers the environments)
from kvgym import load_scenario, simulate
from kvgym.errors import ConfigError, LivelockError
from kvgym.experiments.scenario import scenario_names
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.policy import POLICIES


class Digest:
    """A hash of arrays, numbers and nested values of both."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._sha = hashlib.sha256()

    def add(self, value: Any) -> None:
        """Add a value: an array by its dtype, shape and bytes, a mapping by its sorted keys."""
        if isinstance(value, dict):
            for key in sorted(value):
                self._sha.update(str(key).encode())
                self.add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.add(item)
        elif isinstance(value, (np.ndarray, np.generic)):
            array = np.ascontiguousarray(value)
            self._sha.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        else:
            self._sha.update(repr(value).encode())

    def __str__(self) -> str:
        """The first 16 digits."""
        return self._sha.hexdigest()[:16]


def simulations(requests: int) -> Iterator[tuple[str, Digest]]:
    """Yield, for every scenario and policy, the hash of records, iterations and metrics, or of the kind of error."""
    for name in scenario_names():
        scenario = load_scenario(name)
        system = scenario.make_system()
        table = scenario.sample(scenario.make_workload(), 0, system.usable_capacity)
        table = table.select(slice(0, requests))
        for policy in POLICIES:
            digest = Digest()
            try:
                result = simulate(system, table, policy, router=scenario.make_router(), log=True)
            except (ConfigError, LivelockError) as error:
                digest.add(type(error).__name__)
            else:
                for array in (result.requests, result.worker, result.log, result.gap_counts, result.gap_sums):
                    digest.add(array.tolist() if array is not None and array.dtype.names else array)
                digest.add(json.dumps(compute_metrics(result), sort_keys=True, default=str))
            yield f"{name} {policy}", digest


def environments(steps: int) -> Iterator[tuple[str, Digest]]:
    """Yield, for every id, the hash of observations, rewards, ends and figures of random play."""
    for name in sorted(name for name in gym.registry if name.startswith("kvgym/")):
        env = gym.make(name, max_episode_steps=-1)
        env.action_space.seed(7)
        observation, info = env.reset(seed=7)
        digest = Digest()
        digest.add(observation)
        for _ in range(steps):
            mask = info.get("action_mask")
            discrete = isinstance(env.action_space, gym.spaces.Discrete) and mask is not None
            action = (
                env.action_space.sample(np.asarray(mask, np.int8)) if discrete else env.action_space.sample()
            )
            observation, reward, terminated, truncated, info = env.step(action)
            digest.add((observation, float(reward), terminated, truncated))
            if terminated or truncated:
                digest.add(json.dumps(info.get("metrics", {}), sort_keys=True, default=str))
                observation, info = env.reset()
        env.close()
        yield name, digest


def main() -> None:
    """Print the hashes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000, help="at most this many of each scenario")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of each environment")
    parser.add_argument("--only", choices=["simulations", "environments"])
    options = parser.parse_args()
    if options.only != "environments":
        for what, digest in simulations(options.requests):
            print(digest, what, flush=True)
    if options.only != "simulations":
        for what, digest in environments(options.steps):
            print(digest, what, flush=True)


if __name__ == "__main__":
    main()
