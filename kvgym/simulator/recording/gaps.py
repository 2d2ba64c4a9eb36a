"""Histograms of the gaps between output tokens, dense or sparse.

A bin is 1/1,024 of an octave wide, at most 2^-10 relative to its gaps. It holds the number of its gaps and
their sum.

- A dense histogram has an entry for every bin, 16 bytes each: 1.3 MB. Behind them its counts mark the octaves that have
  gaps, few of many, so that no run reads the others. Its length is :data:`GAP_LENGTH`.
- A sparse one has an entry for every bin with gaps in it, in a hash table; its length is a power of two. An entry of
  its counts holds the key of the bin in the low bits and the number of gaps above them. Entry 0 counts the bins. Once
  three quarters of the table are in use, further bins are a 32nd of an octave wide, and whole octaves in its last
  eighth; so it is never full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.kernel import jit
from kvgym.compiling.records import sparse_zeros
from kvgym.simulator.tables import GAP_BINS, GAP_LENGTH, GAP_MIN_EXPONENT, GAP_OCTAVES

_KEY_BITS = 17
_KEYS = (1 << _KEY_BITS) - 1
SPARSE_HEADER = _KEYS
"""Entry 0 of the counts of an empty sparse histogram: a key that no bin has."""

_PER_OCTAVE = GAP_BINS // GAP_OCTAVES
_COARSER = 5  # octaves of 1,024 bins, then of 32, then of 1
_NEAR = 3  # neighbouring bins lie on one cache line
_MIX = 2654435761  # 2^32 divided by the golden ratio
_LEAST, _MOST = 1 << 10, 1 << 14


def sparse_length(num_requests: int) -> int:
    """Return the length of a sparse histogram for ``num_requests`` requests; each takes about half a bin."""
    return min(max(1 << (3 * num_requests // 2 - 1).bit_length(), _LEAST), _MOST)


@jit
def gap_bin(gap: float) -> int:
    """Return the bin of a gap of ``gap`` seconds: its exponent and first bits of its fraction, as they stand in it."""
    bits = int(np.float64(gap).view(np.int64))
    return min(max((bits >> 42) - ((1022 + GAP_MIN_EXPONENT) << 10), 0), GAP_BINS - 1)


@jit
def sparse_home(bin_: int, base: int, size: int) -> int:
    """Return where the search for a bin begins in a sparse histogram; ``base`` is the key of the first such bin."""
    mixed = ((base + (bin_ >> _NEAR)) * _MIX) >> 16
    return ((mixed << _NEAR) + (bin_ & ((1 << _NEAR) - 1))) & (size - 1)


@jit
def sparse_place(gap_counts: Any, gap: float) -> int:
    """Return the entry of a sparse histogram that counts a gap; a new one if there is none."""
    size, bin_, base = gap_counts.shape[0], gap_bin(gap), 1
    bins, room = GAP_BINS, 3 * size // 4
    while True:
        key, at = base + bin_, sparse_home(bin_, base, size)
        while gap_counts[at] != 0:
            if gap_counts[at] & _KEYS == key:
                return at
            at = (at + 1) & (size - 1)
        if gap_counts[0] >> _KEY_BITS < room:
            gap_counts[0] += 1 << _KEY_BITS
            gap_counts[at] = key
            return at
        base, bin_, bins, room = base + bins, bin_ >> _COARSER, bins >> _COARSER, room + size // 8


@jit
def count_gap(gap_counts: Any, gap_sums: Any, gap: float, count: int) -> None:
    """Add ``count`` token gaps of ``gap`` seconds to a histogram, dense or sparse."""
    size = gap_counts.shape[0]
    if size == 0:
        return  # no histogram
    if size == GAP_LENGTH:
        at = gap_bin(gap)
        gap_counts[at] += count
        gap_counts[GAP_BINS + at // _PER_OCTAVE] = 1
    else:
        at = sparse_place(gap_counts, gap)
        gap_counts[at] += count << _KEY_BITS
    gap_sums[at] += gap * count


Histogram = tuple[NDArray[np.int64], NDArray[np.float64]]
"""The number of gaps in each bin, and their sums in seconds."""

_SPARE: list[Histogram] = []
_MOST_SPARE = 4


def empty_histogram() -> Histogram:
    """Return an empty dense histogram: one that an earlier run of this process has left, if there is any."""
    try:
        return _SPARE.pop()
    except IndexError:  # its gaps will fall into a hundredth of the bins
        return sparse_zeros((GAP_LENGTH,), np.int64, 0), sparse_zeros((GAP_LENGTH,), np.float64, 0)


def filled_bins(gap_counts: NDArray[np.int64], gap_sums: NDArray[np.float64], *, given_up: bool) -> Histogram:
    """Return the bins of a dense histogram that hold gaps, shortest gaps first; both (b,).

    Args:
        gap_counts: the number of gaps in each bin.
        gap_sums: their sums in seconds.
        given_up: whether the histogram will not be used again; it is then emptied for :func:`empty_histogram`.
    """
    filled = _filled(gap_counts)
    found = gap_counts[filled], gap_sums[filled]
    if given_up and len(_SPARE) < _MOST_SPARE:
        gap_counts[filled], gap_sums[filled], gap_counts[GAP_BINS:] = 0, 0.0, 0
        _SPARE.append((gap_counts, gap_sums))
    return found


def _filled(gap_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the bins of a dense histogram that hold gaps."""
    (octaves,) = gap_counts[GAP_BINS:].nonzero()
    rows = gap_counts[:GAP_BINS].reshape(GAP_OCTAVES, _PER_OCTAVE)[octaves]
    octave, place = (rows > 0).nonzero()  # several times as fast as of numbers
    return np.asarray(octaves[octave] * _PER_OCTAVE + place)


def used_bins(
    gap_counts: NDArray[np.int64], gap_sums: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the bins of a sparse histogram that hold gaps, shortest gaps first.

    Returns:
        The number of gaps in each, and their sums in seconds, both (b,).
    """
    (used,) = np.nonzero(gap_counts[1:])
    counts, sums = gap_counts[1 + used] >> _KEY_BITS, gap_sums[1 + used]
    order = np.argsort(sums / counts, kind="stable")
    return counts[order], sums[order]
