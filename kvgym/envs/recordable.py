"""Drawing and recording of episodes, which all environments share.

:func:`kvgym.envs.rendering.episode.record_episode` uses nothing else of an environment.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.utils.checks import check_one_of

Act = Callable[[Any, NDArray[np.bool_]], Any]
"""A function of an observation and a mask from ``action_masks()`` that returns an action."""

RANDOM = "random"
"""Name of the player that acts at random inside the mask, in every environment."""


class MissingLibraryError(ConfigError, gym.error.DependencyNotInstalled):
    """A library that is needed only for pictures is not installed."""


def require_library(name: str, extra: str) -> None:
    """Check that a library for pictures is installed.

    Args:
        name: import name.
        extra: the extra of kvgym that installs it.

    Raises:
        MissingLibraryError: it is not; the message says how to install it.
    """
    if find_spec(name) is None:
        raise MissingLibraryError(f'this picture needs {name}; install it with: pip install "kvgym[{extra}]"')


class Recordable(ABC):
    """Mixin of an environment with episodes that can be drawn, recorded and played by name."""

    action_space: Any
    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}  # noqa: RUF012
    metric_names: ClassVar[tuple[str, ...]]
    render_mode: str | None

    def set_render_mode(self, mode: str | None) -> None:
        """Set the render mode.

        Raises:
            ConfigError: it is unknown.
            MissingLibraryError: Pillow, which draws pictures, is missing.
        """
        if mode is not None:
            check_one_of(mode, "render_mode", self.metadata["render_modes"])
        if mode == "rgb_array":
            require_library("PIL", "pictures")
        self.render_mode = mode

    def render(self) -> Any:
        """Return a picture (uint8 H x W x 3) or a text of the current moment, depending on the render mode."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='rgb_array' or 'ansi' in gymnasium.make")
            return None
        scene = self.scene()
        if self.render_mode == "ansi":
            return scene.text()
        from kvgym.envs.rendering.picture import draw

        return draw(scene)

    @abstractmethod
    def scene(self) -> Any:
        """Return what is drawn of the current moment, a :class:`~kvgym.envs.rendering.scene.Scene`.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """

    @property
    @abstractmethod
    def caption(self) -> str:
        """Title of a picture: the scenario and the distinguishing options of the environment."""

    @abstractmethod
    def recording(self) -> Any:
        """Return a :class:`~kvgym.envs.rendering.recorder.Recorder` of the current episode, from now on.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode yet.
        """

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
