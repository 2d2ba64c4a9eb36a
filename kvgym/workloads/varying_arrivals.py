"""Poisson processes with a rate that changes over time.

They are exact: unit-rate arrivals are mapped through the inverse of the cumulative rate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from kvgym.workloads.arrivals import (
    AllAtOnce,
    ArrivalProcess,
    DeterministicArrivals,
    GammaArrivals,
    PoissonArrivals,
    Rate,
    SlottedArrivals,
    Start,
    Times,
    TimestampArrivals,
)
from kvgym.workloads.base import FloatRange, Spec, check_size
from kvgym.workloads.classes import KnownRates, RateProfile


class PiecewiseArrivals(ArrivalProcess):
    """Poisson process with a constant rate between breakpoints.

    Attributes:
        times: start of each piece, seconds; the first is 0, increasing.
        rates: arrivals per second in each piece, ≥ 0.
        period: seconds after which the pieces repeat; None = the last rate continues.
    """

    kind: Literal["piecewise"] = "piecewise"
    times: tuple[float, ...] = Field(min_length=1)
    rates: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)
    period: float | None = None

    @model_validator(mode="after")
    def _consistent(self) -> PiecewiseArrivals:
        if len(self.times) != len(self.rates):
            raise ValueError(f"{len(self.times)} times but {len(self.rates)} rates; one rate per piece")
        if self.times[0] != 0 or any(b <= a for a, b in zip(self.times, self.times[1:], strict=False)):
            raise ValueError(f"times must start at 0 and increase, got {self.times}")
        if self.period is None and self.rates[-1] == 0:
            raise ValueError("the last rate must be > 0 without a period, else arrivals end")
        if self.period is not None and (self.period <= self.times[-1] or sum(self.rates) == 0):
            raise ValueError(f"period = {self.period} must exceed the last time, and a rate must be > 0")
        return self

    @property
    def mean_rate(self) -> float:
        """Mean over a period, or the last rate without a period."""
        if self.period is None:
            return self.rates[-1]
        return float(np.diff([*self.times, self.period]) @ np.asarray(self.rates)) / self.period

    @property
    def profile(self) -> RateProfile:
        """The pieces."""
        return RateProfile(self.times, self.rates, self.period)

    def expected(self, duration: float) -> float:
        """Return the integral of the rate; for repeating pieces, over whole periods."""
        if self.period is not None:
            return self.mean_rate * self.period * (duration // self.period + 1)
        ends = np.array([*self.times[1:], math.inf])
        spans = np.minimum(ends, duration) - np.minimum(self.times, duration)
        return float(spans @ np.asarray(self.rates))

    def rate_at(self, time: Times) -> Times:
        """Return the rate at ``time`` (seconds, any shape), arrivals per second."""
        time = np.asarray(time, np.float64) if self.period is None else np.mod(time, self.period)
        return np.asarray(self.rates)[np.searchsorted(self.times, time, side="right") - 1]

    def scaled(self, factor: float) -> PiecewiseArrivals:
        """Return this process with every rate times ``factor``."""
        rates = tuple(rate * factor for rate in self.rates)
        return PiecewiseArrivals(times=self.times, rates=rates, period=self.period)

    def _knots(self) -> tuple[Times, Times, Times]:
        """Return starts and rates of the pieces, and the arrivals expected before each start."""
        starts, rates = np.asarray(self.times), np.asarray(self.rates)
        return starts, rates, np.concatenate([[0.0], np.cumsum(np.diff(starts) * rates[:-1])])

    def cumulative(self, time: Times) -> Times:
        """Return the arrivals that are expected before times, seconds, (n,)."""
        starts, rates, before = self._knots()
        whole: Times | float = 0.0
        if self.period is not None:
            cycles = np.floor(time / self.period)
            whole, time = cycles * (self.mean_rate * self.period), time - cycles * self.period
        piece = np.searchsorted(starts, time, side="right") - 1
        return np.asarray(whole + before[piece] + rates[piece] * (time - starts[piece]), np.float64)

    def _times(self, clock: Times) -> Times:
        starts, rates, cumulative = self._knots()
        offset: Times | float = 0.0
        if self.period is not None:
            total = self.mean_rate * self.period
            cycles = np.floor(clock / total)
            offset = cycles * self.period
            clock = np.clip(clock - cycles * total, 0.0, np.nextafter(total, 0.0))
        piece = np.searchsorted(cumulative, clock, side="right") - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(rates[piece] > 0, (clock - cumulative[piece]) / rates[piece], 0.0)
        return np.maximum.accumulate(starts[piece] + within + offset)


class Wave(Spec):
    """A sinusoid that is added to the rate.

    Attributes:
        amplitude: swing relative to the mean rate, 0 to 1.
        period: seconds.
        phase: radians.
    """

    amplitude: float = Field(default=0.5, ge=0, le=1)
    period: float = Field(gt=0)
    phase: float = 0.0

    def swing(self, time: Times) -> Times:
        """Return the relative swing at times, seconds, of any shape."""
        angle = 2 * np.pi * np.asarray(time, np.float64) / self.period + self.phase
        return np.asarray(self.amplitude * np.sin(angle), np.float64)

    def integral(self, time: Times) -> Times:
        """Return the integral of the swing from 0 to times, seconds."""
        scale = self.amplitude * self.period / (2 * np.pi)
        return np.asarray(
            scale * (math.cos(self.phase) - np.cos(2 * np.pi * time / self.period + self.phase))
        )

    def tops(self, edges: Times, span: float) -> Times:
        """Return the largest swing between each two of equal steps over ``span`` seconds."""
        pieces = len(edges) - 1
        tops = np.maximum(self.swing(edges[:-1]), self.swing(edges[1:]))
        crest = np.mod((0.25 - self.phase / (2 * np.pi)) * self.period, self.period)
        for k in range(max(1, round(span / self.period))):
            tops[int((crest + k * self.period) / span * pieces) % pieces] = self.amplitude
        return tops


class SinusoidArrivals(ArrivalProcess):
    """Poisson process of rate λ(t) = rate · (1 + amplitude · sin(2πt/period + phase)), with further waves if given.

    Attributes:
        rate: mean arrivals per second.
        amplitude: relative swing, 0 to 1.
        period: seconds.
        phase: radians.
        periods: further sinusoids, such as a week over a day. All amplitudes together are at most 1, and the longest
            period is a multiple of the others.
    """

    kind: Literal["sinusoid"] = "sinusoid"
    rate: Rate
    amplitude: float = Field(default=0.5, ge=0, le=1)
    period: float = Field(gt=0)
    phase: float = 0.0
    periods: tuple[Wave, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> SinusoidArrivals:
        whole = math.fsum(wave.amplitude for wave in self._waves)
        if whole > 1 + 1e-9:
            raise ValueError(
                f"the amplitudes add up to {whole:g}; expected at most 1, so that no rate is below 0"
            )
        for wave in self.periods:
            ratio = self._longest / wave.period
            if abs(ratio - round(ratio)) > 1e-9 * ratio or self._longest % self.period:
                raise ValueError(f"the longest period, {self._longest:g} s, must be a multiple of the others")
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out further waves where there are none, so that older descriptions keep their hashes."""
        fields: dict[str, Any] = handler(self)
        return fields if self.periods else {name: x for name, x in fields.items() if name != "periods"}

    @property
    def _waves(self) -> tuple[Wave, ...]:
        return (Wave(amplitude=self.amplitude, period=self.period, phase=self.phase), *self.periods)

    @property
    def _longest(self) -> float:
        return max(wave.period for wave in self._waves)

    @property
    def mean_rate(self) -> float:
        """Mean over a period."""
        return self.rate

    @property
    def profile(self) -> RateProfile:
        """256 pieces of the shortest period, each with the largest rate in it, so that no rate is too low."""
        span = self._longest
        pieces = 256 * max(1, min(64, round(span / min(wave.period for wave in self._waves))))
        edges = np.arange(pieces + 1) * span / pieces
        rates = self.rate * (1 + np.sum([wave.tops(edges, span) for wave in self._waves], axis=0))
        return RateProfile(tuple(edges[:-1].tolist()), tuple(rates.tolist()), span)

    def rate_at(self, time: Times) -> Times:
        """Return the rate at ``time`` (seconds, any shape), arrivals per second."""
        return np.asarray(self.rate * (1 + sum(wave.swing(time) for wave in self._waves)), np.float64)

    def scaled(self, factor: float) -> SinusoidArrivals:
        """Return this process at ``factor`` times the mean rate."""
        return self.model_copy(update={"rate": self.rate * factor})

    def cumulative(self, time: Times) -> Times:
        """Return the arrivals that are expected before times, seconds, (n,)."""
        return np.asarray(self.rate * self._cumulative(time), np.float64)

    def _cumulative(self, time: Times) -> Times:
        """Return ∫₀ᵗ λ / rate, seconds."""
        return np.asarray(time + sum(wave.integral(time) for wave in self._waves), np.float64)

    def _times(self, clock: Times) -> Times:
        target = clock / self.rate
        # |cumulative(t) − t| never exceeds it
        swing = sum(wave.amplitude * wave.period for wave in self._waves) / np.pi
        low, high = np.maximum(target - swing, 0.0), target + swing
        for _ in range(64):  # bisection to the last bit, which also works if the rate reaches zero
            middle = 0.5 * (low + high)
            below = self._cumulative(middle) < target
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.maximum.accumulate(high) if len(high) else high


