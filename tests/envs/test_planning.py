"""The examples of docs/planning.md: a saved state, and rollouts that are at least as good as their base policy."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import gymnasium as gym

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planning.md"


def test_the_example_of_states_runs():
    (states,) = re.findall(r"(?<! -->\n)```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(compile(states, str(PAGE), "exec"), {})


def test_rollouts_improve_on_their_base_policy(capsys):
    found = runpy.run_path(str(ROOT / "scripts" / "examples" / "rollouts.py"))
    found["main"]()
    base, planned = map(float, re.findall(r"([\d.]+) s", capsys.readouterr().out))
    assert planned < base
    env = gym.make("kvgym/AdmitCount-v0", scenario="mc-sf-model-2", num_requests=30, queue_window=4).unwrapped
    base, planned = (found["play"](env, found[name], seed=1) for name in ("admit_all", "rollout_action"))
    assert planned >= base
