"""Small training runs of every kind, their interruption, and what two of them are compared by."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "name": "small",
    "algorithm": "maskable_ppo",
    "env": {
        "action": "admit_count",
        "scenario": "a100-llama2-70b",
        "must_admit": False,
        "token_scale": "capacity",
        "num_requests": 6,
        "rate": 20.0,
        "queue_window": 6,
        "active_window": 2,
        "epochs": "decision",
    },
    "num_envs": 4,
    "network": {"hidden": [8]},
    "hyperparameters": {"n_steps": 16, "batch_size": 32, "n_epochs": 1},
    "total_steps": 256,
    "warm_start": {"policy": "fcfs", "steps": 256, "epochs": 5},
    "evaluation": {"interval": 128, "seeds": 2, "baselines": ["fcfs"]},
}
"""Stable-Baselines3: two updates between evaluations."""

REINFORCE: dict[str, Any] = {
    "name": "tiny",
    "algorithm": "reinforce",
    "env": {"scenario": "hidden-kinds", "scheduler": "mc_sf", "num_requests": 5},
    "inputs": ["asked.prompt", "system.num_active"],
    "hidden": [3],
    "groups": 2,
    "updates": 2,
    "evaluation": {"interval": 1, "seeds": 2, "baselines": ["fcfs"]},
}


class StopError(Exception):
    """Stands for whatever interrupts a run."""


def interrupted(config: Any, folder: Path) -> None:
    """Train up to an update after the first checkpoint that a run continues from."""
    from kvgym.agents import train
    from kvgym.agents.runs.checkpoints import checkpoints

    def stop(done: int) -> None:
        if any(int(place.name.removeprefix("step-")) for place in checkpoints(folder / "checkpoints")):
            raise StopError

    with pytest.raises(StopError):
        train(config, folder, progress=stop)


def learner_of(config: Any, folder: Path) -> Any:
    """Return the learner of a configuration, outside of a run."""
    from kvgym.agents.runs.config import kind_of
    from kvgym.agents.runs.progress import TrainingLog
    from kvgym.agents.runs.tracker import Curves

    log = TrainingLog(folder, config.length, config.units, config.figure)
    return kind_of(config.algorithm).learner_class()(config, folder, log, Curves(config, folder))


def curve_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run's ``curve.csv`` without the time that it took."""
    rows = csv.DictReader((folder / "curve.csv").read_text().splitlines())
    return [{name: text for name, text in row.items() if name != "cpu_seconds"} for row in rows]


def results(folder: Path) -> dict[str, Any]:
    """Return what a run has found, to be compared bit for bit: its curve, and the content of its agents' files."""
    import numpy as np

    found: dict[str, Any] = {"curve": curve_of(folder)}
    for file in folder.glob("*.npz"):
        found[file.name] = {name: array.tobytes() for name, array in np.load(file).items()}
    for file in (folder / "best.json", folder / "final.json"):
        if file.exists():
            found[file.name] = file.read_bytes()
    return found
