"""Checks of arguments: seeds, whole numbers, arrays, and size estimates before drawing."""

from fractions import Fraction

import numpy as np
import pytest

from kvgym.errors import ConfigError, WorkloadError
from kvgym.utils.checks import (
    MAX_SEEDS,
    as_array,
    check_flag,
    check_seed,
    check_seeds,
    real_number,
    whole_number,
    whole_numbers,
)
from kvgym.workloads import base, make_workload
from kvgym.workloads.arrivals import SlottedArrivals
from kvgym.workloads.varying_arrivals import PiecewiseArrivals


@pytest.mark.parametrize(
    "seed", [1.0, -1, True, "1", None, [1], np.float64(2), np.True_, 1 + 0j, Fraction(2), np.array([1, 2])]
)
def test_invalid_seeds(seed):
    with pytest.raises(ConfigError, match="seed must be a whole number ≥ 0"):
        check_seed(seed)
    with pytest.raises(ConfigError, match=r"each seed must be|seeds"):
        check_seeds([seed])


def test_seeds():
    assert [check_seed(seed) for seed in (0, 10**30, np.int8(3), np.array(5))] == [0, 10**30, 3, 5]
    assert check_seeds(3) == (0, 1, 2)
    assert check_seeds(np.int64(2), 7) == (7, 8)
    assert check_seeds(iter([3, 1])) == (3, 1)
    for wrong in ([], 0, [1, 1], "12", MAX_SEEDS + 1, 10**18):
        with pytest.raises(ConfigError, match="expected"):
            check_seeds(wrong)


def test_numbers():
    assert whole_number(np.int32(4), "x", "y") == 4
    assert real_number(Fraction(1, 2), "x", "y", lambda x: x > 0) == 0.5
    for value in (0, 2**31, 1.0, True, "3", None, 10**5000):
        with pytest.raises(ConfigError, match=r"^size = .*; expected tokens$"):
            whole_number(value, "size", "tokens")
    for value in (float("nan"), "1", True, None, 10**400, -1):
        with pytest.raises(ConfigError, match=r"^time = .*; expected seconds$"):
            real_number(value, "time", "seconds", lambda x: x >= 0)


def test_flags():
    assert check_flag(np.True_, "x") is True
    assert check_flag(False, "x") is False
    for wrong in ("no", 0, 1, None, [], np.ones(1)):
        with pytest.raises(ConfigError, match="expected True or False"):
            check_flag(wrong, "x")


def test_arrays_of_whole_numbers_are_copied_and_within_range():
    given = np.array([3, 4], np.uint8)
    made = whole_numbers(given, "x", least=3, most=4)
    given[0] = 0
    assert made.dtype == np.int64
    assert made.tolist() == [3, 4]
    for wrong, words in (
        ([2], "x, row 0: 2; expected a whole number from 3 to 4"),
        ([3, 5], "x, row 1: 5"),
        (np.array([3, 2**64 - 1], np.uint64), "x, row 1: 18446744073709551615"),
        ([True], "dtype bool"),
        ([[3]], "shape \\(1, 1\\)"),
        ([3.0], "float64"),
    ):
        with pytest.raises(WorkloadError, match=words):
            whole_numbers(wrong, "x", WorkloadError, least=3, most=4)


def test_arrays():
    assert as_array((1, 2), "x").tolist() == [1, 2]
    for value in ([[1], [1, 2]], np.ma.MaskedArray([1, 2], [True, False])):
        with pytest.raises(WorkloadError, match=r"^column x "):
            as_array(value, "column x", WorkloadError)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_requests": 101}, "101 requests: about 101 draws; at most 100 "),
        ({"arrivals": {"kind": "poisson", "rate": 3.0}, "duration": 50}, "50 s at 3 requests per second: about 150 "),
        ({"arrivals": {"kind": "poisson", "rate": 1e300}, "duration": 1e300}, "1e.300 requests per second: about inf"),
        ({"arrivals": {"kind": "slotted", "rate": 1e30}, "num_requests": 5}, r"at 1e\+30 per slot"),
        ({"arrivals": {"kind": "slotted", "rate": 0.01}, "duration": 1e9}, r"about 1e\+09 draws"),
        ({"arrivals": {"kind": "gamma", "rate": 1.0, "burstiness": 1e-300}, "duration": 5}, "do not reach 5 s"),
        ({"arrivals": {"kind": "piecewise", "times": [0, 10], "rates": [20, 1]}, "duration": 11}, "about 201 draws"),
    ],
)  # fmt: skip
def test_too_many_requests_are_refused_before_drawing(changes, words, monkeypatch):
    monkeypatch.setattr(base, "MAX_REQUESTS", 100)
    with pytest.raises(WorkloadError, match=words):
        make_workload("lmsys", **changes).sample(0)


def test_the_estimate_is_close_to_the_number_drawn():
    rng = np.random.default_rng(0)
    pieces = PiecewiseArrivals(times=(0.0, 10.0), rates=(100.0, 5.0))
    assert pieces.expected(20.0) == 1050
    assert len(pieces.sample_until(20.0, rng)) == pytest.approx(1050, rel=0.15)
    again = PiecewiseArrivals(times=(0.0, 1.0), rates=(8.0, 0.0), period=2.0)
    assert again.expected(3.0) == 16
    assert SlottedArrivals(rate=0.5).expected(7.5) == 8
