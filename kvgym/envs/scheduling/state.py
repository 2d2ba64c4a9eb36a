"""The state of an environment at a moment, for planners that try what comes of an action and go back.

An episode is one block of memory (:class:`~kvgym.envs.scheduling.memory.Block`), so that saving and restoring it are a
copy each. The future is part of the state: requests that have not arrived lie in the block, and a copy continues with
the same ones. A planner that plays copies knows what no scheduler can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling.config import EnvConfig
from kvgym.envs.scheduling.reward_reference import ReferenceRewards
from kvgym.errors import ConfigError, shown
from kvgym.workloads.table import RequestTable


@dataclass(frozen=True)
class EpisodeState:
    """An episode at a moment; it can be pickled, and restored as often as one likes.

    Attributes:
        num_requests: requests that its tables have room for.
        memory: uint8, a copy of its tables.
        outputs: copies of what the latest step has written, see :attr:`Episodes.outputs`.
        table: its requests.
        reference: what the reference policy earns on them; all but its last look is never written.
    """

    num_requests: int
    memory: NDArray[np.uint8]
    outputs: tuple[NDArray[Any], ...]
    table: RequestTable
    reference: ReferenceRewards | None


@dataclass(frozen=True)
class SavedState:
    """What is saved of an environment, with what it was made with.

    Attributes:
        config: its configuration.
    """

    config: Any

    @classmethod
    def check(cls, state: Any, config: Any) -> None:
        """Check that something is a state that can be restored in an environment.

        Raises:
            ConfigError: it is none, or of an environment with other arguments.
        """
        if not isinstance(state, cls):
            raise ConfigError(f"state = {shown(state)}; expected what get_state() has returned")
        if state.config is config or state.config == config:
            return
        names = type(config).model_fields
        other = [name for name in names if getattr(state.config, name, None) != getattr(config, name)]
        raise ConfigError(
            f"the state is of an environment with another {', '.join(other)}; make both with the same arguments"
        )


@dataclass(frozen=True)
class EnvState(SavedState):
    """An environment at a moment: the episode, and the random numbers that later ones are drawn with.

    Attributes:
        config: its configuration.
        episode: the episode.
        generator: state of the bit generator.
        ended: whether the episode is over.
        steps: steps of the episode so far; the ``TimeLimit`` around a single environment has its own count.
    """

    config: EnvConfig
    episode: EpisodeState
    generator: Mapping[str, Any]
    ended: bool
    steps: int = 0
