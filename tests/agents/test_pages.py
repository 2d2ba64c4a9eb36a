"""The examples of the pages about training run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from kvgym.agents import train
from kvgym.agents.runs.config import load_training
from kvgym.agents.trained.numpy_model import NumpyModel
from kvgym.envs.scheduling.config import EnvConfig

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "scripts" / "examples" / "train_ranking_with_sb3.py"

SMALLER = {
    '"duration": 120': '"duration": 5',
    "num_envs=64": "num_envs=2",
    "n_steps=108": "n_steps=16",
    "batch_size=1728": "batch_size=16",
    "learn(500_000)": "learn(64)",
    "seeds=range(100, 110)": "seeds=range(100, 102)",
}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def test_training_a_ranking_with_sb3(tmp_path, monkeypatch, capsys):
    code = EXAMPLE.read_text("utf-8")
    for long, short in SMALLER.items():
        assert code.count(long) == 1, long
        code = code.replace(long, short)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(EXAMPLE), "exec"), {"__name__": "__main__"})
    shown = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert list(shown) == ["scores", "ranked:slack=0,urgent=0,lost=0", "ranked", "slai"]
    assert all(np.isfinite(float(value)) for value in shown.values())
    assert NumpyModel.load(tmp_path / "scores.npz").header.action == "rank_scores"


def test_the_task_of_the_example_is_that_of_the_configuration():
    given = runpy.run_path(str(EXAMPLE))["TASK"]
    ours = EnvConfig.of(action="rank_scores", **given)
    theirs = load_training("rank_scores").env_configs()[0]
    assert ours.system.pop("horizon") == theirs.horizon
    assert ours == theirs.model_copy(update={"horizon": None})


@pytest.mark.parametrize(("page", "name"), [("evolution.md", "margin"), ("train_with_sb3.md", "deadlines")])
def test_configurations_of_evolution_run(tmp_path, page, name):
    text = (ROOT / "docs" / page).read_text("utf-8")
    (found,) = re.findall(rf"```yaml\n# {name}\.yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / f"{name}.yaml"
    path.write_text(found)
    small = ["generations=1", "services_per_generation=1", "held_out.services=1", "population=4", "jobs=1"]
    if name == "deadlines":
        small.append("services.families.0.workload.duration=5")
    assert train(load_training(path, small), tmp_path / "run").steps == 1


def test_one_decision_per_request(capsys):
    text = (ROOT / "docs" / "train_priority.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == "True False\n"
