"""Fixtures of the environment tests: small episodes, random configurations, explicit requests, state checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import kvgym  # noqa: F401, registers the environments
from playing import checks
from playing.configurations import serving_arguments

SMALL = {
    "scenario": "mc-sf-model-2",
    "num_requests": 8,
    "queue_window": 3,
    "active_window": 3,
    "must_admit": False,
    "token_scale": "capacity",
    "horizon": 300.0,
    "hold": 3,
}
"""Arguments of an episode of a few dozen steps in slotted time, with 40 tokens of memory."""


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def random_arguments() -> Callable[[np.random.Generator], dict[str, Any]]:
    """Return a function that draws a valid configuration, of any scenario."""
    return serving_arguments


@pytest.fixture
def requests_of(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that makes a workload of explicit (arrival, prompt, output) rows."""

    def make(*rows: tuple[float, int, int], **fields: Any) -> dict[str, Any]:
        path = tmp_path / f"requests-{abs(hash(rows)) % 10**9}.csv"
        lines = [",".join(map(str, row)) for row in rows]
        path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *lines]) + "\n")
        return {
            "lengths": {"kind": "trace", "path": str(path), "format": "vidur", "debatch": False},
            **fields,
        }

    return make


@pytest.fixture(scope="session")
def play() -> Callable[..., list[Any]]:
    """Return a function that plays an episode and returns its steps."""

    def run(env: gym.Env[Any, Any], seed: int, *, masked: bool = True, limit: int = 10_000) -> list[Any]:
        base: Any = env.unwrapped
        steps: list[Any] = [env.reset(seed=seed)]
        env.action_space.seed(seed)
        for _ in range(limit):
            action = env.action_space.sample(base.sample_mask() if masked else None)
            steps.append(env.step(action))
            if steps[-1][2] or steps[-1][3]:
                break
        return steps

    return run


@pytest.fixture(scope="session")
def equal() -> Callable[[Any, Any], bool]:
    """Return a function that compares two nested values bit for bit, types included."""
    return checks.equal


@pytest.fixture(scope="session")
def check_state() -> Callable[[Any], None]:
    """Return a function that checks the engine's invariants in the tables of an environment."""
    return lambda env: checks.check_state(env.episodes)
