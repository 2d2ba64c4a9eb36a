"""Arrival processes: immutable descriptions that sample arrival times in seconds.

Every process draws random numbers in the order of the requests. So the first n times of a longer sample equal the
sample of n, and scaling the rate stretches the same realisation. Those with a rate that changes are in
:mod:`kvgym.workloads.varying_arrivals`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from kvgym.errors import ConfigError
from kvgym.workloads.base import FloatRange, Spec, check_size
from kvgym.workloads.classes import KnownRates, RateProfile

Times = NDArray[np.float64]
Rate = Annotated[float, Field(gt=0)]
Start = Callable[[], np.random.Generator]


@functools.lru_cache(maxsize=64)
def _steady(rate: float) -> KnownRates:
    """Return the rates of a process with ``rate`` arrivals per second all the time."""
    profile = RateProfile((0.0,), (rate,))
    return KnownRates(profile, profile)


class ArrivalProcess(Spec):
    """Base class of arrival processes."""

    @property
    def mean_rate(self) -> float:
        """Long-run arrivals per second (per slot for slotted time); inf if all arrive at once."""
        raise NotImplementedError

    def expected(self, duration: float) -> float:
        """Return the approximate number of draws for the arrivals before ``duration`` seconds."""
        return self.mean_rate * duration

    def sample(self, n: int, rng: np.random.Generator) -> Times:
        """Return the first ``n`` arrival times, float64 (n,), seconds, non-decreasing."""
        mapping = self._mapping(rng)
        return mapping(np.cumsum(self._gaps(n, rng)))

    def sample_until(self, duration: float, rng: np.random.Generator) -> Times:
        """Return all arrival times before ``duration`` seconds, float64 (n,); a prefix of those of longer durations."""
        gaps: list[NDArray[np.float64]] = []
        mapping = self._mapping(rng)
        chunk = int(1.1 * self.mean_rate * duration) + 64
        while True:
            check_size(
                chunk / 4, f"arrivals at {self.mean_rate:g} per second that do not reach {duration:g} s"
            )
            gaps.append(self._gaps(chunk, rng))
            times = mapping(np.cumsum(np.concatenate(gaps)))
            if times[-1] >= duration:
                return times[: int(np.searchsorted(times, duration, side="left"))]
            chunk *= 2

    def draw(self, n: int | None, duration: float | None, rng: np.random.Generator) -> Times:
        """Return the first ``n`` arrival times, or all before ``duration`` seconds if ``n`` is None."""
        if n is not None:
            return self.sample(n, rng)
        assert duration is not None
        return self.sample_until(duration, rng)

    def scaled(self, factor: float) -> ArrivalProcess:
        """Return this process with every rate multiplied by ``factor`` > 0."""
        raise NotImplementedError

    @property
    def profile(self) -> RateProfile | None:
        """How the rate changes over time; None if it is constant or unknown in advance."""
        return None

    def known_rates(self, start: Start, horizon: float) -> KnownRates | None:
        """Return the rates of the sample that an equal generator draws; None if no rate function describes it.

        Args:
            start: makes a generator as given to :meth:`sample`.
            horizon: last arrival of the sample, seconds.
        """
        profile = self.profile
        if profile is None:
            if not 0 < self.mean_rate < math.inf:
                return None
            return _steady(self.mean_rate)
        return KnownRates(profile, profile)

    def _gaps(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return ``n`` independent gaps of mean 1, which :meth:`_times` scales to the rate."""
        return rng.standard_exponential(n)

    def _mapping(self, rng: np.random.Generator) -> Callable[[Times], Times]:
        """Return the function that maps the unit-rate clock of a sample to seconds."""
        return self._times

    def _times(self, clock: Times) -> Times:
        """Map the unit-rate clock, non-decreasing, to seconds."""
        raise NotImplementedError


