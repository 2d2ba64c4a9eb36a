import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.errors import ConfigError
from kvgym.workloads import RequestTable
from kvgym.workloads.lengths import (
    ConstantLength,
    DiscreteLength,
    EmpiricalPairs,
    FillLengths,
    IndependentLengths,
    LogNormalLength,
    UniformLength,
)
from kvgym.workloads.limits import LengthLimits

DISTRIBUTIONS = [
    ConstantLength(value=7),
    UniformLength(low=10, high=1600),
    DiscreteLength(values=(1, 5, 100), weights=(1, 0, 3)),
    DiscreteLength(values=(1, 5, 100)),
    LogNormalLength(median=11, mean=40.62),
    LogNormalLength(median=1730, p90=5696),
    LogNormalLength(median=0.3, sigma=1.0),
    LogNormalLength(median=3.0, sigma=0.0),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def table(prompt, output) -> RequestTable:
    return RequestTable(np.zeros(len(prompt)), prompt, output)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=repr)
def test_contract_and_mean(distribution):
    lengths = distribution.sample(200_000, rng())
    assert lengths.dtype == np.int64
    assert lengths.min() >= 1
    if distribution.max_len is not None:
        assert lengths.max() <= distribution.max_len
    error = 5 * lengths.std() / math.sqrt(len(lengths))
    assert lengths.mean() == pytest.approx(distribution.mean_len, abs=error + 1e-9)
    np.testing.assert_array_equal(lengths[:50], distribution.sample(50, rng()))
    assert type(distribution)(**distribution.model_dump()) == distribution


def test_lognormal_from_mean_and_median():
    # MC-SF, Section 5.2: prompt mean 40.62, median 11.
    d = LogNormalLength(median=11, mean=40.62)
    assert d.log_std == pytest.approx(math.sqrt(2 * math.log(40.62 / 11)))
    assert d.mean_len == pytest.approx(40.62, rel=0.002)  # rounding and the least length of 1 add little
    lengths = d.sample(400_000, rng(1))
    assert np.median(lengths) == 11
    assert np.minimum(lengths, 4096).mean() == pytest.approx(d.limited_mean(high=4096), rel=0.015)


def test_lognormal_from_median_and_p90():
    # SLAI, Table 1.
    for median, p90 in ((1730, 5696), (415, 834)):
        lengths = LogNormalLength(median=median, p90=p90).sample(300_000, rng(2))
        assert np.median(lengths) == pytest.approx(median, rel=0.01)
        assert np.quantile(lengths, 0.9) == pytest.approx(p90, rel=0.01)


def test_lognormal_rounds_to_nearest():
    lengths = LogNormalLength(median=3.4, sigma=0.0).sample(3, rng())
    assert lengths.tolist() == [3, 3, 3]
    assert LogNormalLength(median=3.5, sigma=0.0).sample(1, rng())[0] == 4


@given(st.floats(0.2, 200), st.floats(0.05, 2.0), st.integers(1, 20), st.integers(0, 3000))
def test_limited_mean_is_the_sum_over_the_clipped_distribution(median, sigma, low, extra):
    d, high = LogNormalLength(median=median, sigma=sigma), low + extra
    k = np.arange(1, high + 2)
    tail = d._survival(k - 0.5)  # P(L ≥ k), k ≥ 2
    tail[0] = 1.0
    mass = -np.diff(tail)
    values = np.clip(k[:-1], low, high)
    expected = float(mass @ values) + high * tail[-1]
    assert d.limited_mean(low, high) == pytest.approx(expected, rel=1e-9)


def test_long_tails_are_in_the_mean():
    d = LogNormalLength(median=1e5, sigma=2.0)  # much mass beyond the exact sum
    assert d.mean_len == pytest.approx(1e5 * math.exp(2.0), rel=1e-6)


def test_independent_lengths_use_separate_streams():
    wide = IndependentLengths(prompt=UniformLength(low=1, high=9), output=UniformLength(low=1, high=900))
    narrow = IndependentLengths(prompt=UniformLength(low=1, high=9), output=ConstantLength(value=4))
    a, _ = wide.sample(100, rng(1), rng(2))
    b, _ = narrow.sample(100, rng(1), rng(2))
    np.testing.assert_array_equal(a, b)


