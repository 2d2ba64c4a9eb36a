"""Ways to train, by algorithm: which class describes a run, and which module carries it out.

They are loaded by name, so that PyTorch is imported for those that need it only.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from kvgym.errors import UnknownNameError


@dataclass(frozen=True)
class Kind:
    """A way to train.

    Attributes:
        algorithms: values of ``algorithm`` in a configuration.
        config: ``"module:class"`` of the configuration, a :class:`kvgym.agents.runs.config.TrainingConfig`.
        runner: module with ``train(config, folder, command=, progress=, tell=)`` and
            ``resume(folder, length=, command=, progress=, tell=)``, both of which return a result with ``report()``.
    """

    algorithms: tuple[str, ...]
    config: str
    runner: str

    def config_class(self) -> Any:
        """Return the class of the configuration."""
        module, _, name = self.config.partition(":")
        return getattr(importlib.import_module(module), name)


KINDS = (
    Kind(
        algorithms=("maskable_ppo", "ppo", "a2c", "dqn"),
        config="kvgym.agents.runs.config:TrainConfig",
        runner="kvgym.agents.sb3.training",
    ),
    Kind(
        algorithms=("cma_es", "openai_es"),
        config="kvgym.agents.evolution.config:EvolutionConfig",
        runner="kvgym.agents.evolution.training",
    ),
)


def kind_of(algorithm: Any) -> Kind:
    """Return the way to train by an algorithm.

    Raises:
        UnknownNameError: there is none.
    """
    for kind in KINDS:
        if algorithm in kind.algorithms:
            return kind
    raise UnknownNameError("algorithm", str(algorithm), [name for kind in KINDS for name in kind.algorithms])
