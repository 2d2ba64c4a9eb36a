"""Time series of an episode in bounded memory."""

from __future__ import annotations

import numpy as np

from kvgym.envs.rendering.scene import Floats

MAX_SAMPLES = 1024
"""Upper limit of samples of a history; when it is full, neighbours are merged in pairs."""


class History:
    """Figures over time in bounded memory that keeps peaks.

    A sample represents ``stride`` consecutive moments: the time of the first, and the maximum of each figure.
    """

    def __init__(self, limit: int = MAX_SAMPLES) -> None:
        """Create an empty history; ``limit`` is even."""
        self.limit, self.stride = limit, 1
        self._taken = 0  # moments in the last sample
        self._rows: list[tuple[float, ...]] = []

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._rows)

    def add(self, time: float, *figures: float) -> None:
        """Add a moment; times must not decrease, and the number of figures must not change."""
        rows = self._rows
        if rows and self._taken < self.stride:
            rows[-1] = _larger(rows[-1], (time, *figures))
            self._taken += 1
            return
        if len(rows) == self.limit:
            rows[:] = [_larger(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            self.stride *= 2
        rows.append((time, *figures))
        self._taken = 1

    def columns(self) -> Floats:
        """Return times in seconds and each of the figures, float64 (1 + figures, samples)."""
        return np.array(self._rows, np.float64).T


def _larger(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    """Merge two neighbouring samples."""
    return (first[0], *map(max, first[1:], second[1:]))
