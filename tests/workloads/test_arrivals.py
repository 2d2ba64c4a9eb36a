import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from kvgym.errors import ConfigError
from kvgym.workloads.arrivals import (
    AllAtOnce,
    ArrivalProcess,
    DeterministicArrivals,
    GammaArrivals,
    PoissonArrivals,
    SlottedArrivals,
    TimestampArrivals,
)
from kvgym.workloads.base import FloatRange
from kvgym.workloads.classes import RateProfile
from kvgym.workloads.varying_arrivals import (
    AnyArrivals,
    Bursts,
    BurstyArrivals,
    PiecewiseArrivals,
    SinusoidArrivals,
    Wave,
)

BURSTS = Bursts(every=40.0, length=FloatRange(low=4, high=10), factor=FloatRange(low=1.5, high=2.2))

RANDOM = [
    PoissonArrivals(rate=4.0),
    GammaArrivals(rate=4.0, burstiness=0.25),
    GammaArrivals(rate=4.0, burstiness=5.0),
    PiecewiseArrivals(times=(0, 5, 7), rates=(2, 0, 6), period=10),
    PiecewiseArrivals(times=(0, 10), rates=(8, 4)),
    SinusoidArrivals(rate=4.0, amplitude=1.0, period=20.0, phase=0.3),
    SinusoidArrivals(
        rate=4.0, amplitude=0.6, period=5.0, phase=0.3, periods=(Wave(amplitude=0.4, period=20.0),)
    ),
    BurstyArrivals(base=PoissonArrivals(rate=4.0), bursts=BURSTS),
    BurstyArrivals(base=SinusoidArrivals(rate=4.0, amplitude=1.0, period=20.0), bursts=BURSTS),
    BurstyArrivals(base=PiecewiseArrivals(times=(0, 5, 7), rates=(2, 0, 6), period=10), bursts=BURSTS),
    SlottedArrivals(rate=4.0),
    SlottedArrivals(rate=FloatRange(low=2, high=6), start=1),
]
ALL = [
    *RANDOM,
    AllAtOnce(time=2.0),
    DeterministicArrivals(rate=4.0),
    TimestampArrivals(times=tuple(range(3000)), rate_scale=2.0),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("process", ALL, ids=lambda p: p.kind)
def test_every_process_fulfils_the_contract(process: ArrivalProcess):
    times = process.sample(500, rng())
    assert times.shape == (500,)
    assert times.dtype == np.float64
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0
    np.testing.assert_array_equal(times, process.sample(500, rng()))
    assert len(process.sample(0, rng())) == 0
    rebuilt = TypeAdapter(AnyArrivals).validate_json(process.model_dump_json())
    assert rebuilt == process


@pytest.mark.parametrize("process", ALL, ids=lambda p: p.kind)
def test_short_sample_is_prefix_of_long(process: ArrivalProcess):
    np.testing.assert_array_equal(process.sample(100, rng()), process.sample(1000, rng())[:100])


@pytest.mark.parametrize("process", [p for p in ALL if p.kind != "all_at_once"], ids=lambda p: p.kind)
def test_horizon_is_prefix_and_bounded(process: ArrivalProcess):
    short, long = process.sample_until(60, rng()), process.sample_until(400, rng())
    assert short.max() < 60 + (process.start if isinstance(process, SlottedArrivals) else 0)
    np.testing.assert_array_equal(short, long[: len(short)])
    assert len(long) == len(short) or long[len(short)] >= 60


@pytest.mark.parametrize("process", RANDOM, ids=lambda p: p.kind)
def test_same_times_by_number_and_by_horizon(process: ArrivalProcess):
    by_horizon = process.sample_until(100, rng())
    np.testing.assert_array_equal(by_horizon, process.sample(len(by_horizon), rng()))


@pytest.mark.parametrize(
    "process", [p for p in RANDOM if "rate=FloatRange" not in repr(p)], ids=lambda p: p.kind
)
def test_long_run_rate(process: ArrivalProcess):
    horizon = 20_000.0  # 80,000 arrivals; the gamma with CV 2 has the widest standard error, 0.7 %
    assert len(process.sample_until(horizon, rng(1))) / horizon == pytest.approx(process.mean_rate, rel=0.02)
    doubled = process.scaled(2.0)
    assert doubled.mean_rate == pytest.approx(2 * process.mean_rate)
    assert len(doubled.sample_until(horizon, rng(1))) / horizon == pytest.approx(doubled.mean_rate, rel=0.02)


def test_poisson_counts_have_poisson_variance():
    times = PoissonArrivals(rate=5).sample_until(20_000, rng(2))
    counts = np.bincount(times.astype(int), minlength=20_000)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.05)
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_burstiness_is_vllms(burstiness: float):
    gaps = np.diff(GammaArrivals(rate=10, burstiness=burstiness).sample(200_000, rng(3)))
    assert gaps.mean() == pytest.approx(0.1, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.02)


