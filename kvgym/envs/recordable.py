"""What environments of different kinds have in common for those who record their episodes.

:func:`kvgym.envs.rendering.episode.record_episode` knows an environment by nothing else.
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
"""Takes an observation and a mask as of ``action_masks()``, returns an action."""

RANDOM = "random"
"""Name of what plays at random inside the mask, in every environment."""


class Recording(Protocol):
    """Follows one episode, in memory that does not grow with its length."""

    def take(self) -> None:
        """Note the present state; called after ``reset`` and after every step."""
        ...

    def scene(self) -> Any:
        """Return the present moment, all there is to draw of it, which later steps do not change."""
        ...

    def draw(self, moment: Any) -> NDArray[np.uint8]:
        """Return a moment as an image, uint8 (600, 800, 3)."""
        ...

    def write_summary(self, title: str, path: Path | IO[bytes]) -> None:
        """Write a picture of the episode so far as a PNG file.

        Args:
            title: first line.
            path: the file, open for writing, or its name in a folder that exists.

        Raises:
            MissingLibraryError: matplotlib is missing.
        """
        ...


class Recordable(ABC):
    """Mixin of an environment whose episodes can be recorded and played by name."""

    action_space: Any
    metric_names: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def caption(self) -> str:
        """What is played, for the title of a picture: scenario and what is special to the environment."""

    @abstractmethod
    def recording(self) -> Recording:
        """Return what follows the present episode from now on, to its end."""

    @abstractmethod
    def players(self) -> tuple[str, ...]:
        """Return the names of what can play without training; the first is the default."""

    @abstractmethod
    def player(self, name: str, seed: int) -> Act:
        """Return what chooses actions, for one episode.

        Args:
            name: one of :meth:`players`.
            seed: of its own random numbers.

        Raises:
            UnknownNameError: nothing of that name plays here.
        """

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """Return the mask as sb3-contrib reads it."""

    @abstractmethod
    def sample_mask(self) -> Any:
        """Return the mask in the form that ``action_space.sample(mask=...)`` takes, as ``info["action_mask"]`` is."""

    def random_player(self, seed: int) -> Act:
        """Return what plays at random inside the mask, without touching the environment's own generators."""
        space = copy.deepcopy(self.action_space)
        space.seed(seed)
        return lambda observation, mask: space.sample(mask=self.sample_mask())
