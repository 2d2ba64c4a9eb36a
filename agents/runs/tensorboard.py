"""Event files for TensorBoard, written without PyTorch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
        summary = self._summaries.Summary(value=points)
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Write buffered points."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self._writer is not None:
            self._writer.close()
