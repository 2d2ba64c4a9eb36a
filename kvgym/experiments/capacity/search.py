"""Search the switch from "holds" to "fails" on a scale from easy to hard, by bracketing and bisection."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvgym.errors import ConfigError


class Scale(ABC):
    """What can be tried, from easy to hard."""

    @abstractmethod
    def difficulty(self, value: float) -> float:
        """Return a number that is larger for harder values."""

    @abstractmethod
    def easier(self, value: float) -> float | None:
        """Return a much easier value, None where there is none."""

    @abstractmethod
    def harder(self, value: float) -> float | None:
        """Return a much harder value, None where there is none."""

    @abstractmethod
    def between(self, easy: float, hard: float) -> float | None:
        """Return a value in the middle, None where the two are near enough."""


@dataclass(frozen=True)
class Rates(Scale):
    """Rates: higher is harder.

    Attributes:
        low: nothing below this is tried.
        high: nothing above this is tried.
        tolerance: two rates are near enough when they differ by this share of the lower one.
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
        """Return the geometric mean."""
        return None if hard <= easy * (1 + self.tolerance) else math.sqrt(easy * hard)


@dataclass(frozen=True)
class Workers(Scale):
    """Numbers of workers: fewer are harder.

    Attributes:
        most: more are not tried.
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
        """Return twice as many."""
        return min(2 * value, self.most) if value < self.most else None

    def harder(self, value: float) -> float | None:
        """Return half as many."""
        return value // 2 if value > 1 else None

    def between(self, easy: float, hard: float) -> float | None:
        """Return the whole number in the middle."""
        return None if easy - hard <= 1 else (easy + hard) // 2


class Search:
    """One search; what holds is told to it, in any order, and it says what to try next.

    The answer is cautious where the system is not monotone: the hardest value that held of those easier than
    *every* failure. Whatever held beyond a failure is a surprise (:meth:`surprises`).

    Args:
        scale: what can be tried.
        start: what is tried first.
    """

    def __init__(self, scale: Scale, start: float) -> None:
        self._scale, self._start = scale, start
        self._held: dict[float, bool] = {}

    def ask(self) -> float | None:
        """Return what to try next; None = the search has ended."""
        if not self._held:
            return self._start
        easy, hard = self.bracket()
        if hard is None:
            assert easy is not None
            return self._scale.harder(easy)
        return self._scale.easier(hard) if easy is None else self._scale.between(easy, hard)

    def tell(self, value: float, held: bool) -> None:
        """Note what a try gave."""
        self._held[value] = held

    def bracket(self) -> tuple[float | None, float | None]:
        """Return the hardest value that held easier than all failures, and the easiest failure; None = none."""
        rank = self._scale.difficulty
        hard = min((v for v, held in self._held.items() if not held), key=rank, default=None)
        easy = [v for v, held in self._held.items() if held and (hard is None or rank(v) < rank(hard))]
        return max(easy, key=rank, default=None), hard

    def surprises(self) -> tuple[float, ...]:
        """Return what held though something easier failed, from easy to hard."""
        rank, (_, hard) = self._scale.difficulty, self.bracket()
        if hard is None:
            return ()
        return tuple(sorted((v for v, held in self._held.items() if held and rank(v) > rank(hard)), key=rank))