class AllAtOnce(ArrivalProcess):
    """All requests arrive at the same time.

    Attributes:
        time: the time, seconds.
    """

    kind: Literal["all_at_once"] = "all_at_once"
    time: float = Field(default=0.0, ge=0)

    @property
    def mean_rate(self) -> float:
        """Infinite."""
        return math.inf

    def expected(self, duration: float) -> float:
        """Raise an error: a duration does not determine the number of requests."""
        raise ConfigError("all-at-once arrivals need num_requests, a duration does not bound them")

    def sample(self, n: int, rng: np.random.Generator) -> Times:
        """Return ``n`` times equal to ``time``."""
        return np.full(n, self.time)

    def sample_until(self, duration: float, rng: np.random.Generator) -> Times:
        """Raise an error, as :meth:`expected` does."""
        raise ConfigError("all-at-once arrivals need num_requests, a duration does not bound them")

    def scaled(self, factor: float) -> AllAtOnce:
        """Return the process unchanged."""
        return self


class PoissonArrivals(ArrivalProcess):
    """Poisson process.

    Attributes:
        rate: arrivals per second.
    """

    kind: Literal["poisson"] = "poisson"
    rate: Rate

    @property
    def mean_rate(self) -> float:
        """Arrivals per second."""
        return self.rate

    def scaled(self, factor: float) -> PoissonArrivals:
        """Return this process at ``factor`` times the rate."""
        return PoissonArrivals(rate=self.rate * factor)

    def cumulative(self, time: Times) -> Times:
        """Return the arrivals that are expected before times, seconds, (n,)."""
        return self.rate * time

    def _times(self, clock: Times) -> Times:
        return clock / self.rate


class GammaArrivals(ArrivalProcess):
    """Renewal process with gamma gaps, as vLLM's benchmark client draws them.

    Gaps have shape ``burstiness`` and mean 1/rate, so their coefficient of variation is 1/√burstiness: a burstiness
    below 1 is burstier than Poisson, 1 is Poisson, above 1 is more regular. The first request arrives after a gap
    (vLLM's client sends it at once).

    Attributes:
        rate: arrivals per second.
        burstiness: shape of the gaps.
    """

    kind: Literal["gamma"] = "gamma"
    rate: Rate
    burstiness: float = Field(default=1.0, gt=0)

    @property
    def mean_rate(self) -> float:
        """Arrivals per second."""
        return self.rate

    def scaled(self, factor: float) -> GammaArrivals:
        """Return this process at ``factor`` times the rate."""
        return GammaArrivals(rate=self.rate * factor, burstiness=self.burstiness)

    def _gaps(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.standard_gamma(self.burstiness, n) / self.burstiness

    def _times(self, clock: Times) -> Times:
        return clock / self.rate


class DeterministicArrivals(ArrivalProcess):
    """Fixed spacing: request i arrives at i/rate, the first at time 0.

    Attributes:
        rate: arrivals per second.
    """

    kind: Literal["deterministic"] = "deterministic"
    rate: Rate

    @property
    def mean_rate(self) -> float:
        """Arrivals per second."""
        return self.rate

    def sample(self, n: int, rng: np.random.Generator) -> Times:
        """Return 0, 1/rate, …, (n−1)/rate."""
        return np.arange(n) / self.rate

    def sample_until(self, duration: float, rng: np.random.Generator) -> Times:
        """Return the multiples of 1/rate below ``duration``."""
        times = np.arange(math.ceil(duration * self.rate) + 1) / self.rate
        return times[times < duration]

    def scaled(self, factor: float) -> DeterministicArrivals:
        """Return this process at ``factor`` times the rate."""
        return DeterministicArrivals(rate=self.rate * factor)


class TimestampArrivals(ArrivalProcess):
    """Replayed arrival times.

    Attributes:
        times: seconds, ≥ 0, non-decreasing.
        rate_scale: factor of the rate; the times are divided by it.
    """

    kind: Literal["timestamps"] = "timestamps"
    times: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=1)
    rate_scale: Rate = 1.0

    @model_validator(mode="after")
    def _sorted(self) -> TimestampArrivals:
        if any(b < a for a, b in zip(self.times, self.times[1:], strict=False)):
            raise ValueError("times must be non-decreasing")
        return self

    def expected(self, duration: float) -> float:
        """Return the number of times."""
        return float(len(self.times))

    @property
    def mean_rate(self) -> float:
        """Number of gaps over the span of the times, scaled; inf if all times are equal."""
        span = self.times[-1] - self.times[0]
        return (len(self.times) - 1) / span * self.rate_scale if span > 0 else math.inf

    def sample(self, n: int, rng: np.random.Generator) -> Times:
        """Return the first ``n`` times, scaled."""
        if n > len(self.times):
            raise ConfigError(f"{n} arrivals requested, but only {len(self.times)} timestamps are given")
        return np.asarray(self.times[:n], np.float64) / self.rate_scale

    def sample_until(self, duration: float, rng: np.random.Generator) -> Times:
        """Return the scaled times below ``duration``."""
        times = np.asarray(self.times, np.float64) / self.rate_scale
        return times[times < duration]

    def known_rates(self, start: Start, horizon: float) -> None:
        """Return None: the times were recorded."""

    def scaled(self, factor: float) -> TimestampArrivals:
        """Return these times at ``factor`` times the rate."""
        return self.model_copy(update={"rate_scale": self.rate_scale * factor})


