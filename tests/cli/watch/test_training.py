"""Live trainings: a folder that grows."""

from __future__ import annotations

import threading

import pytest

from kvgym.agents.runs.config import load_training
from kvgym.agents.runs.folder import write_config
from kvgym.cli.watch import training
from kvgym.cli.watch.training import LiveTraining
from kvgym.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    write_config(tmp_path, load_training("dqn"))
    return tmp_path


def test_a_folder_that_grows(folder, monkeypatch):
    monkeypatch.setattr(training, "INTERVAL", 0.02)
    source = LiveTraining(folder)
    thread = threading.Thread(target=source.run)
    thread.start()

    def next_state():
        return source.state(version=state["version"], timeout=30)

    state = source.state(version=0, timeout=30)
    assert (state["status"], state["rows"], state["speed"]) == ("training", [], None)
    assert "curve" in state["message"]
    (folder / "train.log").write_text("2026-01-01 00:00:00  10 of 100 steps\n")
    state = next_state()
    assert state["lines"] == ["2026-01-01 00:00:00  10 of 100 steps"]
    (folder / "curve.csv").write_text("steps,e2e_latency_mean\n0,9.5\n1000000,nan\n")
    state = next_state()
    assert state["rows"] == [[0.0, 9.5], [1.0, None]]
    assert state["charts"][0]["title"] == "e2e_latency_mean"
    assert dict(state["tiles"])["Steps"] == "1,000,000"
    (folder / "final.npz").touch()
    assert next_state()["status"] == "finished"
    source.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_no_training(tmp_path):
    with pytest.raises(ConfigError, match="holds no training run"):
        LiveTraining(tmp_path)
