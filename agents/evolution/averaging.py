"""The mean of a search's centres, the later ones weighing more: what is evaluated where a generation is noisy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvgym.agents.evolution.strategies import Vector
from kvgym.errors import ConfigError, shown


class Averaging:
    """Polynomial-decay averaging (O. Shamir, T. Zhang, "Stochastic Gradient Descent for Non-smooth Optimization").

    A generation sees few services, so that the centre of the search wanders around the optimum by what these happen to
    prefer; the mean of many centres wanders less (Polyak and Ruppert). After generation t it moves towards the centre
    by (decay + 1) / (t + decay) of the way: with decay 0 all centres weigh the same, with more the weight of the t-th
    grows about as t^decay, so that the way from the start is forgotten. Nothing is kept but the mean itself, and a run
    can be prolonged. The paper does it for the iterates of stochastic gradient descent (section 4).

    What is averaged lies within the ranges of the weights: where a search runs beyond a bound, what it finds there are
    the weights mirrored at the bound, and the mean of both sides would be the bound.

    Attributes:
        mean: the average, float64 (size,); 0, the start of the search, before the first generation.
    """

    def __init__(self, size: int, decay: float) -> None:
        """Begin at the start of the search.

        Args:
            size: entries of a vector.
            decay: how fast early centres are forgotten, at least 0.
        """
        self._decay = decay
        self._count = 0
        self.mean: Vector = np.zeros(size)

    def add(self, centre: Vector) -> None:
        """Take in the centre after one more generation, float64 (size,)."""
        self._count += 1
        self.mean = self.mean + (self._decay + 1) / (self._count + self._decay) * (centre - self.mean)

    def restore(self, mean: Sequence[float], count: int) -> None:
        """Go to the average after a number of generations.

        Raises:
            ConfigError: it is not as many finite numbers as a vector has.
        """
        found = np.array(mean, np.float64)
        if found.shape != self.mean.shape or not np.isfinite(found).all():
            raise ConfigError(
                f"the average of the search is damaged: {shown(mean)}; expected {self.mean.size} finite numbers"
            )
        self.mean, self._count = found, count
