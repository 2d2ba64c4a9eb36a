"""Result of a training run by gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingResult:
    """Result of a finished run.

    Attributes:
        folder: the run folder.
        steps: environment steps, or updates.
        best: evaluation metric of the best agent.
        best_step: when the best agent was found.
        baselines: metric of each baseline on the same requests; NaN if it failed.
        curve: rows of ``curve.csv``.
        metric: evaluation metric.
        unit: what ``steps`` counts.
    """

    folder: Path
    steps: int
    best: float
    best_step: int
    baselines: dict[str, float]
    curve: tuple[dict[str, float], ...]
    metric: str
    unit: str = "steps"

    def report(self) -> list[str]:
        """Return the result as lines; the last one is the file of the agent."""
        lines = [f"{self.metric} on the evaluation's requests:"]
        for label, value in self.baselines.items():
            lines.append(f"  {label}: {'failed' if math.isnan(value) else f'{value:.4g}'}")
        best = self.folder / "best.npz"
        if best.exists():
            lines.append(
                f"  agent: {self.best:.4g} (best of {len(self.curve)}, after {self.best_step:,} {self.unit})"
            )
        else:
            lines.append("  agent: left requests unserved in every evaluation; the last one is kept")
            best = self.folder / "final.npz"
        return [*lines, f"agent: {best}"]
