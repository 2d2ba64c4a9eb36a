"""``kvgym train`` with evolution, and commands that use its results, run in process."""

import json

import pytest
import yaml

from helpers.training.evolution_runs import TINY
from kvgym.agents import library
from kvgym.agents.evolution.model import EvolvedModel


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, "generations": 2}))
    return path


def test_train_resume_evaluate_compare(kvgym, config, tmp_path):
    out = kvgym.output("train", config, "--out", "run", "seed=3", "weights.protection.start=0.7")
    for text in (
        "tiny: the margin",
        "  start: -",
        "  agent: ",
        "agent: run/best.json",
        "next:  kvgym evaluate run",
    ):
        assert text in out
    assert json.loads((tmp_path / "run/run.json").read_text())["seed"] == 3
    kvgym.output("train", "--resume", "run", "--generations", 4, "--no-progress")
    assert len((tmp_path / "run/curve.csv").read_text().splitlines()) == 4
    out = kvgym.output("evaluate", "run", "--seeds", 3, "--out", "found")
    assert "agent better by" in out
    assert "mc_benchmark:overrun=extend" in out
    scenario = json.loads((tmp_path / "found/config.json").read_text())["scenario"]
    assert scenario["kv_capacity"] == 1500
    out = kvgym.output("compare", "-p", "fcfs,run/best.json,run", "-n", 10, "--seeds", 1)
    assert "run/best" in out


def test_interrupted(kvgym, config, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvgym.agents.runs.run.save_checkpoint", stop)
    code, _, err = kvgym("train", config, "--out", "run", "--no-progress")
    assert code == 130
    assert "resume with kvgym train --resume run" in err


def test_mistakes(kvgym, config, tmp_path):
    (tmp_path / "agent.json").write_text("{}")
    for arguments, message in (
        (("train", config, "populaton=3"), "valid there: name"),
        (("train", config, "algorithm=sgd"), "unknown algorithm 'sgd'"),
        (("train", config, "--total-steps", 0), "Invalid value"),
        (("compare", "-p", "agent.json"), "not an evolved agent"),
        (("evaluate", "none.json"), "cannot be read: No such file"),
    ):
        err = kvgym.error(*arguments)
        assert message in err


def test_an_agent_that_comes_with_kvgym(kvgym, tmp_path, monkeypatch):
    path = tmp_path / "margin.json"
    EvolvedModel("mc_sf", {}, {"protection": 0.1}, {"summary": "a margin"}).save(path)
    monkeypatch.setattr(library, "_files", lambda: {"margin": path})
    out = kvgym.output("list", "agents")
    assert "a margin" in out
    out = kvgym.output("compare", "-p", "fcfs,margin", "-n", 10, "--seeds", 1, "--no-report")
    assert " margin" in out
    kvgym.output("evaluate", "margin", "-n", 10, "--seeds", 1, "-p", "fcfs")