def test_deterministic_spacing():
    process = DeterministicArrivals(rate=4)
    np.testing.assert_array_equal(process.sample(4, rng()), [0, 0.25, 0.5, 0.75])
    np.testing.assert_array_equal(process.sample_until(0.75, rng()), [0, 0.25, 0.5])


@pytest.mark.parametrize(
    "process", [p for p in RANDOM if isinstance(p, PiecewiseArrivals | SinusoidArrivals)], ids=repr
)
def test_time_varying_rate_is_followed(process: PiecewiseArrivals | SinusoidArrivals):
    period = 20.0
    times = process.sample_until(40_000.0, rng(4))
    if isinstance(process, PiecewiseArrivals) and process.period is None:
        first = np.mean([np.sum(process.sample_until(10.0, rng(s)) < 10) for s in range(300)]) / 10
        assert first == pytest.approx(8, rel=0.03)
        assert len(times) / 40_000 == pytest.approx(4, rel=0.02)
        return
    counts = np.bincount((np.mod(times, period)).astype(int), minlength=20) / (40_000 / period)
    grid = (np.arange(20_000) + 0.5) / 1000
    expected = process.rate_at(grid).reshape(20, 1000).mean(axis=1)
    np.testing.assert_allclose(counts, expected, atol=5 * math.sqrt(8 / 2000))


def test_no_arrivals_while_the_rate_is_zero():
    process = PiecewiseArrivals(times=(0, 5, 7), rates=(2, 0, 6), period=10)
    phase = np.mod(process.sample_until(5000, rng(5)), 10)
    assert not np.any((phase > 5 + 1e-9) & (phase < 7 - 1e-9))
    process = PiecewiseArrivals(times=(0, 5), rates=(2, 0), period=10)
    assert np.all(np.mod(process.sample_until(5000, rng(5)), 10) <= 5 + 1e-9)


@given(st.floats(0, 1), st.floats(0.1, 100), st.floats(-7, 7), st.integers(0, 10))
def test_sinusoid_inverts_its_cumulative_rate(amplitude: float, period: float, phase: float, seed: int):
    process = SinusoidArrivals(rate=3.0, amplitude=amplitude, period=period, phase=phase)
    clock = np.cumsum(rng(seed).standard_exponential(50))
    times = process.sample(50, rng(seed))
    np.testing.assert_allclose(3.0 * process._cumulative(times), clock, rtol=1e-9, atol=1e-9)


def test_slotted_counts():
    process = SlottedArrivals(rate=1.5, start=3)
    times = process.sample_until(10_000, rng(6))
    assert np.all(times == np.floor(times))
    assert times.min() >= 3
    assert times.max() <= 10_002
    counts = np.bincount(times.astype(int), minlength=10_003)[3:]
    assert counts.mean() == pytest.approx(1.5, abs=0.04)
    assert counts.var() == pytest.approx(1.5, abs=0.08)
    assert np.mean(counts == 0) == pytest.approx(math.exp(-1.5), abs=0.015)


def test_slotted_random_rate_varies_between_samples():
    process = SlottedArrivals(rate=FloatRange(low=0.5, high=1.5), start=1)
    counts = np.array([len(process.sample_until(50, rng(s))) for s in range(2000)])
    assert counts.mean() == pytest.approx(50, rel=0.03)
    # variance: Poisson mean 50 + (50)² · Var U(0.5, 1.5) = 50 + 208
    assert counts.var() == pytest.approx(258, rel=0.12)


def test_timestamps_scale():
    process = TimestampArrivals(times=(0, 2, 4, 10))
    np.testing.assert_array_equal(process.scaled(2).sample(3, rng()), [0, 1, 2])
    assert process.mean_rate == pytest.approx(0.3)
    with pytest.raises(ConfigError, match="only 4 timestamps"):
        process.sample(5, rng())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonArrivals(rate=-1), "rate: .*greater than 0.*-1"),
        (lambda: PoissonArrivals(rate=math.inf), "rate: .*finite"),
        (lambda: PoissonArrivals(rate=1, burst=2), "burst"),
        (lambda: GammaArrivals(rate=1, burstiness=0), "burstiness"),
        (lambda: PiecewiseArrivals(times=(1, 2), rates=(1, 1)), "start at 0"),
        (lambda: PiecewiseArrivals(times=(0, 2), rates=(1,)), "one rate per piece"),
        (lambda: PiecewiseArrivals(times=(0, 2), rates=(1, 0)), "last rate"),
        (lambda: PiecewiseArrivals(times=(0, 2), rates=(1, 1), period=2), "must exceed"),
        (lambda: SinusoidArrivals(rate=1, amplitude=1.5, period=1), "amplitude"),
        (lambda: TimestampArrivals(times=(2, 1)), "non-decreasing"),
        (lambda: FloatRange(low=2, high=1), "below"),
        (lambda: AllAtOnce().sample_until(5, rng()), "num_requests"),
    ],
)
def test_mistakes_are_named(make, message: str):
    with pytest.raises(ConfigError, match=message):
        make()