class Bursts(Spec):
    """Times at which a rate is multiplied. They begin at random and do not overlap.

    Attributes:
        every: mean seconds from the begin of one to that of the next; longer than the longest burst.
        length: seconds of each, a number or a range to draw from.
        factor: factor on the rate during each, likewise.
    """

    every: float = Field(gt=0)
    length: Annotated[float, Field(gt=0)] | FloatRange
    factor: Annotated[float, Field(ge=0)] | FloatRange

    @model_validator(mode="after")
    def _separate(self) -> Bursts:
        longest = _range(self.length)[1]
        if not 0 < longest < self.every:
            raise ValueError(f"length = {longest:g} must be above 0 and below every = {self.every:g}")
        return self

    @property
    def mean_factor(self) -> float:
        """Mean factor over time."""
        length, factor = (sum(_range(x)) / 2 for x in (self.length, self.factor))
        return 1 + (factor - 1) * length / self.every

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Times, Times]:
        """Return begin and end of each of the first bursts in turn, (2 count,), and the factors, (count,)."""
        draws = rng.random((count, 3))
        (short, long), (low, high) = _range(self.length), _range(self.factor)
        lengths = short + (long - short) * draws[:, 1]
        gaps = -np.log1p(-draws[:, 0]) * (self.every - (short + long) / 2)
        return np.cumsum(np.stack([gaps, lengths], axis=1).ravel()), low + (high - low) * draws[:, 2]


