"""What is known in advance about a class of requests: how often they come and how long they are on average."""

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
        period: seconds after which the pieces repeat; None = the last one holds for ever.
    """

    times: tuple[float, ...]
    rates: tuple[float, ...]
    period: float | None = None

    def __post_init__(self) -> None:
        """Check the pieces.

        Raises:
            WorkloadError: they are not pieces of time from 0 on, each with a rate.
        """
        rising = all(b > a for a, b in zip(self.times, self.times[1:], strict=False))
        if not self.times or len(self.times) != len(self.rates) or self.times[0] != 0 or not rising:
            raise WorkloadError(
                f"a rate profile needs times that rise from 0 and a rate for each, got times = {self.times}, "
                f"rates = {self.rates}"
            )
        if not (np.isfinite(self.rates).all() and min(self.rates) >= 0):
            raise WorkloadError(f"rates of a profile must be finite and >= 0, got {self.rates}")
        if self.period is not None and not self.times[-1] < self.period < np.inf:
            raise WorkloadError(
                f"period = {shown(self.period)} must exceed the last time, {self.times[-1]:g}"
            )

    def scaled(self, factor: float, speed: float = 1.0) -> RateProfile:
        """Return ``factor`` times the rates, run through ``speed`` times as fast."""
        return RateProfile(
            tuple(t / speed for t in self.times),
            tuple(r * factor for r in self.rates),
            None if self.period is None else self.period / speed,
        )


@dataclass(frozen=True)
class ClassStatistics:
    """A class of requests in the long run.

    Attributes:
        name: name of the class.
        rate: arrivals per second.
        prompt_len: mean prompt length, tokens.
        output_len: mean output length, tokens.
        profile: how the rate changes over time, where it is known to; None = it is constant.
    """

    name: str
    rate: float
    prompt_len: float
    output_len: float
    profile: RateProfile | None = None

    def __post_init__(self) -> None:
        """Check the figures.

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
        """Return the class with ``factor`` times the rate; ``speed`` times as fast, where that changes over time."""
        profile = None if self.profile is None else self.profile.scaled(factor, speed)
        return replace(self, rate=self.rate * factor, profile=profile)
