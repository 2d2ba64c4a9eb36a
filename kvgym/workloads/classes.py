"""Statistics of request classes that are known in advance: arrival rates and mean lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

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
