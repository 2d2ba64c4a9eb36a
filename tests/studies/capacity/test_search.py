"""Bracketing and bisection: worked by hand, and its invariants on any system."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgym.errors import ConfigError
from kvgym.studies.capacity.search import Rates, Search, Workers


def run(search, holds, most=200):
    """Run a search to its end; return the values that it tried."""
    asked = []
    while (value := search.ask()) is not None:
        asked.append(value)
        search.record(value, holds(value))
        assert len(asked) <= most
    return asked


def test_a_rate_is_doubled_then_bisected():
    search = Search(Rates(0.01, 1000, tolerance=0.25), 1.0)
    asked = run(search, lambda rate: rate <= 5)
    # 1, 2, 4 hold and 8 fails; √32 = 5.66 fails; √(4 × 5.66) = 4.76 holds, and 5.66 is within 25 % of it.
    assert asked == pytest.approx([1, 2, 4, 8, math.sqrt(32), math.sqrt(4 * math.sqrt(32))])
    assert search.bracket() == pytest.approx((math.sqrt(4 * math.sqrt(32)), math.sqrt(32)))
    assert not search.surprises()


def test_a_rate_is_halved_if_the_first_fails():
    search = Search(Rates(0.1, 1000, tolerance=1.0), 8.0)
    assert run(search, lambda rate: rate <= 1.5) == [8, 4, 2, 1]
    assert search.bracket() == (1, 2)


def test_the_ends_of_the_range_end_a_search():
    low = Search(Rates(1, 16, tolerance=0.5), 4.0)
    assert run(low, lambda rate: False) == [4, 2, 1]
    assert low.bracket() == (None, 1)
    high = Search(Rates(1, 16, tolerance=0.5), 4.0)
    assert run(high, lambda rate: True) == [4, 8, 16]
    assert high.bracket() == (16, None)


def test_fewest_workers():
    search = Search(Workers(64), 3)
    assert run(search, lambda count: count >= 11) == [3, 6, 12, 9, 10, 11]
    assert search.bracket() == (11, 10)
    many = Search(Workers(64), 24)
    assert run(many, lambda count: count >= 1) == [24, 12, 6, 3, 1]
    assert many.bracket() == (1, None)
    never = Search(Workers(10), 3)
    assert run(never, lambda count: False) == [3, 6, 10]
    assert never.bracket() == (None, 10)


def test_a_failure_below_a_passing_value_counts():
    search = Search(Rates(0.1, 1000, tolerance=0.1), 4.0)
    odd = lambda rate: rate <= 5 and not 2 <= rate <= 3  # noqa: E731
    run(search, odd)
    easy, hard = search.bracket()
    assert 4.5 < easy <= 5 < hard <= easy * 1.1
    search.record(2.5, odd(2.5))  # a check below what held
    again = run(search, odd)
    assert all(rate < 2.5 for rate in again)
    easy, hard = search.bracket()
    assert 1.8 < easy < 2 <= hard <= easy * 1.1
    assert 4 in search.surprises()
    assert list(search.surprises()) == sorted(search.surprises())


@given(
    switch=st.floats(1e-3, 1e3),
    start=st.floats(1e-2, 1e2),
    tolerance=st.floats(0.005, 1.0),
)
def test_the_bracket_contains_the_switch_and_probes_are_few(switch, start, tolerance):
    scale = Rates(start / 2**20, start * 2**20, tolerance)
    search, asked = Search(scale, start), []
    while (value := search.ask()) is not None:
        easy, hard = search.bracket() if asked else (None, None)
        assert easy is None or easy < value
        assert hard is None or value < hard
        asked.append(value)
        search.record(value, value <= switch)
        easy, hard = search.bracket()
        assert easy is None or easy <= switch
        assert hard is None or switch < hard
    easy, hard = search.bracket()
    assert easy <= switch < hard <= easy * (1 + tolerance)
    bracketing = abs(math.log2(switch / start)) + 3
    bisecting = math.log2(max(math.log(2) / math.log1p(tolerance), 1)) + 2
    assert len(asked) <= bracketing + bisecting
    assert len(set(asked)) == len(asked)


@given(fewest=st.integers(1, 300), start=st.integers(1, 300))
def test_the_fewest_workers_are_found(fewest, start):
    search = Search(Workers(300), start)
    asked = run(search, lambda count: count >= fewest)
    assert search.bracket() == (fewest, fewest - 1 if fewest > 1 else None)
    assert all(count == int(count) and 1 <= count <= 300 for count in asked)
    assert len(asked) <= 2 * math.log2(300) + 4


@given(st.dictionaries(st.floats(0.1, 10), st.booleans(), min_size=1))
def test_a_bracket_of_any_answers_is_conservative(answers):
    search = Search(Rates(0.01, 100, 0.02), 1.0)
    for rate, held in answers.items():
        search.record(rate, held)
    easy, hard = search.bracket()
    failed = [rate for rate, held in answers.items() if not held]
    assert hard == min(failed, default=None)
    assert all(held for rate, held in answers.items() if easy is not None and rate <= easy)
    assert all(rate > hard and answers[rate] for rate in search.surprises())


@pytest.mark.parametrize("tolerance", [0, -1, 1.5, math.nan])
def test_a_tolerance_is_a_share(tolerance):
    with pytest.raises(ConfigError, match="tolerance"):
        Rates(1, 2, tolerance)


def test_an_empty_range_is_refused():
    with pytest.raises(ConfigError, match="low ≤ high"):
        Rates(3, 2)
    with pytest.raises(ConfigError, match="most workers 0"):
        Workers(0)
