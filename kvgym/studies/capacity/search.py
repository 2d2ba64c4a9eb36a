"""Search for the switch from pass to failure on a scale from easy to hard, by bracketing and bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvgym.errors import ConfigError


@dataclass(frozen=True)
class Rates:
    """Rates: higher is harder.

    Attributes:
        low: lowest rate to try.
        high: highest rate to try.
        tolerance: two rates are close enough if they differ by this share of the lower one.
    """

    low: float
    high: float
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        """Check the figures.

        Raises:
            ConfigError: the tolerance is outside (0, 1], or the range is empty.
        """
        if not 0 < self.tolerance <= 1:
            raise ConfigError(f"tolerance {self.tolerance:g}: expected a share in (0, 1], e.g. 0.02")
        if not 0 < self.low <= self.high < math.inf:
            raise ConfigError(f"rates from {self.low:g} to {self.high:g}: expected 0 < low ≤ high")

    def difficulty(self, value: float) -> float:
        """Return the rate."""
        return value

    def easier(self, value: float) -> float | None:
        """Return half the rate."""
        return value / 2 if value / 2 >= self.low else None

    def harder(self, value: float) -> float | None:
        """Return twice the rate."""
        return value * 2 if value * 2 <= self.high else None

    def between(self, easy: float, hard: float) -> float | None:
        """Return the geometric mean, None if the two are close enough."""
        return None if hard <= easy * (1 + self.tolerance) else math.sqrt(easy * hard)


@dataclass(frozen=True)
class Workers:
    """Numbers of workers: fewer are harder.

    Attributes:
        most: largest number to try.
    """

    most: int

    def __post_init__(self) -> None:
        """Check the figure.

        Raises:
            ConfigError: it is below 1.
        """
        if self.most < 1:
            raise ConfigError(f"most workers {self.most}: expected a whole number ≥ 1")

    def difficulty(self, value: float) -> float:
        """Return minus the number."""
        return -value

    def easier(self, value: float) -> float | None:
        """Return twice the number."""
        return min(2 * value, self.most) if value < self.most else None

    def harder(self, value: float) -> float | None:
        """Return half the number."""
        return value // 2 if value > 1 else None

    def between(self, easy: float, hard: float) -> float | None:
        """Return the whole number in the middle."""
        return None if easy - hard <= 1 else (easy + hard) // 2


Scale = Rates | Workers
"""Values that can be tried, from easy to hard.

``difficulty`` is larger for harder values; ``easier`` and ``harder`` return a much easier or harder value, ``between``
one in the middle, all three None if there is none.
"""


class Search:
    """A search that proposes values and receives results in any order.

    The answer is conservative if the system is not monotone: the hardest value that passed and is easier than *every*
    failure. Values that passed beyond a failure are surprises (:meth:`surprises`).

    Args:
        scale: values that can be tried.
        start: the first value to try.
    """

    def __init__(self, scale: Scale, start: float) -> None:
        self._scale, self._start = scale, start
        self._held: dict[float, bool] = {}

    def ask(self) -> float | None:
        """Return the next value to try; None = the search has ended."""
        if not self._held:
            return self._start
        easy, hard = self.bracket()
        if hard is None:
            assert easy is not None
            return self._scale.harder(easy)
        return self._scale.easier(hard) if easy is None else self._scale.between(easy, hard)

    def record(self, value: float, held: bool) -> None:
        """Record whether a value passed."""
        self._held[value] = held

    def bracket(self) -> tuple[float | None, float | None]:
        """Return the hardest value that passed below all failures, and the easiest failure; None = none."""
        rank = self._scale.difficulty
        hard = min((v for v, held in self._held.items() if not held), key=rank, default=None)
        easy = [v for v, held in self._held.items() if held and (hard is None or rank(v) < rank(hard))]
        return max(easy, key=rank, default=None), hard

    def surprises(self) -> tuple[float, ...]:
        """Return values that passed although an easier one failed, from easy to hard."""
        rank, (_, hard) = self._scale.difficulty, self.bracket()
        if hard is None:
            return ()
        return tuple(sorted((v for v, held in self._held.items() if held and rank(v) > rank(hard)), key=rank))
