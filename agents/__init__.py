"""Learned policies: training, evaluation, networks and trained agents, imported as ``kvgym.agents``.

PyTorch and Stable-Baselines3 are imported only when used. Trained agents run on NumPy alone, and
:mod:`kvgym.policies.policy` loads them by name.
May import :mod:`kvgym.envs` and what is below it; may be imported from :mod:`kvgym.cli` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if __name__ != "kvgym.agents":
    raise ImportError("import this package as kvgym.agents, not from the repository's folder")

if TYPE_CHECKING:
    from kvgym.agents.evolution.config import EvolutionConfig
    from kvgym.agents.evolution.model import EvolvedModel
    from kvgym.agents.library import agent_names, load_agent, load_autoscaler, load_router
    from kvgym.agents.runs.config import load_training, training_names
    from kvgym.agents.runs.run import TrainingResult, resume, train
    from kvgym.agents.sb3 import export
    from kvgym.agents.sb3.config import TrainConfig
    from kvgym.agents.sb3.discounting import discount_by_time
    from kvgym.agents.sb3.networks import policy_for
    from kvgym.agents.sb3.vec_env import make_sb3_env
    from kvgym.agents.trained.numpy_model import NumpyModel
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "runs.config": "load_training training_names",
            "evolution.config": "EvolutionConfig",
            "evolution.model": "EvolvedModel",
            "library": "agent_names load_agent load_autoscaler load_router",
            "sb3.config": "TrainConfig",
            "sb3.discounting": "discount_by_time",
            "sb3.networks": "policy_for",
            "trained.numpy_model": "NumpyModel",
            "runs.run": "TrainingResult resume train",
            "sb3.vec_env": "make_sb3_env",
        },
        "sb3.export",
    )

__all__ = [
    "EvolutionConfig",
    "EvolvedModel",
    "NumpyModel",
    "TrainConfig",
    "TrainingResult",
    "agent_names",
    "discount_by_time",
    "export",
    "load_agent",
    "load_autoscaler",
    "load_router",
    "load_training",
    "make_sb3_env",
    "policy_for",
    "resume",
    "train",
    "training_names",
]
