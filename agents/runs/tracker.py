"""The curves of a run: event files for TensorBoard and, as an option, Trackio or Weights & Biases, too."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvgym.agents.runs.config import TrainingConfig
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


class TensorBoardWriter:
    """Write scalars to event files, without PyTorch; does nothing if TensorBoard is not installed.

    Args:
        folder: of the event files.

    Attributes:
        missing: how to get curves that are not written, or "".
    """

    def __init__(self, folder: Path) -> None:
        self.missing = ""
        self._writer: Any = None
        try:
            writers = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            self._events = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        except ImportError as error:
            self.missing = f'no curves for TensorBoard: pip install "kvgym[train]" ({error})'
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writers.EventFileWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        if self._writer is None:
            return
        points = [
            self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in values.items()
        ]
        self.add(self._summaries.Summary(value=points), step)

    def add(self, summary: Any, step: int = 0) -> None:
        """Add a summary of TensorBoard's own form; needs TensorBoard."""
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Write buffered points."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()


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

    def close(self) -> None:
        """End the run."""
        self._module.finish()


class Curves:
    """Write scalars to TensorBoard's event files, and to the tracker of the configuration if it has one.

    Args:
        config: of the training.
        folder: the run folder.

    Attributes:
        files: TensorBoard's event files.
        missing: how to get curves that are not written, or "".
    """

    def __init__(self, config: TrainingConfig, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self.files = TensorBoardWriter(self._folder)
        self.missing = self.files.missing
        self._tracker = None if config.tracker is None else Tracker(config, folder)
        self._rivals: dict[str, TensorBoardWriter] = {}

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve; skip non-finite values."""
        points = _finite(values)
        self.files.write(step, points)
        if self._tracker is not None:
            self._tracker.write(step, points)

    def write_rivals(
        self, step: int, rivals: Mapping[str, Mapping[str, float]], names: Sequence[str]
    ) -> None:
        """Add the figures of baselines: in TensorBoard lines in the agent's charts, in the tracker curves of the first.

        Args:
            step: of the point.
            rivals: metrics by label of the baseline.
            names: of the metrics to add.
        """
        if self._tracker is not None:
            first = {f"baselines/{label}": values[names[0]] for label, values in rivals.items()}
            self._tracker.write(step, _finite(first))
        for label, values in rivals.items():
            if label not in self._rivals:
                place = "".join(c if c.isalnum() or c in "_-." else "-" for c in label)
                self._rivals[label] = TensorBoardWriter(self._folder / f"baseline-{place}")
            self._rivals[label].write(step, _finite({f"kv/eval/{name}": values[name] for name in names}))
            self._rivals[label].flush()

    def flush(self) -> None:
        """Write buffered points."""
        self.files.flush()

    def close(self) -> None:
        """Close the files, and end the run in the tracker."""
        for writer in (self.files, *self._rivals.values()):
            writer.close()
        if self._tracker is not None:
            self._tracker.close()


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