class SlottedArrivals(ArrivalProcess):
    """A Poisson number of arrivals at every integer time, for the discrete model of MC-SF and FLOW.

    Attributes:
        rate: mean arrivals per slot; a range draws it uniformly once per sample (MC-SF, Section 5.1,
            Model 2).
        start: first slot.
    """

    kind: Literal["slotted"] = "slotted"
    rate: Rate | FloatRange
    start: int = Field(default=0, ge=0)

    def expected(self, duration: float) -> float:
        """Return the arrivals at the highest rate, or the number of slots if that is larger."""
        highest = self.rate.high if isinstance(self.rate, FloatRange) else self.rate
        return max(highest, 1.0) * math.ceil(duration)

    @property
    def mean_rate(self) -> float:
        """Arrivals per slot."""
        return 0.5 * (self.rate.low + self.rate.high) if isinstance(self.rate, FloatRange) else self.rate

    def sample(self, n: int, rng: np.random.Generator) -> Times:
        """Return the first ``n`` arrivals, integer times as float64 (n,)."""
        rate = self._draw(rng)
        check_size(max(n / rate, 16 * rate), f"{n:,} arrivals in slots at {rate:g} per slot")
        counts = np.zeros(0, np.int64)
        while counts.sum() < n:
            counts = np.concatenate([counts, rng.poisson(rate, int((n - counts.sum()) / rate) + 16)])
        return np.repeat(self.start + np.arange(len(counts), dtype=np.float64), counts)[:n]

    def sample_until(self, duration: float, rng: np.random.Generator) -> Times:
        """Return the arrivals of the first ⌈``duration``⌉ slots, from ``start`` on."""
        slots = math.ceil(duration)
        counts = rng.poisson(self._draw(rng), slots)
        return np.repeat(self.start + np.arange(slots, dtype=np.float64), counts)

    def scaled(self, factor: float) -> SlottedArrivals:
        """Return this process at ``factor`` times the rate."""
        if isinstance(self.rate, FloatRange):
            scaled = FloatRange(low=self.rate.low * factor, high=self.rate.high * factor)
            return SlottedArrivals(rate=scaled, start=self.start)
        return SlottedArrivals(rate=self.rate * factor, start=self.start)

    def _draw(self, rng: np.random.Generator) -> float:
        return self.rate.draw(rng) if isinstance(self.rate, FloatRange) else self.rate


def mean_rate_of(times: Times) -> float:
    """Return the number of gaps over the span of sorted times, per second; inf if the span is 0."""
    span = float(times[-1] - times[0]) if len(times) else 0.0
    return (len(times) - 1) / span if span > 0 else np.inf
