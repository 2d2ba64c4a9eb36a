"""Nested WAIT: the memory that keeps queues between segments safe, and the number of segments.

Source throughout: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling
with Memory Constraints", Theorems 2 and 4, Lemma 8, Section 7.2. Notation as in :mod:`kvgym.theory.nested`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from kvgym.errors import ConfigError
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.checks import check_number, check_numbers
from kvgym.theory.nested import (
    Floats,
    MemoryForm,
    above,
    ends_of,
    nested_thresholds,
    same_length,
    segment_memory,
    survival_probabilities,
    thresholds_of,
)
from kvgym.utils.arguments import explained

__all__ = [
    "MemoryBound",
    "SegmentDesign",
    "memory_bound",
    "memory_by_segments",
    "segment_design",
    "theta",
    "theta_lower_bound",
]


def theta(n_prev: float, n_k: float, p_k: float) -> float:
    """Return the positive solution of e^(-theta n_k) (1 - p + p e^theta)^n_prev = 1, eq. (20).

    Lemma 8 has n_prev > n_k > n_prev p. With n_k >= n_prev no more requests enter the segment than it
    serves, its queue never exceeds n_k, and theta is infinite.

    Args:
        n_prev: threshold of the segment before, n_{k-1}.
        n_k: threshold of the segment.
        p_k: probability of going on from one to the other (p_k of the appendix), in [0, 1].

    Raises:
        ConfigError: an argument out of range, or the drift n_k - n_prev p is not positive, so there is no solution.
    """
    _check_step(n_prev, n_k, p_k)
    if n_k >= n_prev or p_k == 0:
        return math.inf
    if not above(n_k, n_prev * p_k):
        raise ConfigError(
            f"theta does not exist: n_k = {n_k:g} must exceed n_prev * p = {n_prev * p_k:g} (Lemma 8)"
        )

    def log_of_left_side(x: float) -> float:
        # log(1 - p + p e^x) in forms that are exact near 0 and do not overflow.
        near = x < 1
        growth = math.log1p(p_k * math.expm1(x)) if near else x + math.log(p_k + (1 - p_k) * math.exp(-x))
        return n_prev * growth - n_k * x

    # Convex, 0 at 0 and falling there: negative at half the lower bound, and positive beyond the
    # point where p e^x alone makes up for e^(-x n_k).
    low, high = theta_lower_bound(n_prev, n_k, p_k) / 2, 1 + n_prev * -math.log(p_k) / (n_prev - n_k)
    return float(brentq(log_of_left_side, low, high, xtol=1e-15, rtol=1e-13))


def theta_lower_bound(n_prev: float, n_k: float, p_k: float) -> float:
    """Return 8 (n_k - n_prev p) / n_prev, a lower bound of :func:`theta`, Lemma 8 and eq. (22).

    Theorems 2 and 4 print the denominator n_k, which is smaller; the proof does not give that much.
    Arguments as for :func:`theta`.

    Raises:
        ConfigError: an argument out of range.
    """
    _check_step(n_prev, n_k, p_k)
    return 8 * (n_k - n_prev * p_k) / n_prev


def _check_step(n_prev: float, n_k: float, p_k: float) -> None:
    check_number("n_prev", n_prev, above=0)
    check_number("n_k", n_k, above=0)
    check_number("p_k", p_k, least=0, most=1)


@dataclass(frozen=True)
class MemoryBound:
    """The memory that suffices with probability 1 - delta, eq. (14) and (17), in KV tokens.

    Attributes:
        batch: M^pi, the full batch.
        queues: sum_{k>=2} (l + l'_{k-1}) n_k, requests waiting between segments for the threshold.
        buffer: sum_{k>=2} (l + l'_{k-1}) ln((m-1) B / delta) / theta_k, their fluctuations; infinite where a
            segment has no drift.
        thetas: theta_k for k = 2 … m, 0 where there is no drift, inf where the queue cannot grow,
            float64, shape (m-1,).
        thresholds: n_k, float64, shape (m,).
    """

    batch: float
    queues: float
    buffer: float
    thetas: Floats
    thresholds: Floats

    @property
    def total(self) -> float:
        """The bound: batch + queues + buffer."""
        return self.batch + self.queues + self.buffer


def memory_bound(
    thresholds: ArrayLike,
    prompt_len: float,
    output_lens: ArrayLike,
    rates: ArrayLike,
    num_batches: float,
    delta: float,
    *,
    form: MemoryForm = "exact",
    survival: ArrayLike | None = None,
) -> MemoryBound:
    """Return the memory that suffices over ``num_batches`` batches with probability >= 1 - delta.

    Source: eq. (14) of Theorem 2, (17) of Theorem 4 with segments for types. The union bound over m-1 queues
    gives ln((m-1) B / delta), as the proof in Appendix C has it; the theorems print m.

    Args:
        thresholds: n_k, shape (m,).
        prompt_len: l, tokens.
        output_lens: l'_k, shape (m,).
        rates: lambda_j, shape (m,).
        num_batches: B, iterations over the horizon, >= 1.
        delta: probability of overflow allowed, in (0, 1).
        form: see :func:`segment_memory`.
        survival: probabilities in place of those of ``rates``, shape (m-1,): the worst case p*_k of eq. (21)
            where rates vary.
    """
    n, ends = thresholds_of(thresholds), ends_of(output_lens)
    check_number("prompt_len", prompt_len, least=0)
    check_number("num_batches", num_batches, least=1)
    check_number("delta", delta, above=0, below=1)
    rates = np.atleast_1d(check_numbers("rates", rates, least=0))
    p = (
        survival_probabilities(rates)
        if survival is None
        else check_numbers("survival", survival, least=0, most=1)
    )
    same_length(n, ends)
    same_length(n, p, 1)
    held = prompt_len + ends[:-1]
    pairs = zip(n[:-1], n[1:], p, strict=True)
    thetas = np.array([theta(a, b, q) if b >= a or above(b, a * q) else 0.0 for a, b, q in pairs])
    with np.errstate(divide="ignore"):
        fluctuation = math.log(max(1, len(p)) * num_batches / delta) / thetas
    batch = segment_memory(n, prompt_len, ends, form)
    return MemoryBound(batch, float(held @ n[1:]), float(held @ fluctuation), thetas, n)


@dataclass(frozen=True)
class SegmentDesign:
    """Types of output length grouped into L segments, Section 7.2.

    Attributes:
        output_lens: l'_k where the segments end, int64, shape (L,).
        rates: lambda'_k, arrivals per second that end in each segment, float64, shape (L,).
        thresholds: n_k, int64, shape (L,).
    """

    output_lens: NDArray[np.int64]
    rates: Floats
    thresholds: NDArray[np.int64]


@explained
def segment_design(
    rates: ArrayLike,
    prompt_len: float,
    num_segments: int,
    batch_time: BatchTimeModel,
    *,
    output_lens: ArrayLike | None = None,
    slack: float = 0.0,
    max_memory: float | None = None,
) -> SegmentDesign:
    """Group m output lengths into segments and return the least thresholds that satisfy eq. (16).

    Segments hold m / L types each; where L does not divide m, the first m mod L hold one more. The first
    line of (16) is met strictly, as (12) asks, with the exact number of tokens (see :func:`segment_memory`).

    Args:
        rates: lambda_j of each output length, 1/s, shape (m,), >= 0.
        prompt_len: l, tokens.
        num_segments: L, in 1 … m.
        batch_time: the batch-time model.
        output_lens: the m output lengths, ascending; None = 1, 2, …, m.
        slack: as ``max_memory``, see :func:`nested_thresholds`.
        max_memory: KV tokens.

    Raises:
        ConfigError: a segment has no arrivals, L is out of range, or no thresholds exist.
    """
    rate = rates = np.atleast_1d(check_numbers("rates", rates, least=0))
    check_number("num_segments", num_segments, least=1, most=len(rate), whole=True)
    lengths = np.arange(1, len(rate) + 1) if output_lens is None else ends_of(output_lens)
    same_length(rate, lengths)
    groups = np.array_split(np.arange(len(rate)), num_segments)
    total = np.array([rate[g].sum() for g in groups])
    ends = np.array([lengths[g[-1]] for g in groups], dtype=np.int64)
    if np.any(total == 0):
        empty = int(np.argmin(total)) + 1
        raise ConfigError(f"segment design: no requests end in segment {empty} of {num_segments}; take fewer")
    n = nested_thresholds(total, prompt_len, ends, batch_time, slack=slack, max_memory=max_memory)
    return SegmentDesign(ends, total, n)


@explained
def memory_by_segments(
    rates: ArrayLike,
    prompt_len: float,
    segments: Iterable[int],
    batch_time: BatchTimeModel,
    num_batches: float,
    delta: float,
    *,
    output_lens: ArrayLike | None = None,
    slack: float = 0.0,
    form: MemoryForm = "exact",
) -> list[MemoryBound]:
    """Return the terms of eq. (17) for each number of segments, the study of Figures 16–18.

    Args:
        rates: lambda_j of each output length, 1/s, shape (m,); see :func:`segment_design`, as for the rest.
        prompt_len: l, tokens; 62 in the paper's study.
        segments: the numbers L to try.
        batch_time: the batch-time model.
        num_batches: B; the paper's figures have T + 1.
        delta: probability of overflow allowed.
        output_lens: the m output lengths; None = 1, 2, …, m.
        slack: see :func:`nested_thresholds`.
        form: see :func:`segment_memory`.
    """
    bounds = []
    for count in segments:
        d = segment_design(rates, prompt_len, count, batch_time, output_lens=output_lens, slack=slack)
        bounds.append(
            memory_bound(d.thresholds, prompt_len, d.output_lens, d.rates, num_batches, delta, form=form)
        )
    return bounds
