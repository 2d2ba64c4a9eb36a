"""Saved states of the scaling environment: the actions of the episode so far.

Equal requests and equal actions give equal bits, so a state is restored by taking the actions again. It is small, holds
nothing that compiled code would trust, and is restored in the time of the steps that it repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scaling.config import ScalingConfig
from kvgym.envs.scheduling.state import SavedState, Sealed
from kvgym.errors import ConfigError, shown


@dataclass(frozen=True)
class ScalingState(Sealed, SavedState):
    """A scaling environment at a moment; it can be pickled, and restored any number of times.

    Attributes:
        config: its configuration.
        seed: seed of the requests, of start-up times and of random numbers.
        memory: int64 (steps, pools), the actions so far.
        generator: state of the bit generator that draws the seeds of later episodes.
        ended: whether the episode is over.
        steps: steps of the episode so far.
    """

    config: ScalingConfig
    seed: int
    memory: NDArray[np.int64]
    generator: Mapping[str, Any]
    ended: bool
    steps: int = 0


def check_actions(memory: Any, bounds: Any) -> None:
    """Check the actions of a state.

    Args:
        memory: the actions.
        bounds: least and greatest number of each pool.

    Raises:
        ConfigError: they are not in the action space.
    """
    low, high = map(np.array, bounds)
    good = isinstance(memory, np.ndarray) and memory.dtype == np.int64 and memory.ndim == 2
    if not good or memory.shape[1] != len(low) or not ((low <= memory) & (memory <= high)).all():
        found = memory.shape if isinstance(memory, np.ndarray) else shown(memory)
        raise ConfigError(
            f"the state has actions {found}; expected whole numbers in the action space, {len(low)} for each step: it "
            "was saved by another version of kvgym, or is damaged"
        )
