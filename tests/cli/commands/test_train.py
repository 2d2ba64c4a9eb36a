"""``kvgym train``, ``kvgym evaluate`` and agents on the command line, run in process."""

import inspect
import json
import re
from typing import get_args

import pytest
import yaml

from kvgym.agents.runs.config import load_training
from kvgym.cli.commands.learning.train import train

TINY = {
    "env": {"action": "knobs", "num_requests": 10, "queue_window": 2, "active_window": 2},
    "num_envs": 2,
    "network": {"hidden": [4]},
    "hyperparameters": {"n_steps": 8, "batch_size": 16, "n_epochs": 1},
    "total_steps": 32,
    "evaluation": {"interval": 16, "seeds": 1, "baselines": ["fcfs"]},
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def test_the_changes_that_the_help_shows_are_accepted():
    parameters = inspect.get_annotations(train, eval_str=True)
    [argument] = get_args(parameters["overrides"])[1:]
    of_default, of_rank_scores = argument.help.split("; for rank_scores, ")
    for name, text in (("default", of_default), ("rank_scores", of_rank_scores)):
        changes = re.findall(r"[\w.]+=[\w.]*\w", text)
        assert len(changes) == 2
        load_training(name, changes)


def test_train_resume_evaluate_compare(kvgym, config, tmp_path):
    code, out, err = kvgym("train", config, "--out", "run", "seed=3")
    assert code == 0, err
    assert "fcfs: " in out
    assert "agent: " in out
    assert "32 of 32 steps" in err  # no terminal: lines instead of a bar
    assert json.loads((tmp_path / "run/run.json").read_text())["seed"] == 3
    code, out, err = kvgym("train", "--resume", "run", "--total-steps", 48, "--no-progress")
    assert code == 0, err
    assert "48" in out or "steps" in out
    assert "of 48 steps" not in err
    out = kvgym.output("watch", "curve", "run", "--out", "pictures/curve.png")
    assert "48 steps" in out
    assert "run: fcfs" in out
    assert (tmp_path / "pictures/curve.png").stat().st_size > 5000
    out = kvgym.output("evaluate", "run", "--seeds", 3, "--num-requests", 10, "--out", "found")
    assert "agent better by" in out
    assert "fcfs" in out
    assert (tmp_path / "found/runs.csv").exists()
    out = kvgym.output("evaluate run/best.npz -s mc-sf-low -n 10 --seeds 2 -p mc_sf,fcfs --metrics ttft_p50")
    assert "TTFT p50" in out
    out = kvgym.output("compare", "-p", "mc_sf,run,run/final.npz", "-n", 10, "--seeds", 2, "--no-report")
    assert "run/final" in out


def test_mistakes(kvgym, config):
    for arguments, message in (
        (("train", "defalt"), "unknown training configuration 'defalt'"),
        (("train", config, "--resume", "run"), "--resume continues"),
        (("train", "--resume", "nowhere"), "holds no training run"),
        (("train", config, "total_step=3"), "valid there"),
        (("evaluate", "unknown"), "unknown agent 'unknown'"),
        (("evaluate", "unknown.npz"), "unknown.npz"),
        (("list", "agent"), "agents"),
    ):
        err = kvgym.error(*arguments)
        assert message in err


def test_interrupted_and_unwritable(kvgym, config, tmp_path, monkeypatch):
    for error, code, message in (
        (KeyboardInterrupt(), 130, "resume with kvgym train --resume run"),
        (OSError(28, "No space left on device"), 2, "cannot be written: [Errno 28] No space"),
    ):

        def save(*_, error=error):
            raise error

        monkeypatch.setattr("kvgym.agents.runs.run.save_checkpoint", save)
        found, _, err = kvgym("train", config, "--out", "run" if code == 130 else "full", "--no-progress")
        assert found == code
        assert message in err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    kvgym.output("train", "--resume", "run", "--no-progress")


def test_an_agent_with_unfinished_requests(kvgym, config, tmp_path):
    out = kvgym.output("train", config, "env.horizon=0.1", "--out", "run", "--no-progress")
    assert "left requests unserved" in out
    assert "agent: run/final.npz" in out
    kvgym.output("evaluate", "run", "--seeds", 1, "--out", "found", "--metrics", "goodput")
    assert json.loads((tmp_path / "found/config.json").read_text())["scenario"]["system"]["horizon"] == 0.1
    err = kvgym.error("evaluate", "run", "--metrics", "batch_size")
    assert "neither more nor less of batch_size is better" in err
    kvgym.output("evaluate run -s stab-8-gpus -n 10 --seeds 1 -p fcfs")  # a cluster


def test_lists(kvgym):
    out = kvgym.output("list", "training")
    assert "default" in out
    kvgym.output("list", "agents")
