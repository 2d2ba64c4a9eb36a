"""Histograms of token gaps: the bin of a gap, and sparse histograms compared with dense ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.amount import number
from kvgym.compiling.kernel import uncompiled
from kvgym.simulator.recording.gaps import (
    SPARSE_HEADER,
    count_gap,
    empty_histogram,
    filled_bins,
    sparse_length,
    used_bins,
)
from kvgym.simulator.tables import GAP_BINS, GAP_LENGTH, GAP_MIN_EXPONENT, GAP_OCTAVES


@settings(max_examples=number(300, 60), deadline=None)
@given(st.floats(0.0, 1e6) | st.integers(-60, 60).map(lambda e: 2.0**e))
def test_the_bin_of_a_gap_is_its_octave_and_its_place_in_it(gap):
    counts, sums = np.zeros(GAP_LENGTH, np.int64), np.zeros(GAP_LENGTH)
    uncompiled(count_gap)(counts, sums, gap, 3)
    per_octave = GAP_BINS // GAP_OCTAVES
    mantissa, exponent = math.frexp(gap)
    place = (exponent - GAP_MIN_EXPONENT) * per_octave + int((2.0 * mantissa - 1.0) * per_octave)
    expected = min(max(place if gap > 0.0 else 0, 0), GAP_BINS - 1)
    assert counts[expected] == 3 == counts[:GAP_BINS].sum()
    assert np.flatnonzero(counts[GAP_BINS:]) == [expected // per_octave]
    assert sums[expected] == 3 * gap


def _sparse(gaps, size):
    counts, sums = np.zeros(size, np.int64), np.zeros(size)
    counts[0] = SPARSE_HEADER
    for gap in gaps:
        uncompiled(count_gap)(counts, sums, gap, 3)
    return counts, sums


@settings(max_examples=number(100, 60), deadline=None)
@given(st.lists(st.floats(0.0, 1e6) | st.floats(0.01, 0.02), max_size=700))
def test_a_sparse_histogram_holds_what_a_dense_one_does(gaps):
    dense = np.zeros(GAP_LENGTH, np.int64), np.zeros(GAP_LENGTH)
    for gap in gaps:
        uncompiled(count_gap)(*dense, gap, 3)
    (used,) = np.nonzero(dense[0][:GAP_BINS])
    for found in (used_bins(*_sparse(gaps, 1024)), filled_bins(*dense, given_up=False)):
        for table, whole in zip(found, dense, strict=True):
            np.testing.assert_array_equal(table, whole[used])


@pytest.mark.parametrize(
    ("octaves", "error"), [((-4.0, -3.5), 0.001), ((-6.0, -2.0), 1 / 32), ((-50.0, 45.0), 1.0)]
)
def test_a_sparse_histogram_is_never_full(octaves, error):
    """Three quarters hold exact bins, an eighth bins of 1/32 octave, and the rest whole octaves."""
    gaps = 2.0 ** np.random.default_rng(0).uniform(*octaves, 20_000)
    counts, sums = used_bins(*_sparse(gaps, 1024))
    assert len(counts) < 1024
    assert counts.sum() == 3 * len(gaps)
    np.testing.assert_allclose(sums.sum(), 3 * gaps.sum())
    shares = np.array([0.3, 0.5, 0.9])
    places = np.searchsorted(np.cumsum(counts), counts.sum() * shares)
    np.testing.assert_allclose((sums / counts)[places], np.quantile(gaps, shares), rtol=error)


def test_the_length_of_a_sparse_histogram():
    assert [sparse_length(n) for n in (1, 683, 684, 1000, 5000, 10**6)] == [
        1024,
        1024,
        2048,
        2048,
        8192,
        16384,
    ]


def test_an_abandoned_histogram_is_emptied_and_used_again():
    counts, sums = empty_histogram()
    for gap in (0.5, 0.25, 0.25):
        uncompiled(count_gap)(counts, sums, gap, 1)
    for given_up in (False, True):
        numbers, seconds = filled_bins(counts, sums, given_up=given_up)
        assert (numbers.tolist(), seconds.tolist()) == ([2, 1], [0.5, 0.5])
    again, others = empty_histogram(), empty_histogram()
    assert again[0] is counts
    assert again[1] is sums
    assert others[0] is not counts
    assert not any(part.any() for part in (*again, *others))
