"""Statistics of request classes that are known in advance: arrival rates and mean lengths."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import WorkloadError, shown


@dataclass(frozen=True)
class RateProfile:
    """Arrivals per second as they change over time, constant between breakpoints.

    Attributes:
        times: start of each piece, seconds; the first is 0, increasing.
        rates: arrivals per second in each piece, >= 0.
        period: seconds after which the pieces repeat; None = the last rate continues.
    """

    times: tuple[float, ...]
    rates: tuple[float, ...]
    period: float | None = None

    def __post_init__(self) -> None:
        """Check the pieces.

        Raises:
            WorkloadError: the times do not increase from 0, or there is not one rate for each.
        """
        rising = all(b > a for a, b in zip(self.times, self.times[1:], strict=False))
        if not self.times or len(self.times) != len(self.rates) or self.times[0] != 0 or not rising:
            raise WorkloadError(
                f"a rate profile needs times that increase from 0 and a rate for each, got times = {self.times}, "
                f"rates = {self.rates}"
            )
        if not (np.isfinite(self.rates).all() and min(self.rates) >= 0):
            raise WorkloadError(f"rates of a profile must be finite and >= 0, got {self.rates}")
        if self.period is not None and not self.times[-1] < self.period < np.inf:
            raise WorkloadError(
                f"period = {shown(self.period)} must exceed the last time, {self.times[-1]:g}"
            )

    def scaled(self, factor: float, speed: float = 1.0) -> RateProfile:
        """Return the profile with ``factor`` times the rates and ``speed`` times as fast."""
        return RateProfile(
            tuple(t / speed for t in self.times),
            tuple(r * factor for r in self.rates),
            None if self.period is None else self.period / speed,
        )

    def later(self, start: float) -> RateProfile:
        """Return the rates from ``start`` seconds on."""
        begin = start if self.period is None else start % self.period
        first = bisect.bisect_right(self.times, begin) - 1
        pieces = [(0.0, self.rates[first])]
        pieces += [
            (t - begin, r) for t, r in zip(self.times[first + 1 :], self.rates[first + 1 :], strict=True)
        ]
        if self.period is not None:  # those before come again at the end
            again = zip(self.times[: first + 1], self.rates[: first + 1], strict=True)
            pieces += [(t + self.period - begin, r) for t, r in again if t < begin]
        times, rates = zip(*pieces, strict=True)
        return RateProfile(times, rates, self.period)

    def most(self, start: float, end: float) -> float:
        """Return the highest rate between two times, seconds; ``end`` > ``start`` >= 0."""
        if self.period is None:
            return max(self._within(start, end))
        if end - start >= self.period:
            return max(self.rates)
        begin = start % self.period
        finish = begin + (end - start)
        wrapped = self._within(0.0, finish - self.period) if finish > self.period else ()
        return max((*self._within(begin, min(finish, self.period)), *wrapped))

    def _within(self, start: float, end: float) -> tuple[float, ...]:
        """Return the rates of the pieces from ``start`` until before ``end``."""
        first = bisect.bisect_right(self.times, start) - 1
        return self.rates[first : max(first + 1, bisect.bisect_left(self.times, end))]


@dataclass(frozen=True)
class KnownRates:
    """What an all-knowing forecast would say of the arrivals, but for the moment of each.

    Attributes:
        mean: the rate over time, as far as it does not depend on the seed.
        drawn: the same with the bursts of this seed.
    """

    mean: RateProfile
    drawn: RateProfile

    @classmethod
    def counted(cls, times: NDArray[np.float64], seconds: float = 60.0) -> KnownRates:
        """Return the rates of recorded arrivals, by windows; ``times``: seconds, (n,)."""
        windows = int(times[-1] // seconds) + 1 if len(times) else 1
        counts = np.bincount((times // seconds).astype(np.int64), minlength=windows) / seconds
        found = RateProfile(tuple((np.arange(windows) * seconds).tolist()), tuple(counts.tolist()))
        return cls(found, found)

    def later(self, start: float) -> KnownRates:
        """Return them from ``start`` seconds on."""
        return KnownRates(self.mean.later(start), self.drawn.later(start))

    def scaled(self, factor: float, speed: float = 1.0) -> KnownRates:
        """Return them with ``factor`` times the rates and ``speed`` times as fast."""
        return KnownRates(self.mean.scaled(factor, speed), self.drawn.scaled(factor, speed))


@dataclass(frozen=True)
class ClassStatistics:
    """Long-run statistics of a class of requests.

    Attributes:
        name: name of the class.
        rate: arrivals per second.
        prompt_len: mean prompt length, tokens.
        output_len: mean output length, tokens.
        profile: how the rate changes over time; None = constant or unknown.
    """

    name: str
    rate: float
    prompt_len: float
    output_len: float
    profile: RateProfile | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            WorkloadError: one is not a positive number.
        """
        for label in ("rate", "prompt_len", "output_len"):
            value = getattr(self, label)
            if not (np.isfinite(value) and value > 0):
                raise WorkloadError(
                    f"class {shown(self.name)}: {label} = {shown(value)}; expected a positive number"
                )

    def at_rate(self, factor: float, speed: float = 1.0) -> ClassStatistics:
        """Return the class with ``factor`` times the rate, and its rate profile ``speed`` times as fast."""
        profile = None if self.profile is None else self.profile.scaled(factor, speed)
        return replace(self, rate=self.rate * factor, profile=profile)
