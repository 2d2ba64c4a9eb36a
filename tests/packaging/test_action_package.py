"""A kind of action in another distribution: the example of docs/actions.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "actions.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MODULE = (ROOT / "scripts" / "examples" / "halves.py").read_text("utf-8")
USE = next(example for example in EXAMPLES if "import halves" in example)
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: halves\nVersion: 0.1\n",
    "entry_points.txt": "[kvgym.actions]\nhalves = halves\n",
}

CODE = """
    import json
    from pathlib import Path
    from kvgym.envs.scheduling.actions.catalogue import action_kind

    kept = {Path(k.compiled.stats.cache_path) for k in (action_kind("halves").write_mask, action_kind("halves").apply)}
    code = sorted((path.name, path.stat().st_mtime_ns) for folder in kept for path in folder.glob("*.nbc"))
    print(json.dumps(code))
"""

RUNS = """
    import json
    import gymnasium as gym
    import numpy as np
    import kvgym
    from gymnasium.utils.env_checker import check_env
    from kvgym.envs.agents import AgentPolicy
    from kvgym.envs.scheduling.environment import ServingEnv
    from kvgym.envs.scheduling.vector_environment import ServingVectorEnv

    arguments = {"action": "halves", "num_requests": 40, "rate": 60.0, "kv_capacity": 4200}

    def trajectory(env, seed):
        observation, info = env.reset(seed=seed)
        rng, rows = np.random.default_rng(seed), [observation]
        while True:
            mask = env.action_masks()
            action = int(rng.choice(np.flatnonzero(mask)))
            observation, reward, terminated, truncated, info = env.step(action)
            assert info["ignored"] == 0
            rows.append(np.append(observation, reward))
            if terminated or truncated:
                return np.concatenate(rows), info["completed"]

    env = ServingEnv(**arguments)  # the entry point alone makes the kind known
    compiled, completed = trajectory(env, 0)
    plain, _ = trajectory(ServingEnv(compiled=False, **arguments), 0)
    check_env(env, skip_render_check=True)
    *_, info = env.step(1)
    vector = ServingVectorEnv(3, **arguments)
    first, _ = vector.reset(seed=5)
    alone = [ServingEnv(**arguments).reset(seed=5 + k)[0] for k in range(3)]

    class All:
        def predict(self, observation, deterministic=True, action_masks=None):
            return 2 if action_masks[2] else 0, None

    agent = AgentPolicy(All(), name="all", **arguments)
    scenario = kvgym.load_scenario("a100-llama2-70b").override(
        workload={"preset": "lmsys", "num_requests": 40, "rate": 60}, kv_capacity=4200
    )
    comparison = kvgym.compare(scenario, [agent, "mc_sf"], seeds=1)
    print(json.dumps({
        "equal": np.array_equal(compiled, plain), "completed": completed,
        "vector": np.array_equal(first, np.stack(alone)),
        "registered": "acme/Halves-v0" in gym.registry,
        "compared": all(run.completed_once for run in comparison.runs),
    }))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Install the module into a folder; return a function that runs a program which can import it."""
    base = tmp_path_factory.mktemp("halves")
    info = base / "site" / "halves-0.1.dist-info"
    info.mkdir(parents=True)
    for name, text in METADATA.items():
        (info / name).write_text(text)
    (base / "site" / "halves.py").write_text(MODULE)
    path = os.pathsep.join([str(base / "site"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "KVGYM_PLUGINS": "1", "COLUMNS": "200"}

    def call(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            cwd=base, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_a_kind_from_outside(run):
    found = json.loads(run(RUNS).splitlines()[-1])
    assert found == dict.fromkeys(("equal", "completed", "vector", "registered", "compared"), True)
    code = json.loads(run(CODE).splitlines()[-1])
    assert len(code) == 2
    assert json.loads(run(CODE).splitlines()[-1]) == code  # compiled once


def test_it_is_listed_and_drawn(run):
    command = "from kvgym.cli.app import main; main()"
    assert "acme/Halves-v0" in run(command, "list", "environments")
    out = run(command, "render", "acme/Halves-v0", "-n", "6", "--max-frames", "4", "--out", "halves.gif")
    assert "6 requests finished" in out


def test_the_page_runs(run):
    run(USE)
