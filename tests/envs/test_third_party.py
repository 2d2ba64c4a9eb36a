"""A third-party project: a package with a policy and wrappers on top of the wheel of kvgym."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

for needed in ("build", "matplotlib", "moviepy", "sb3_contrib", "stable_baselines3", "torch"):
    pytest.importorskip(needed)

ROOT = Path(__file__).resolve().parents[2]

OLD_MATPLOTLIB = [
    f"-Wignore::DeprecationWarning:{module}"
    for module in ("matplotlib._fontconfig_pattern", "matplotlib._mathtext", "pyparsing.util")
]
"""The lowest Matplotlib uses names that are deprecated in the newest pyparsing."""

PROJECT = {
    "pyproject.toml": """
        [build-system]
        requires = ["setuptools>=77"]
        build-backend = "setuptools.build_meta"

        [project]
        name = "acme-scheduling"
        version = "0.1"
        dependencies = ["kvgym[train]"]

        [project.entry-points."kvgym.policies"]
        acme = "acme_scheduling.policies"

        [tool.setuptools]
        packages = ["acme_scheduling"]
        """,
    "acme_scheduling/__init__.py": """
        '''Schedulers of Acme.'''
        """,
    "acme_scheduling/policies.py": """
        '''A scheduler of Acme.'''

        from kvgym import Decision, Policy, PolicyInfo, SystemView, register_policy


        @register_policy
        class ShortestPrompt(Policy):
            '''Admits the shortest prompts while ``spare`` tokens stay free.'''

            info = PolicyInfo(name="acme_shortest_prompt", summary="shortest prompt first", evicts=True)

            def __init__(self, *, spare: int = 5) -> None:
                self.spare = spare

            def schedule(self, view: SystemView) -> Decision:
                '''Admit, or evict the latest to make room.'''
                active, waiting = view.active, view.waiting
                need = int(sum(active.num_kv_tokens)) + len(active)
                evict = []
                for i, tokens in zip(active.request_id[::-1], active.num_kv_tokens[::-1]):
                    if need <= view.kv_capacity:
                        break
                    need -= int(tokens) + 1
                    evict.append(int(i))
                admit = []
                if not evict:
                    for row in sorted(range(len(waiting)), key=lambda row: waiting.prompt_len[row]):
                        use = int(waiting.prompt_len[row]) + 1
                        spare = self.spare if len(active) + len(admit) else 0
                        if need + use + spare > view.kv_capacity:
                            break
                        need += use
                        admit.append(int(waiting.request_id[row]))
                return Decision(admit=admit, evict=evict)
        """,
    "acme_scheduling/wrappers.py": """
        '''Wrappers of Acme.'''

        import gymnasium as gym
        import numpy as np


        class WithoutActiveSet(gym.ObservationWrapper):
            '''Hides the active set.'''

            def __init__(self, env):
                super().__init__(env)
                parts = {k: v for k, v in env.observation_space.items() if k != "active"}
                self.observation_space = gym.spaces.Dict(parts)

            def observation(self, observation):
                '''Drop a key.'''
                return {k: v for k, v in observation.items() if k != "active"}


        class Scaled(gym.RewardWrapper):
            '''Rewards in units of ten seconds.'''

            def reward(self, reward):
                '''Divide.'''
                return reward / 10
        """,
    "acme_scheduling/main.py": """
        '''Train and compare.'''

        import json
        import sys
        from pathlib import Path

        import gymnasium as gym
        from acme_scheduling.wrappers import Scaled, WithoutActiveSet

        assert "kvgym" not in sys.modules
        env = gym.make(
            "kvgym:kvgym/AdmitCount-v0", scenario="mc-sf-model-2", observation="dict", queue_window=4,
            active_window=4, render_mode="rgb_array",
        )
        env = gym.wrappers.TimeLimit(env, max_episode_steps=24)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env = gym.wrappers.FlattenObservation(Scaled(WithoutActiveSet(env)))
        env = gym.wrappers.RecordVideo(env, "videos", episode_trigger=lambda episode: episode == 1)
        env.reset(seed=0)
        env.action_space.seed(0)
        episodes = []
        while len(episodes) < 3:
            mask = env.get_wrapper_attr("sample_mask")()
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample(mask))
            if terminated or truncated:
                episodes.append({key: float(info["episode"][key]) for key in ("r", "l")})
                env.reset()
        env.close()
        video = [path.name for path in Path("videos").glob("*.mp4") if path.stat().st_size > 1000]

        import kvgym
        import torch
        from kvgym.agents.sb3.vec_env import make_sb3_env
        from kvgym.envs.agents import AgentPolicy
        from sb3_contrib import MaskablePPO
        from stable_baselines3 import PPO

        torch.set_num_threads(1)
        task = {"scenario": "mc-sf-model-2", "queue_window": 4, "active_window": 4}
        wrapped = gym.wrappers.FlattenObservation(gym.make("kvgym/AdmitCount-v0", observation="dict", **task))
        settings = {"policy_kwargs": {"net_arch": [16]}, "seed": 0, "device": "cpu", "batch_size": 256}
        trained = {}
        for name, algorithm, vector in (
            ("ppo", PPO, wrapped),
            ("ppo_native", PPO, make_sb3_env("admit_count", 16, seed=0, **task)),
            ("maskable_ppo", MaskablePPO, wrapped),
            ("maskable_ppo_native", MaskablePPO, make_sb3_env("admit_count", 16, seed=0, **task)),
        ):
            steps = 1024 if vector is wrapped else 64
            trained[name] = algorithm("MlpPolicy", vector, n_steps=steps, **settings).learn(1000)
        agent = AgentPolicy(trained["maskable_ppo_native"], name="acme_agent", action="admit_count", **task)
        comparison = kvgym.compare("mc-sf-model-2", ["acme_shortest_prompt:spare=8", "mc_sf", agent], seeds=2)
        print(json.dumps({
            "kvgym": kvgym.__file__,
            "episodes": episodes,
            "video": video,
            "steps": {name: model.num_timesteps for name, model in trained.items()},
            "completed": {run.policy: run.completed_once for run in comparison.runs},
            "latency": {p: comparison.estimate(p, "e2e_latency_mean").value for p in comparison.policies},
            "errors": comparison.errors(),
        }))
        """,
}


def build(source: Path, folder: Path) -> Path:
    """Return the wheel of a project, built with the setuptools of the tests' environment."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Build both wheels, install them into a new environment, and run the project's program."""
    base = tmp_path_factory.mktemp("acme")
    for name, text in PROJECT.items():
        path = base / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    home = base / "env"
    venv.create(home, with_pip=False)
    site = next((home / "lib").glob("python*/site-packages"))
    for source in (ROOT, base / "project"):
        with zipfile.ZipFile(build(source, base / f"wheel-{source.name}")) as archive:
            archive.extractall(site)
    outer = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "zz-dependencies.pth").write_text(f"{outer}\n")
    done = subprocess.run(
        [home / "bin" / "python", "-W", "error", *OLD_MATPLOTLIB, "-m", "acme_scheduling.main"],
        cwd=base, env={**os.environ, "KVGYM_PLUGINS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"site": str(site)}


def test_it_uses_the_wheel(outcome):
    assert outcome["kvgym"].startswith(outcome["site"])


def test_wrappers(outcome):
    assert len(outcome["episodes"]) == 3
    assert all(0 < episode["l"] <= 24 and episode["r"] < 0 for episode in outcome["episodes"])
    assert outcome["video"] == ["rl-video-episode-1.mp4"]


def test_training(outcome):
    assert outcome["steps"].keys() == {"ppo", "ppo_native", "maskable_ppo", "maskable_ppo_native"}
    assert min(outcome["steps"].values()) >= 1000


def test_comparison(outcome):
    latency = outcome["latency"]
    assert outcome["completed"]["acme_shortest_prompt:spare=8"], outcome["errors"]
    assert outcome["completed"]["mc_sf"]
    assert 0 < latency["mc_sf"] <= latency["acme_shortest_prompt:spare=8"]
    assert outcome["completed"]["acme_agent"] or "no progress" in outcome["errors"]["acme_agent"]
