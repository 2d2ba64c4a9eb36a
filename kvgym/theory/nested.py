"""Nested WAIT: thresholds for output lengths unknown on arrival, and the memory that keeps them safe.

Source throughout: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling
with Memory Constraints" (the WAIT paper), Sections 5 and 7, Appendices C–E. Prompts have one length l and
outputs end at l'_1 < … < l'_m. Segment 1 covers stages 0 … l'_1, segment k > 1 stages l'_{k-1}+1 … l'_k;
n_k is the threshold of segment k, requests per stage. Arrays over segments have shape (m,), arrays over the
steps between them (m-1,), and p_k of the theorems (p_{k+1} in the appendices) leads from segment k to k+1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from kvgym.batch_time.base import BatchTimeModel
from kvgym.errors import ConfigError
from kvgym.theory.fluid import ROUNDING, least_thresholds, load_time, whole_numbers

MemoryForm: TypeAlias = Literal["exact", "theorem", "segment_design"]
"""How M^pi is computed, see :func:`segment_memory`."""

Floats: TypeAlias = NDArray[np.float64]


def survival_probabilities(rates: ArrayLike) -> Floats:
    """Return p_k = sum_{j>k} lambda_j / sum_{j>=k} lambda_j, float64, shape (m-1,).

    p_k is the share of the requests that reach the end of segment k and go on into segment k+1.

    Args:
        rates: lambda_j, arrivals per second of requests that end in segment j, shape (m,), > 0.
    """
    tails = _tails(rates)
    return tails[1:] / tails[:-1]


def segment_memory(
    thresholds: ArrayLike, prompt_len: float, output_lens: ArrayLike, form: MemoryForm = "exact"
) -> float:
    """Return M^pi, KV tokens of a batch with n_k requests at each stage of segment k.

    Args:
        thresholds: n_k, requests per stage, shape (m,).
        prompt_len: l, tokens.
        output_lens: l'_k, ascending whole numbers, shape (m,).
        form: ``"exact"`` sums l + s over the stages s of each segment, stage 0 (l tokens) included.
            ``"theorem"`` is eq. (13) as printed, with L'_k = l'_1 + … + l'_k for the mean of segment k: it
            drops stage 0, is half a token per stage short in segments 1 and 2, and counts too much from
            segment 3 on (unless l'_1 = 1). ``"segment_design"`` is Section 7.2's sum of
            n_k (l + k D / 2) D with the width D = l'_m / m of equal segments; k D is the segment's end, not
            twice its middle, so this counts too little.
    """
    ends, n = _ends(output_lens), _thresholds(thresholds)
    _same_length(n, ends)
    width = np.diff(ends, prepend=0)
    if form == "exact":
        return float(n[0] * prompt_len + n @ (width * (prompt_len + (ends - width + 1 + ends) / 2)))
    if form == "theorem":
        return float(n @ (width * (prompt_len + np.cumsum(ends) / 2)))
    if form == "segment_design":
        mean_width = ends[-1] / len(ends)
        k = np.arange(1, len(ends) + 1)
        return float(n @ (prompt_len + k * mean_width / 2) * mean_width)
    raise ConfigError(f"unknown form of M^pi {form!r}; valid: exact, theorem, segment_design")


def nested_batch_time(
    thresholds: ArrayLike, prompt_len: float, output_lens: ArrayLike, batch_time: BatchTimeModel
) -> float:
    """Return Delta T of eq. (12), seconds of a batch with n_k requests at each stage of segment k.

    With ``AffineBatchTime.from_wait(d0, d1)`` it is d0 + d1 * M^pi in the exact form.

    Args:
        thresholds: n_k, shape (m,).
        prompt_len: l, tokens; sums over a fractional mean are rounded up.
        output_lens: l'_k, ascending whole numbers, shape (m,).
        batch_time: the batch-time model.
    """
    n, ends = _thresholds(thresholds), _ends(output_lens)
    _same_length(n, ends)
    decodes = float(n @ np.diff(ends, prepend=0))
    prefill_tokens = float(n[0]) * prompt_len
    return load_time(
        batch_time,
        prefills=float(n[0]),
        prefill_tokens=prefill_tokens,
        prefill_squares=prefill_tokens * prompt_len,
        decodes=decodes,
        decode_context=segment_memory(n, prompt_len, ends) - prefill_tokens - decodes,
    )


def nested_condition(
    thresholds: ArrayLike,
    rates: ArrayLike,
    prompt_len: float,
    output_lens: ArrayLike,
    batch_time: BatchTimeModel,
) -> bool:
    """Return whether thresholds satisfy eq. (12): n_1 > Delta T * sum lambda and n_{k+1} / n_k > p_k.

    Both are strict. Thresholds proportional to the arrivals that reach each segment, as printed in
    Section 6.2 (15:14:12:8 and 66:43:…:1), have n_{k+1} / n_k = p_k and fail. Arguments as for
    :func:`nested_batch_time` and :func:`survival_probabilities`.
    """
    n, tails = _thresholds(thresholds), _tails(rates)
    _same_length(n, tails)
    arrivals = tails[0] * nested_batch_time(n, prompt_len, output_lens, batch_time)
    return _above(n[0], arrivals) and _drifts_down(n, survival_probabilities(rates))


def nested_thresholds(
    rates: ArrayLike,
    prompt_len: float,
    output_lens: ArrayLike,
    batch_time: BatchTimeModel,
    *,
    slack: float = 0.0,
    max_memory: float | None = None,
) -> NDArray[np.int64]:
    """Return the smallest whole thresholds that satisfy eq. (12), int64, shape (m,), non-increasing.

    For a given n_1 the least n_2 > p_1 n_1, then the least n_3 > p_2 n_2, … are the least possible, and they
    and Delta T do not fall when n_1 grows. The least n_1 above the arrivals of its own full batch therefore
    gives thresholds below every other solution, component by component.

    Args:
        rates: lambda_j, 1/s, shape (m,).
        prompt_len: l, tokens.
        output_lens: l'_k, ascending whole numbers, shape (m,).
        batch_time: the batch-time model.
        slack: n_1 must exceed (1 + slack) times the arrivals and n_{k+1} exceed (1 + slack) p_k n_k, but no
            n_{k+1} > n_k is asked for: at n_{k+1} = n_k a segment can never be overrun. Larger slack means a
            larger M^pi and smaller queues between segments.
        max_memory: KV tokens that M^pi (exact) must not exceed; None = no limit.

    Raises:
        ConfigError: no thresholds exist within the limits.
    """
    _check_slack(slack)
    total, p, ends = _tails(rates)[0], survival_probabilities(rates), _ends(output_lens)
    _same_length(ends, p, 1)
    return _least_chain(lambda t: total * t, p, prompt_len, ends, batch_time, slack, max_memory, "(12)")


def practical_nested_thresholds(
    rates: ArrayLike, output_lens: ArrayLike, batch_limit: float, *, slack: float | None = None
) -> NDArray[np.int64]:
    """Return thresholds proportional to the arrival rate that reaches each segment, int64, shape (m,).

    Source: Section 6.2, which prints their ratios for its two workloads. They leave no drift (see
    :func:`nested_condition`): the queues between segments then grow like the square root of time.

    Args:
        rates: lambda_j, shape (m,); only ratios matter.
        output_lens: l'_k, ascending whole numbers, shape (m,).
        batch_limit: requests over all stages. Thresholds are rounded down, but to no less than 1, so that a
            small limit with long outputs can be exceeded.
        slack: None = the printed rule. A number >= 0 makes each step strict instead: n_{k+1} is the least
            whole number above (1 + slack) p_k n_k, at most n_k, and n_1 the largest with which the batch
            stays within the limit.
    """
    tails, ends = _tails(rates), _ends(output_lens)
    _same_length(tails, ends)
    if not (math.isfinite(batch_limit) and batch_limit > 0):
        raise ConfigError(f"batch_limit must be a number > 0, got {batch_limit!r}")
    stages = np.diff(ends, prepend=0)
    stages[0] += 1
    if slack is None:
        share = tails * (batch_limit / (tails @ stages))
        return np.asarray(np.maximum(1, np.floor(share * (1 + ROUNDING))), dtype=np.int64)
    _check_slack(slack)
    p = survival_probabilities(rates)
    low, high = 1, max(1, int(batch_limit // stages[0]))  # the batch does not shrink when n_1 grows
    while low < high:
        middle = (low + high + 1) // 2
        fits = _chain(middle, p, slack) @ stages <= batch_limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return _chain(low, p, slack).astype(np.int64)


def theta(n_prev: float, n_k: float, p_k: float) -> float:
    """Return the positive solution of e^(-theta n_k) (1 - p + p e^theta)^n_prev = 1, eq. (20).

    Lemma 8 has n_prev > n_k > n_prev p. With n_k >= n_prev no more requests enter the segment than it
    serves, its queue never exceeds n_k, and theta is infinite.

    Args:
        n_prev: threshold of the segment before, n_{k-1}.
        n_k: threshold of the segment.
        p_k: probability of going on from one to the other (p_k of the appendix), in [0, 1].

    Raises:
        ConfigError: the drift n_k - n_prev p is not positive, so there is no solution.
    """
    if not (n_prev > 0 and n_k > 0 and 0 <= p_k <= 1):
        raise ConfigError(f"theta needs positive thresholds and p in [0, 1], got {(n_prev, n_k, p_k)}")
    if n_k >= n_prev or p_k == 0:
        return math.inf
    if not _above(n_k, n_prev * p_k):
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
    """
    return 8 * (n_k - n_prev * p_k) / n_prev


@dataclass(frozen=True)
class MemoryBound:
    """The memory that is enough with probability 1 - delta, eq. (14) and (17), in KV tokens.

    Attributes:
        batch: M^pi, the full batch.
        queues: sum_{k>=2} (l + l'_{k-1}) n_k, requests that wait between segments for the threshold.
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
    n, ends = _thresholds(thresholds), _ends(output_lens)
    p = survival_probabilities(rates) if survival is None else np.asarray(survival, dtype=np.float64)
    _same_length(n, ends)
    _same_length(n, p, 1)
    if not (num_batches >= 1 and 0 < delta < 1):
        raise ConfigError(
            f"memory bound: needs num_batches >= 1 and 0 < delta < 1, got {num_batches}, {delta}"
        )
    held = prompt_len + ends[:-1]
    pairs = zip(n[:-1], n[1:], p, strict=True)
    thetas = np.array([theta(a, b, q) if b >= a or _above(b, a * q) else 0.0 for a, b, q in pairs])
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
    rate = np.asarray(rates, dtype=np.float64)
    lengths = np.arange(1, len(rate) + 1) if output_lens is None else _ends(output_lens)
    _same_length(rate, lengths)
    if not np.all(np.isfinite(rate)) or np.any(rate < 0) or not 1 <= num_segments <= len(rate):
        raise ConfigError(
            f"segment design: needs rates >= 0 and 1 to {len(rate)} segments, not {num_segments}"
        )
    groups = np.array_split(np.arange(len(rate)), num_segments)
    total = np.array([rate[g].sum() for g in groups])
    ends = np.array([lengths[g[-1]] for g in groups], dtype=np.int64)
    if np.any(total == 0):
        empty = int(np.argmin(total)) + 1
        raise ConfigError(f"segment design: no requests end in segment {empty} of {num_segments}; take fewer")
    n = nested_thresholds(total, prompt_len, ends, batch_time, slack=slack, max_memory=max_memory)
    return SegmentDesign(ends, total, n)


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


def worst_arrivals(times: ArrayLike, rates: ArrayLike, window: float) -> float:
    """Return the most requests expected in any interval of the given length, the supremum in eq. (15).

    The accumulated rate of a sliding window is piecewise linear in its start, so it is largest where an
    end of the window lies on a change of rate.

    Args:
        times: instants from which each column of ``rates`` holds, ascending seconds, shape (t,); the last
            one holds for ever.
        rates: lambda_j on each piece, 1/s, shape (m, t), >= 0.
        window: seconds, >= 0.
    """
    start, rate = _pieces(times, rates)
    total = rate.sum(axis=0)
    accumulated = np.concatenate([[0.0], np.cumsum(total[:-1] * np.diff(start))])

    def until(t: Floats) -> Floats:
        piece = np.searchsorted(start, t, side="right") - 1
        return np.asarray(accumulated[piece] + total[piece] * (t - start[piece]))

    begins = np.concatenate([start, np.maximum(start[0], start - window)])
    return float(np.max(until(begins + window) - until(begins)))


def worst_survival(times: ArrayLike, rates: ArrayLike) -> Floats:
    """Return p*_k = sup p_k over intervals, float64, shape (m-1,); arguments as :func:`worst_arrivals`.

    p_k of an interval is a mean of its values at the instants within, weighted by arrivals, so that the
    supremum is the largest value of any piece on which requests reach segment k at all.
    """
    _, rate = _pieces(times, rates)
    tails = np.cumsum(rate[::-1], axis=0)[::-1]
    p = np.divide(tails[1:], tails[:-1], out=np.zeros_like(tails[1:]), where=tails[:-1] > 0)
    return np.asarray(p.max(axis=1))


def time_varying_condition(
    thresholds: ArrayLike, times: ArrayLike, rates: ArrayLike, full_batch_time: float
) -> bool:
    """Return whether thresholds, shape (m,), satisfy eq. (15) for every interval within a full batch's time.

    ``full_batch_time`` is Delta T(n), seconds, as from :func:`nested_batch_time`; the other arguments are
    those of :func:`worst_arrivals`.
    """
    n, p = _thresholds(thresholds), worst_survival(times, rates)
    _same_length(n, p, 1)
    return _above(n[0], worst_arrivals(times, rates, full_batch_time)) and _drifts_down(n, p)


def time_varying_thresholds(
    times: ArrayLike,
    rates: ArrayLike,
    prompt_len: float,
    output_lens: ArrayLike,
    batch_time: BatchTimeModel,
    *,
    slack: float = 0.0,
    max_memory: float | None = None,
) -> NDArray[np.int64]:
    """Return the smallest whole thresholds that satisfy eq. (15), int64, shape (m,).

    They are those of :func:`nested_thresholds` with the most arrivals of any interval and the worst case
    p*_k, Appendix D. Where on some piece nobody leaves in segment k, p*_k = 1 and n_{k+1} > n_k.

    Args and errors: as :func:`worst_arrivals` and :func:`nested_thresholds`.
    """
    _check_slack(slack)
    p, ends = worst_survival(times, rates), _ends(output_lens)
    _same_length(ends, p, 1)
    return _least_chain(
        lambda t: worst_arrivals(times, rates, t), p, prompt_len, ends, batch_time, slack, max_memory, "(15)"
    )


def _least_chain(
    arrivals: Callable[[float], float],
    p: Floats,
    prompt_len: float,
    ends: NDArray[np.int64],
    batch_time: BatchTimeModel,
    slack: float,
    max_memory: float | None,
    condition: str,
) -> NDArray[np.int64]:
    """Return the chain with the least n_1 above the arrivals of its own full batch."""

    def step(n: Floats) -> Floats:
        duration = nested_batch_time(n, prompt_len, ends, batch_time)
        return _chain(_least_above((1 + slack) * arrivals(duration)), p, slack)

    return least_thresholds(
        step,
        _chain(1, p, slack),
        lambda n: segment_memory(n, prompt_len, ends),
        max_memory,
        condition=condition,
    )


def _chain(first: float, p: Floats, slack: float) -> Floats:
    """Return the least thresholds from n_1 on, each above (1 + slack) p times the one before."""
    n = [float(first)]
    for q in p:
        wanted = min(_least_above((1 + slack) * q * n[-1]), n[-1])  # more than n_k cannot arrive
        n.append(max(wanted, _least_above(q * n[-1])))
    return np.array(n)


def _least_above(x: float) -> float:
    return math.floor(x * (1 + ROUNDING)) + 1.0


def _above(n: float, x: float) -> bool:
    return bool(n > x * (1 + ROUNDING))


def _drifts_down(n: Floats, p: Floats) -> bool:
    return all(_above(b, a * q) for a, b, q in zip(n[:-1], n[1:], p, strict=True))


def _tails(rates: ArrayLike) -> Floats:
    """Return sum_{j>=k} lambda_j, shape (m,)."""
    x = np.asarray(rates, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.all(np.isfinite(x)) or np.any(x <= 0):
        raise ConfigError(f"rates must be positive numbers, one per segment, got {rates!r}")
    return np.cumsum(x[::-1])[::-1]


def _ends(output_lens: ArrayLike) -> NDArray[np.int64]:
    ends = whole_numbers("output_lens", output_lens)
    if np.any(np.diff(ends) <= 0):
        raise ConfigError(f"output_lens must ascend, got {output_lens!r}")
    return ends


def _thresholds(thresholds: ArrayLike) -> Floats:
    n = np.asarray(thresholds, dtype=np.float64)
    if n.ndim != 1 or not len(n) or not np.all(np.isfinite(n)) or np.any(n < 0):
        raise ConfigError(f"thresholds must be numbers >= 0, one per segment, got {thresholds!r}")
    return n


def _pieces(times: ArrayLike, rates: ArrayLike) -> tuple[Floats, Floats]:
    start, rate = np.asarray(times, dtype=np.float64), np.asarray(rates, dtype=np.float64)
    if start.ndim != 1 or not len(start) or np.any(np.diff(start) <= 0) or not np.all(np.isfinite(start)):
        raise ConfigError("times must be ascending numbers")
    if rate.ndim != 2 or rate.shape[1] != len(start) or not np.all(np.isfinite(rate)) or np.any(rate < 0):
        raise ConfigError(f"rates must be numbers >= 0 of shape (types, {len(start)}), got {rates!r}")
    return start, rate


def _same_length(a: NDArray[np.generic], b: NDArray[np.generic], longer: int = 0) -> None:
    if len(a) != len(b) + longer:
        found = f"{len(a)} and {len(b) + longer}"
        raise ConfigError(f"expected as many output lengths, rates and thresholds, got {found}")


def _check_slack(slack: float) -> None:
    if not (math.isfinite(slack) and slack >= 0):
        raise ConfigError(f"slack must be a number >= 0, got {slack!r}")