def test_several_waves_add_up():
    process = SinusoidArrivals(
        rate=2, amplitude=0.5, period=10, periods=(Wave(amplitude=0.5, period=40, phase=np.pi),)
    )
    time = np.array([0.0, 2.5, 10.0, 30.0])
    waves = [0, 0.5 - 0.5 * math.sin(2 * np.pi / 16), -0.5, 0.5]
    np.testing.assert_allclose(process.rate_at(time), 2 * (1 + np.array(waves)), atol=1e-12)
    profile = process.profile
    assert profile.period == 40
    grid = np.linspace(0, 40, 5001)[:-1]
    found = np.asarray(profile.rates)[np.searchsorted(profile.times, grid, side="right") - 1]
    assert (found >= process.rate_at(grid) - 1e-12).all()
    assert found.max() == pytest.approx(process.rate_at(grid).max(), abs=0.05)


def test_a_single_wave_is_described_as_before():
    assert "periods" not in SinusoidArrivals(rate=1, period=5).model_dump()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"periods": [{"amplitude": 0.6, "period": 20}]}, "add up to 1.1"),
        ({"periods": [{"amplitude": 0.1, "period": 15}]}, "the longest period, 15 s, must be a multiple"),
    ],
)
def test_waves_that_do_not_fit_are_named(wrong: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        SinusoidArrivals(rate=1.0, amplitude=0.5, period=10.0, **wrong)


def test_bursts_multiply_the_rate_while_they_last():
    bursts = Bursts(every=50.0, length=10.0, factor=3.0)
    process = BurstyArrivals(base=PoissonArrivals(rate=20.0), bursts=bursts)
    assert process.mean_rate == pytest.approx(20 * (1 + 2 * 10 / 50))
    times = process.sample_until(5000.0, rng(7))
    known = process.known_rates(lambda: rng(7), 5000.0)
    assert known is not None
    assert known.mean.rates == (process.mean_rate,)
    edges = np.append(known.drawn.times, 5000.0)
    counts, rates = np.histogram(times, edges)[0], np.asarray(known.drawn.rates)
    assert set(rates.tolist()) == {20.0, 60.0}
    spans = np.diff(edges)
    assert spans[rates == 60][:-1] == pytest.approx(10.0)
    for rate in (20.0, 60.0):
        assert counts[rates == rate].sum() / spans[rates == rate].sum() == pytest.approx(rate, rel=0.03)


def test_bursts_stay_where_they_are_at_another_rate():
    process = BurstyArrivals(base=SinusoidArrivals(rate=4.0, period=20.0), bursts=BURSTS)
    slow, fast = (p.known_rates(lambda: rng(1), 200.0) for p in (process, process.scaled(2.0)))
    assert slow is not None
    assert fast is not None
    assert fast.drawn.times == slow.drawn.times
    np.testing.assert_allclose(fast.drawn.rates, 2 * np.asarray(slow.drawn.rates))


def test_bursts_must_be_apart():
    with pytest.raises(ConfigError, match="length = 60 must be above 0 and below every = 50"):
        Bursts(every=50.0, length=60.0, factor=2.0)


def test_the_most_of_a_rate_ahead():
    profile = PiecewiseArrivals(times=(0, 5, 7), rates=(2, 0, 6), period=10).profile
    spans = {
        (0, 4): 2,
        (0, 5): 2,
        (5, 6): 0,
        (6, 8): 6,
        (8, 11): 6,
        (15, 16.5): 0,
        (16, 28): 6,
        (19.9, 21): 6,
    }
    assert {span: profile.most(*span) for span in spans} == spans
    forever = PiecewiseArrivals(times=(0, 10), rates=(8, 4)).profile
    assert [forever.most(0, 5), forever.most(9, 12), forever.most(50, 60)] == [8, 8, 4]


@pytest.mark.parametrize("period", [None, 20.0])
@pytest.mark.parametrize("start", [0.0, 3.0, 5.0, 12.5, 19.0, 47.0])
def test_rates_from_a_later_time(period, start):
    profile = RateProfile((0.0, 5.0, 12.0), (1.0, 2.0, 3.0), period)
    later = profile.later(start)
    for t in np.arange(0.25, 60.0, 0.5).tolist():
        assert later.most(t, t + 1e-6) == profile.most(start + t, start + t + 1e-6)
