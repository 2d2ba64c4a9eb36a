"""Random play in the checked build: no index is out of bounds, and no guard byte changes."""

import json
import subprocess
import sys

import pytest

from helpers.amount import number, some
from kvgym.compiling.checked_build import checked_environment

STEPS, ENVS = number(100_000, 30_000), 100
KINDS = tuple(some(("admit_count", "flags", "tokens"), 2))

PLAY = f"""
import json
import numpy as np
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.compiling.checked_build import CHECKED

assert CHECKED
rng, steps, ended = np.random.default_rng(7), 0, {{}}
for kind in {KINDS!r}:
    env = ServingVectorEnv(
        {ENVS}, action=kind, num_requests=6, kv_capacity=144, rate=300.0, queue_window=4, active_window=3,
        queue_order=str(rng.choice(["queue", "predicted", "prompt", "volume", "attained"])),
        workload={{"preset": "lmsys", "limits": {{"max_prompt_len": 60, "max_output_len": 8}}}},
        block_size=int(rng.choice([1, 16])), overflow=str(rng.choice(["lifo", "clear"])), stall_limit=60,
    )
    env.reset(seed=1)
    env.action_space.seed(2)
    ended[kind] = 0
    for _ in range(-(-{STEPS} // {ENVS * len(KINDS)})):
        *_, terminated, truncated, _ = env.step(env.action_space.sample())
        ended[kind] += int((terminated | truncated).sum())
        steps += {ENVS}
print(json.dumps([steps, ended]))
"""


@pytest.fixture(scope="module")
def played():
    done = subprocess.run(
        [sys.executable, "-c", PLAY], env=checked_environment(), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_access_is_out_of_bounds(played):
    steps, ended = played
    assert steps >= STEPS
    assert set(ended) == set(KINDS)
    assert all(count > 10 for count in ended.values())  # with ends and starts of episodes
