"""A training as a source of states: its folder, read again when it changes."""

from __future__ import annotations

import math
from pathlib import Path

from kvgym.agents.curves import read_curve
from kvgym.agents.runs.config import read_run_config
from kvgym.agents.runs.progress import FILE
from kvgym.cli.watch.source import Chart, Row, Source
from kvgym.errors import ConfigError
from kvgym.utils.reading import read_text

INTERVAL = 1.0
"""Time between two checks of the folder, seconds."""

NUM_LINES = 12
"""Number of lines of the log that are shown."""


class LiveTraining(Source):
    """A training run as a source of states.

    Args:
        folder: of ``kvgym train``; the training may go on, or be over.

    Raises:
        ConfigError: the folder has no training run.
    """

    def __init__(self, folder: Path) -> None:
        config = read_run_config(folder)
        self.folder = folder
        about = [config.summary, f"Seed {config.seed}, {config.length:,} steps or generations"]
        super().__init__(f"Training {config.name}", about, [], "")

    def follow(self) -> None:
        """Read the folder whenever one of its files has changed."""
        seen: list[int] | None = None
        while not self.stopped:
            now = [self._changed(name) for name in ("curve.csv", FILE, "final.npz", "final.json")]
            if now != seen:
                seen = now
                self._read(over=max(now[2:]) > 0)
            with self.changed:
                if not self._stopped:
                    self.changed.wait(INTERVAL)

    def _changed(self, name: str) -> int:
        try:
            return (self.folder / name).stat().st_mtime_ns
        except OSError:
            return 0

    def _read(self, over: bool) -> None:
        path = self.folder / FILE
        lines = read_text(path, "log").splitlines()[-NUM_LINES:] if path.is_file() else []
        status = "finished" if over else "training"
        try:
            curve = read_curve(self.folder)
        except ConfigError as error:  # before the first evaluation
            self.update(status=status, message=str(error), lines=lines)
            return
        rivals = curve.get("baselines", {})
        known = ([x, y, *rivals.values()] for x, y in zip(curve["x"], curve["y"], strict=True))
        rows: list[Row] = [[x if math.isfinite(x) else None for x in row] for row in known]
        chart = Chart(curve["y_label"], "", ("agent", *rivals))
        tiles = [
            (curve["unit"].capitalize(), f"{curve['length']:,}"),
            ("Evaluations", f"{curve['rows']:,}"),
            ("Latest", f"{curve['y'][-1]:.5g}"),
        ]
        self._fixed |= {"charts": [chart._asdict()], "x_label": curve["x_label"]}
        self.update(rows, replace=True, status=status, message="", lines=lines, tiles=tiles)