def _range(given: float | FloatRange) -> tuple[float, float]:
    return (given.low, given.high) if isinstance(given, FloatRange) else (given, given)


class BurstyArrivals(ArrivalProcess):
    """Poisson process with bursts that multiply the rate of another one.

    The bursts are drawn once per sample; they stay where they are if the rate is scaled.

    Attributes:
        base: the process without bursts.
        bursts: when they come, and what they do.
    """

    kind: Literal["bursty"] = "bursty"
    base: Annotated[PoissonArrivals | PiecewiseArrivals | SinusoidArrivals, Field(discriminator="kind")]
    bursts: Bursts

    @property
    def mean_rate(self) -> float:
        """Mean over time and bursts."""
        return self.base.mean_rate * self.bursts.mean_factor

    @property
    def profile(self) -> RateProfile | None:
        """The mean over bursts."""
        profile = self.base.profile
        return None if profile is None else profile.scaled(self.bursts.mean_factor)

    def expected(self, duration: float) -> float:
        """Return the approximate number of draws for the arrivals before ``duration`` seconds."""
        return self.base.expected(duration) * self.bursts.mean_factor

    def scaled(self, factor: float) -> BurstyArrivals:
        """Return this process at ``factor`` times the rate, with the same bursts."""
        return self.model_copy(update={"base": self.base.scaled(factor)})

    def known_rates(self, start: Start, horizon: float) -> KnownRates | None:
        """Return the mean rates, and those with the bursts of the sample."""
        known = super().known_rates(start, horizon)
        base = self.base.known_rates(start, horizon)
        assert known is not None
        assert base is not None
        knots, factors = self._pieces(start().spawn(1)[0], lambda knots, _: bool(knots[-1] >= horizon))
        plain, period = np.asarray(base.mean.times), base.mean.period
        if period is not None:
            cycles = np.arange(max(1, math.ceil(horizon / period))) * period
            plain = (cycles[:, None] + plain).ravel()
        times = np.unique(np.concatenate([plain, knots]))
        times = times[(times < horizon) | (times == 0)]
        within = times if period is None else np.mod(times, period)
        rates = np.asarray(base.mean.rates)[np.searchsorted(base.mean.times, within, side="right") - 1]
        rates = rates * factors[np.searchsorted(knots, times, side="right") - 1]
        return KnownRates(known.mean, RateProfile(tuple(times.tolist()), tuple(rates.tolist())))

    def _pieces(
        self, rng: np.random.Generator, enough: Callable[[Times, Times], bool]
    ) -> tuple[Times, Times]:
        """Return knots from 0 on, and the factor from each on.

        Args:
            rng: draws the bursts.
            enough: whether knots reach far enough, given them and the arrivals expected before each.
        """
        count = 16
        while True:
            check_size(count, f"bursts every {self.bursts.every:g} s")
            ends, drawn = self.bursts.draw(count, copy.deepcopy(rng))
            knots = np.concatenate([[0.0], ends])
            factors = np.append(np.stack([np.ones(count), drawn], axis=1).ravel(), 1.0)
            if enough(knots, self._reached(knots, factors)):
                return knots, factors
            count *= 4

    def _reached(self, knots: Times, factors: Times) -> Times:
        """Return the arrivals expected before each knot, bursts included."""
        plain = np.diff(self.base.cumulative(knots))
        return np.concatenate([[0.0], np.cumsum(plain * factors[:-1])])

    def _mapping(self, rng: np.random.Generator) -> Callable[[Times], Times]:
        own = rng.spawn(1)[0]

        def times_of(clock: Times) -> Times:
            if not len(clock):
                return clock
            knots, factors = self._pieces(own, lambda _, reached: bool(reached[-1] >= clock[-1]))
            reached, plain = self._reached(knots, factors), self.base.cumulative(knots)
            piece = np.searchsorted(reached, clock, side="right") - 1
            with np.errstate(divide="ignore", invalid="ignore"):
                within = np.where(factors[piece] > 0, (clock - reached[piece]) / factors[piece], 0.0)
            return self.base._times(plain[piece] + within)

        return times_of


AnyArrivals = Annotated[
    AllAtOnce
    | PoissonArrivals
    | GammaArrivals
    | DeterministicArrivals
    | PiecewiseArrivals
    | SinusoidArrivals
    | BurstyArrivals
    | TimestampArrivals
    | SlottedArrivals,
    Field(discriminator="kind"),
]
"""Any arrival process, distinguished by ``kind``."""
