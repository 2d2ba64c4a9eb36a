"""Interface for recording episodes, which all environments share.

:func:`kvgym.envs.rendering.episode.record_episode` uses nothing else of an environment.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Act = Callable[[Any, NDArray[np.bool_]], Any]
"""A function of an observation and a mask from ``action_masks()`` that returns an action."""

RANDOM = "random"
"""Name of the player that acts at random inside the mask, in every environment."""


class Recording(Protocol):
    """A recording of one episode, in memory that does not grow with its length."""

    def take(self) -> None:
        """Record the current state; called after ``reset`` and after every step."""
        ...

    def scene(self) -> Any:
        """Return all drawn content of the current moment, which later steps do not change."""
        ...

    def draw(self, moment: Any) -> NDArray[np.uint8]:
        """Return a moment as an image, uint8 (600, 800, 3)."""
        ...

    def write_summary(self, title: str, path: Path | IO[bytes]) -> None:
        """Write a picture of the episode so far as a PNG file.

        Args:
            title: first line.
            path: the file, open for writing, or its path in an existing folder.

        Raises:
            MissingLibraryError: matplotlib is missing.
        """
        ...


class Recordable(ABC):
    """Mixin of an environment with episodes that can be recorded and played by name."""

    action_space: Any
    metric_names: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def caption(self) -> str:
        """Title of a picture: the scenario and the distinguishing options of the environment."""

    @abstractmethod
    def recording(self) -> Recording:
        """Return a recording of the current episode, from now on."""

    @abstractmethod
    def players(self) -> tuple[str, ...]:
        """Return the names of players that need no training; the first is the default."""

    @abstractmethod
    def player(self, name: str, seed: int) -> Act:
        """Return the function of a player that chooses actions, for one episode.

        Args:
            name: one of :meth:`players`.
            seed: seed of its random numbers.

        Raises:
            UnknownNameError: there is no player of this name.
        """

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask as sb3-contrib reads it."""

    @abstractmethod
    def sample_mask(self) -> Any:
        """Return the mask in the form that ``action_space.sample(mask=...)`` takes, as in ``info["action_mask"]``."""

    def random_player(self, seed: int) -> Act:
        """Return a player that acts at random inside the mask, without using the environment's generators."""
        space = copy.deepcopy(self.action_space)
        space.seed(seed)
        return lambda observation, mask: space.sample(mask=self.sample_mask())
