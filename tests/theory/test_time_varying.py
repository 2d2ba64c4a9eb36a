"""Rates that change over time: the most arrivals of a window, and thresholds by (15), against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgym.batch_time import AffineBatchTime
from kvgym.errors import ConfigError, WorkloadError
from kvgym.theory.fluid import full_batch_time, wait_thresholds
from kvgym.theory.time_varying import peak_arrivals, time_varying_wait_thresholds, worst_arrivals
from kvgym.workloads.classes import ClassStatistics, RateProfile
from kvgym.workloads.varying_arrivals import PiecewiseArrivals, SinusoidArrivals
from kvgym.workloads.workload import make_workload


def accumulated(profile: RateProfile, begin: float, window: float) -> float:
    """The integral of a rate, by the midpoints of a thousand pieces per second."""
    at = begin + (np.arange(int(window * 1000)) + 0.5) / 1000
    at = at if profile.period is None else np.mod(at, profile.period)
    rates = np.array(profile.rates)[np.searchsorted(profile.times, at, side="right") - 1]
    return float(rates.sum()) / 1000


@settings(max_examples=20, deadline=None)
@given(
    rates=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    window=st.sampled_from([0.5, 1.0, 2.5, 7.0]),
    periodic=st.booleans(),
)
def test_worst_arrivals_by_brute_force(rates: list[int], window: float, periodic: bool) -> None:
    times, period = tuple(float(t) for t in range(len(rates))), float(len(rates)) if periodic else None
    profile = RateProfile(times, tuple(map(float, rates)), period)
    found = peak_arrivals(ClassStatistics("a", 1.0, 1.0, 1.0, profile), window)
    tried = [accumulated(profile, begin, window) for begin in np.arange(0, len(rates) + 1, 0.25)]
    assert found == pytest.approx(max(tried), abs=1e-2)


def test_worst_arrivals_over_several_periods() -> None:
    # 4 then 0, a second each: 4 per period of 2 s. 5 s hold two periods and the better second: 12.
    assert worst_arrivals([0.0, 1.0], [[4.0, 0.0]], 5.0, 2.0) == pytest.approx(12.0)
    assert worst_arrivals([0.0, 1.0], [[4.0, 0.0]], 4.0, 2.0) == pytest.approx(8.0)
    with pytest.raises(ConfigError, match="period"):
        worst_arrivals([0.0, 1.0], [[4.0, 0.0]], 5.0, 1.0)


def test_thresholds_of_wait() -> None:
    # Rates of a: 1 and 4; b: 2. d0 = 0.5, d1 = 0.01, l = 1, l' = 1: a request per stage adds 3 tokens. n = (1, 1):
    # 0.56 s, 4 * 0.56 = 2.24, 2 * 0.56 = 1.12: (3, 2): 0.65: 2.6, 1.3: (3, 2).
    a = ClassStatistics("a", 2.0, 1.0, 1.0, RateProfile((0.0, 10.0), (1.0, 4.0)))
    b = ClassStatistics("b", 2.0, 1.0, 1.0)
    time = AffineBatchTime.from_wait(0.5, 0.01)
    assert time_varying_wait_thresholds([a, b], time).tolist() == [3, 2]
    assert time_varying_wait_thresholds([b, b], time).tolist() == wait_thresholds([b, b], time).tolist()
    # Windows shorter than a piece: what matters are the pieces' rates alone.
    short = RateProfile((0.0, 0.1), (40.0, 4.0), 10.0)
    n = time_varying_wait_thresholds([ClassStatistics("c", 4.36, 1.0, 1.0, short)], time)
    window = full_batch_time([b], n, time)
    assert n[0] == np.ceil(4.0 + 4.0 * (window - 0.1))
    with pytest.raises(ConfigError, match="15"):
        time_varying_wait_thresholds([a, b], time, max_memory=10)


def test_profiles_of_arrival_processes() -> None:
    pieces = PiecewiseArrivals(times=(0, 5), rates=(1, 3), period=10)
    assert pieces.profile == RateProfile((0.0, 5.0), (1.0, 3.0), 10.0)
    wave = SinusoidArrivals(rate=2.0, amplitude=0.5, period=8.0, phase=1.0)
    at = np.linspace(0, 8, 5000, endpoint=False)
    p = wave.profile
    steps = np.array(p.rates)[np.searchsorted(p.times, at, side="right") - 1]
    assert (steps >= wave.rate_at(at) - 1e-12).all()
    assert (steps <= wave.rate_at(at) + 0.03).all()
    assert max(p.rates) == pytest.approx(3.0)


def test_profiles_of_classes() -> None:
    length = {"kind": "constant", "value": 4}
    wave = {"kind": "piecewise", "times": [0, 5], "rates": [1, 3], "period": 10}
    own = {"classes": [{"arrivals": wave, "prompt": length, "output": length}], "num_requests": 5}
    (c,) = make_workload(own).class_statistics
    assert (c.rate, c.profile) == (2.0, RateProfile((0.0, 5.0), (1.0, 3.0), 10.0))
    shared = {
        "arrivals": wave,
        "classes": [{"weight": w, "prompt": length, "output": length} for w in (1, 3)],
        "num_requests": 5,
    }
    statistics = make_workload(shared).class_statistics
    assert [c.profile and c.profile.rates for c in statistics] == [(0.25, 0.75), (0.75, 2.25)]
    # Twice as fast: twice the rates, half the times.
    assert c.at_rate(2.0, speed=2.0).profile == RateProfile((0.0, 2.5), (2.0, 6.0), 5.0)
    table = make_workload(own).sample(0).faster(2.0)
    assert table.classes[0].profile == RateProfile((0.0, 2.5), (2.0, 6.0), 5.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ((1.0,), (1.0,)),
        ((0.0, 0.0), (1.0, 1.0)),
        ((0.0,), ()),
        ((0.0,), (-1.0,)),
        ((0.0, 2.0), (1.0, 1.0), 2.0),
    ],
)
def test_invalid_profiles_are_rejected(arguments: tuple[object, ...]) -> None:
    with pytest.raises(WorkloadError):
        RateProfile(*arguments)  # type: ignore[arg-type]
