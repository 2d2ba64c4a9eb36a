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
    code, out, err = kvgym("watch", "curve", "run", "--out", "pictures/curve.png")
    assert code == 0, err
    assert "48 steps" in out
    assert "run: fcfs" in out
    assert (tmp_path / "pictures/curve.png").stat().st_size > 5000
    code, out, err = kvgym("evaluate", "run", "--seeds", 3, "--num-requests", 10, "--out", "found")
    assert code == 0, err
    assert "agent better by" in out
    assert "fcfs" in out
    assert (tmp_path / "found/runs.csv").exists()
    code, out, err = kvgym(
        "evaluate",
        "run/best.npz",
        "-s",
        "mc-sf-low",
        "-n",
        10,
        "--seeds",
        2,
        "-p",
        "mc_sf,fcfs",
        "--metrics",
        "ttft_p50",
    )
    assert code == 0, err
    assert "TTFT p50" in out
    code, out, err = kvgym("compare", "-p", "mc_sf,run,run/final.npz", "-n", 10, "--seeds", 2, "--no-report")
    assert code == 0, err
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
        code, _, err = kvgym(*arguments)
        assert code == 2, arguments
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
    code, _, err = kvgym("train", "--resume", "run", "--no-progress")
    assert code == 0, err


def test_an_agent_with_unfinished_requests(kvgym, config, tmp_path):
    code, out, err = kvgym("train", config, "env.horizon=0.1", "--out", "run", "--no-progress")
    assert code == 0, err
    assert "left requests unserved" in out
    assert "agent: run/final.npz" in out
    code, out, err = kvgym("evaluate", "run", "--seeds", 1, "--out", "found", "--metrics", "goodput")
    assert code == 0, err
    assert json.loads((tmp_path / "found/config.json").read_text())["scenario"]["system"]["horizon"] == 0.1
    code, _, err = kvgym("evaluate", "run", "--metrics", "batch_size")
    assert code == 2
    assert "neither more nor less of batch_size is better" in err
    code, _, err = kvgym(
        "evaluate", "run", "-s", "stab-8-gpus", "-n", 10, "--seeds", 1, "-p", "fcfs"
    )  # a cluster
    assert code == 0, err


def test_lists(kvgym):
    code, out, _ = kvgym("list", "training")
    assert code == 0
    assert "default" in out
    code, out, _ = kvgym("list", "agents")
    assert code == 0
