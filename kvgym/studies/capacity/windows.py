"""Windows of time of a load, and the number of workers that each needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.load.loads import Load
from kvgym.workloads.arrivals import Times


@dataclass(frozen=True)
class WindowPlan:
    """The number of workers that a window of a trace needs.

    Attributes:
        hardware: name of the hardware.
        policy: label of the policy.
        router: label of the router.
        start: seconds since the first arrival.
        end: seconds since the first arrival.
        num_requests: arrivals in the window.
        rate: arrivals per second.
        by_theory: ⌈λ/μ⌉ with E[g] of its requests and b̄ of the whole saturated trace; None if b̄ is unknown.
        judged: whether enough requests arrive to judge runs.
        simulated: the smallest number that meets the targets, with its requests run alone from an empty cluster; None
            if no number does, or runs were not judged.
    """

    hardware: str
    policy: str
    router: str
    start: float
    end: float
    num_requests: int
    rate: float
    by_theory: int | None
    judged: bool
    simulated: int | None

    @property
    def workers(self) -> int | None:
        """The number to provide, by simulation, or by theory if there was none; None = no number suffices."""
        return self.simulated if self.judged else self.by_theory


@dataclass(frozen=True)
class Profile:
    """Workers over the windows of a trace.

    Attributes:
        peak: the most workers that any window needs.
        p95: workers that suffice in 95 % of the windows.
        mean: average over time, which is paid for with autoscaling.
    """

    peak: int
    p95: int
    mean: float

    @classmethod
    def of(cls, windows: Sequence[WindowPlan]) -> Profile | None:
        """Return the profile of windows, None if one of them has no number."""
        counts = [w.workers for w in windows]
        if not counts or any(count is None for count in counts):
            return None
        whole = np.array(counts, np.int64)
        lengths = np.array([w.end - w.start for w in windows])
        return cls(
            peak=int(whole.max()),
            p95=int(np.quantile(whole, 0.95, method="higher")),
            mean=float((whole * lengths).sum() / lengths.sum()),
        )

    def row(self) -> dict[str, Any]:
        """Return the values by name."""
        return {"peak": self.peak, "p95": self.p95, "mean": self.mean}


def cut(times: Times, seconds: float) -> list[tuple[float, float]]:
    """Return windows that cover arrival times, as (start, end) in seconds since the first arrival.

    A last window shorter than half the length is joined to the previous one.

    Args:
        times: float64 (n,), seconds, non-decreasing.
        seconds: length of a window.

    Raises:
        ConfigError: the length is not positive, or the trace is not longer than one window.
    """
    span = float(times[-1] - times[0])
    if not 0 < seconds < math.inf:
        raise ConfigError(f"window {seconds:g} s: expected seconds > 0")
    if seconds >= span:
        raise ConfigError(f"window {seconds:g} s: the trace is {span:.0f} s long; choose a shorter window")
    starts = [k * seconds for k in range(max(1, math.floor(span / seconds + 0.5)))]
    return list(zip(starts, [*starts[1:], span], strict=True))


def check_windows(load: Load, seconds: float | None) -> None:
    """Check that a load can be divided into windows.

    Raises:
        ConfigError: the load is not a replayed trace.
    """
    if seconds is not None and not load.replays:
        raise ConfigError("windows need a trace that is replayed with its own times; give --trace")