def test_fill_lengths_fit_alone():
    d = FillLengths(prompt=UniformLength(low=1, high=5), kv_capacity=30)
    prompt, output = d.sample(100_000, rng(1), rng(2))
    assert np.all(prompt + output <= 30)
    for s in range(1, 6):
        given_s = output[prompt == s]
        assert given_s.min() == 1
        assert given_s.max() == 30 - s
        assert given_s.mean() == pytest.approx((1 + 30 - s) / 2, abs=0.3)
    assert output.mean() == pytest.approx(d.mean_output_len, abs=0.15)


def test_pairs_keep_their_correlation():
    d = EmpiricalPairs(prompt_len=(1, 2, 3), output_len=(30, 20, 10))
    prompt, output = d.sample(3000, rng(1), rng(2))
    np.testing.assert_array_equal(output, 40 - 10 * prompt)
    assert prompt.mean() == pytest.approx(d.mean_prompt_len, abs=0.06)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformLength(low=5, high=4), "below"),
        (lambda: UniformLength(low=0, high=4), "low"),
        (lambda: ConstantLength(value=1.5), "value"),
        (lambda: LogNormalLength(median=5), "exactly one"),
        (lambda: LogNormalLength(median=5, mean=9, p90=10), "exactly one"),
        (lambda: LogNormalLength(median=5, mean=4), "mean must be at least the median"),
        (lambda: DiscreteLength(values=(1, 2), weights=(1,)), "weights"),
        (lambda: DiscreteLength(values=(1, 2), weights=(0, 0)), "weights"),
        (lambda: EmpiricalPairs(prompt_len=(1,), output_len=(1, 2)), "1 prompts but 2"),
        (lambda: FillLengths(prompt=UniformLength(low=1, high=30), kv_capacity=30), "stay below"),
        (lambda: LengthLimits(max_prompt_len=3, min_prompt_len=4), "below"),
        (lambda: LengthLimits(max_total_len=5, min_prompt_len=5), "shortest request"),
    ],
)
def test_mistakes_are_named(make, message: str):
    with pytest.raises(ConfigError, match=message):
        make()


def test_clipping_is_counted():
    before = table([1, 50, 500], [3, 900, 4])
    after = LengthLimits(min_prompt_len=2, max_prompt_len=100, max_output_len=800).apply(before)
    assert after.prompt_len.tolist() == [2, 50, 100]
    assert after.output_len.tolist() == [3, 800, 4]
    assert after.notes == (
        "1 of 3 requests: each had its prompt raised to 2 tokens.",
        "1 of 3 requests: each had its prompt clipped to 100 tokens.",
        "1 of 3 requests: each had its output clipped to 800 tokens.",
    )


def test_total_shortens_the_prompt_first():
    after = LengthLimits(max_total_len=10).apply(table([5, 8, 20, 3], [5, 4, 2, 15]))
    assert after.prompt_len.tolist() == [5, 6, 8, 1]
    assert after.output_len.tolist() == [5, 4, 2, 9]
    assert after.notes == ("3 of 4 requests: each was shortened to 10 tokens in total, the prompt first.",)


def test_dropping_is_counted():
    after = LengthLimits(max_prompt_len=10, max_total_len=12, policy="drop").apply(
        table([5, 11, 9], [5, 1, 9])
    )
    assert after.prompt_len.tolist() == [5]
    assert after.notes == (
        "1 of 3 requests: each was dropped, its prompt length outside 1 … 10 tokens.",
        "1 of 3 requests: each was dropped, its total length outside 0 … 12 tokens.",
    )


def test_limits_without_effect_add_no_note():
    before = table([5], [5])
    assert LengthLimits(max_total_len=10).apply(before) is before


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 200),
    st.sampled_from(["clip", "drop"]),
)
def test_limits_hold(pairs, low_prompt, low_output, extra, policy):
    limits = LengthLimits(
        min_prompt_len=low_prompt,
        min_output_len=low_output,
        max_prompt_len=low_prompt + 50,
        max_total_len=low_prompt + low_output + extra,
        policy=policy,
    )
    prompt, output = zip(*pairs, strict=True)
    after = limits.apply(table(prompt, output))
    assert np.all(after.prompt_len >= low_prompt)
    assert np.all(after.output_len >= low_output)
    assert np.all(after.prompt_len <= low_prompt + 50)
    assert np.all(after.prompt_len + after.output_len <= low_prompt + low_output + extra)
