"""The curves of a run: event files for TensorBoard and, as an option, Trackio or Weights & Biases beside them."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvgym.agents.runs.config import TrainingConfig
from kvgym.agents.runs.tensorboard import TensorBoardWriter
from kvgym.errors import ConfigError

PROJECT = "kvgym"
"""Name of the project that runs belong to."""


def check_tracker(config: TrainingConfig) -> None:
    """Check that the tracker of a configuration is installed, if it has one.

    Raises:
        ConfigError: it is not.
    """
    if config.tracker is not None:
        try:
            importlib.import_module(config.tracker)
        except ImportError as error:
            raise ConfigError(
                f"tracker {config.tracker} is not installed: pip install {config.tracker} ({error})"
            ) from error


class Tracker:
    """A run in Trackio or Weights & Biases, which have the same functions.

    The run has the name of the run folder and is in a group with the name of the configuration. A resumed run is a
    further one that continues at its step.

    Args:
        config: of the training; its ``tracker`` is the module's name.
        folder: the run folder.
    """

    def __init__(self, config: TrainingConfig, folder: Path) -> None:
        self._module: Any = importlib.import_module(str(config.tracker))
        place = {"dir": str(folder)} if config.tracker == "wandb" else {}
        self._module.init(
            project=PROJECT,
            name=folder.resolve().name,
            group=config.name,
            config=config.model_dump(mode="json"),
            **place,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        if values:
            self._module.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing: the tracker sends points by itself."""

    def close(self) -> None:
        """End the run."""
        self._module.finish()


class Curves:
    """Write scalars to TensorBoard's event files, and to the tracker of the configuration if it has one.

    Args:
        config: of the training.
        folder: the run folder.

    Attributes:
        missing: how to get curves that are not written, or "".
    """

    def __init__(self, config: TrainingConfig, folder: Path) -> None:
        files = TensorBoardWriter(folder / "tensorboard")
        self.missing = files.missing
        tracker = () if config.tracker is None else (Tracker(config, folder),)
        self._writers: tuple[TensorBoardWriter | Tracker, ...] = (files, *tracker)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve; skip non-finite values."""
        points = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        for writer in self._writers:
            writer.write(step, points)

    def flush(self) -> None:
        """Write buffered points."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Close the files, and end the run in the tracker."""
        for writer in self._writers:
            writer.close()
