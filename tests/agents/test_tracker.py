"""Curves in Trackio or Weights & Biases in addition to TensorBoard."""

from __future__ import annotations

import math
import sys

import pytest

from helpers.training.fake_tracker import FakeTracker
from helpers.training.training_runs import REINFORCE
from kvgym.agents import train
from kvgym.agents.runs.config import make_training
from kvgym.agents.runs.tracker import Curves
from kvgym.errors import ConfigError

TINY = {**REINFORCE, "updates": 1, "groups": 1, "evaluation": {**REINFORCE["evaluation"], "seeds": 1}}


def test_a_run_is_sent_to_the_tracker(tmp_path, monkeypatch):
    tracker = FakeTracker(monkeypatch, "wandb")
    result = train(make_training({**TINY, "tracker": "wandb"}), tmp_path / "run")
    started = tracker.started
    assert (started["project"], started["name"], started["group"]) == ("kvgym", "run", "tiny")
    assert started["dir"] == str(tmp_path / "run")
    assert started["config"]["env"]["scheduler"] == "mc_sf"
    assert tracker.finished == 1
    assert tracker.curves["kv/eval/e2e_latency_mean"] == {
        row["updates"]: row["e2e_latency_mean"] for row in result.curve
    }
    assert tracker.curves["train/return"].keys() == {1}  # there is none before the first update
    assert tracker.curves["baselines/fcfs"] == dict.fromkeys((0, 1), result.baselines["fcfs"])


def test_points_that_are_not_finite_are_left_out(tmp_path, monkeypatch):
    tracker = FakeTracker(monkeypatch, "trackio")
    curves = Curves(make_training({**TINY, "tracker": "trackio"}), tmp_path)
    curves.write(0, {"x": math.nan})
    curves.write(4, {"x": 1.5, "y": math.inf})
    curves.close()
    assert tracker.curves == {"x": {4: 1.5}}
    assert "dir" not in tracker.started


def test_a_missing_tracker_is_named_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ConfigError, match="tracker trackio is not installed: pip install trackio"):
        train(make_training({**TINY, "tracker": "trackio"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrong_tracker_is_refused():
    with pytest.raises(ConfigError, match="tracker"):
        make_training({**TINY, "tracker": "mlflow"})
