"""Learned policies: training, evaluation, networks and trained agents (import name ``kvgym.agents``).

Nothing here imports PyTorch or Stable-Baselines3 before it is used; trained agents run on NumPy alone, and
:mod:`kvgym.policy` loads them by name.
May import :mod:`kvgym.envs` and what is below it; may be imported from :mod:`kvgym.cli` only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "kvgym.agents":
    raise ImportError("import this package as kvgym.agents, not from the repository's folder")

if TYPE_CHECKING:
    from kvgym.agents.config import TrainConfig, load_training, training_names
    from kvgym.agents.evolution.config import EvolutionConfig
    from kvgym.agents.evolution.model import EvolvedModel
    from kvgym.agents.library import agent_names, load_agent, load_router
    from kvgym.agents.numpy_model import NumpyModel
    from kvgym.agents.trainers import resume, train
    from kvgym.agents.training import TrainingResult

_HOME = {
    "EvolutionConfig": "evolution.config",
    "EvolvedModel": "evolution.model",
    "NumpyModel": "numpy_model",
    "TrainConfig": "config",
    "TrainingResult": "training",
    "agent_names": "library",
    "load_agent": "library",
    "load_router": "library",
    "load_training": "config",
    "resume": "trainers",
    "train": "trainers",
    "training_names": "config",
}

__all__ = [
    "EvolutionConfig",
    "EvolvedModel",
    "NumpyModel",
    "TrainConfig",
    "TrainingResult",
    "agent_names",
    "load_agent",
    "load_router",
    "load_training",
    "resume",
    "train",
    "training_names",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
