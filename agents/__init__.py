"""Learned policies: training, evaluation, networks and trained agents (import name ``kvgym.agents``).

Nothing here imports PyTorch or Stable-Baselines3 before it is used; trained agents run on NumPy alone, and
:mod:`kvgym.policy` loads them by name.
May import :mod:`kvgym.envs` and what is below it; may be imported from :mod:`kvgym.cli` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.lazy import lazy_names

if __name__ != "kvgym.agents":
    raise ImportError("import this package as kvgym.agents, not from the repository's folder")

if TYPE_CHECKING:
    from kvgym.agents import export
    from kvgym.agents.config import TrainConfig, load_training, training_names
    from kvgym.agents.evolution.config import EvolutionConfig
    from kvgym.agents.evolution.model import EvolvedModel
    from kvgym.agents.library import agent_names, load_agent, load_router
    from kvgym.agents.networks import policy_for
    from kvgym.agents.numpy_model import NumpyModel
    from kvgym.agents.trainers import resume, train
    from kvgym.agents.training import TrainingResult
    from kvgym.agents.vec_env import make_sb3_env
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "config": "TrainConfig load_training training_names",
            "evolution.config": "EvolutionConfig",
            "evolution.model": "EvolvedModel",
            "library": "agent_names load_agent load_router",
            "networks": "policy_for",
            "numpy_model": "NumpyModel",
            "trainers": "resume train",
            "training": "TrainingResult",
            "vec_env": "make_sb3_env",
        },
        "export",
    )

__all__ = [
    "EvolutionConfig",
    "EvolvedModel",
    "NumpyModel",
    "TrainConfig",
    "TrainingResult",
    "agent_names",
    "export",
    "load_agent",
    "load_router",
    "load_training",
    "make_sb3_env",
    "policy_for",
    "resume",
    "train",
    "training_names",
]
