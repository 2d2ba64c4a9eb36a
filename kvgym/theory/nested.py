"""Nested WAIT: thresholds for output lengths unknown on arrival, and the memory that keeps them safe.

Source throughout: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling
with Memory Constraints" (the WAIT paper), Sections 5 and 7, Appendices C–E. Prompts have one length l and
outputs end at l'_1 < … < l'_m. Segment 1 covers stages 0 … l'_1, segment k > 1 stages l'_{k-1}+1 … l'_k;
n_k is the threshold of segment k, requests per stage. Arrays over segments have shape (m,), arrays over the
steps between them (m-1,), and p_k of the theorems (p_{k+1} in the appendices) leads from segment k to k+1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.checks import check_number, check_numbers
from kvgym.theory.fluid import ROUNDING, least_thresholds, load_time, whole_numbers
from kvgym.utils.arguments import explained

__all__ = [
    "nested_batch_time",
    "nested_condition",
    "nested_thresholds",
    "practical_nested_thresholds",
    "segment_memory",
    "survival_probabilities",
]

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


@explained
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
    ends, n = ends_of(output_lens), thresholds_of(thresholds)
    same_length(n, ends)
    check_number("prompt_len", prompt_len, least=0)
    width = np.diff(ends, prepend=0)
    if form == "exact":
        return float(n[0] * prompt_len + n @ (width * (prompt_len + (ends - width + 1 + ends) / 2)))
    if form == "theorem":
        return float(n @ (width * (prompt_len + np.cumsum(ends) / 2)))
    if form == "segment_design":
        mean_width = ends[-1] / len(ends)
        k = np.arange(1, len(ends) + 1)
        return float(n @ (prompt_len + k * mean_width / 2) * mean_width)
    raise ConfigError(f"unknown form of M^pi {shown(form)}; valid: exact, theorem, segment_design")


@explained
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
    n, ends = thresholds_of(thresholds), ends_of(output_lens)
    same_length(n, ends)
    check_number("prompt_len", prompt_len, least=0)
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


@explained
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
    n, tails = thresholds_of(thresholds), _tails(rates)
    same_length(n, tails)
    arrivals = tails[0] * nested_batch_time(n, prompt_len, output_lens, batch_time)
    return above(n[0], arrivals) and drifts_down(n, survival_probabilities(rates))


@explained
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
        slack: n_1 must exceed (1 + slack) times the arrivals and n_{k+1} exceed (1 + slack) p_k n_k, but
            n_{k+1} > n_k is not required: at n_{k+1} = n_k a segment never overflows. Larger slack means a
            larger M^pi and smaller queues between segments.
        max_memory: KV tokens that M^pi (exact) must not exceed; None = no limit.

    Raises:
        ConfigError: no thresholds exist within the limits.
    """
    check_number("slack", slack, least=0)
    total, p, ends = _tails(rates)[0], survival_probabilities(rates), ends_of(output_lens)
    same_length(ends, p, 1)
    return least_chain(lambda t: total * t, p, prompt_len, ends, batch_time, slack, max_memory, "(12)")


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
    tails, ends = _tails(rates), ends_of(output_lens)
    same_length(tails, ends)
    check_number("batch_limit", batch_limit, above=0)
    stages = np.diff(ends, prepend=0)
    stages[0] += 1
    if slack is None:
        share = tails * (batch_limit / (tails @ stages))
        return np.asarray(np.maximum(1, np.floor(share * (1 + ROUNDING))), dtype=np.int64)
    check_number("slack", slack, least=0)
    p = survival_probabilities(rates)
    low, high = 1, max(1, int(batch_limit // stages[0]))  # the batch does not shrink when n_1 grows
    while low < high:
        middle = (low + high + 1) // 2
        fits = chain(middle, p, slack) @ stages <= batch_limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return chain(low, p, slack).astype(np.int64)


def least_chain(
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
    check_numbers("p", p, least=0, most=1)
    check_number("prompt_len", prompt_len, least=0)
    check_number("slack", slack, least=0)

    def step(n: Floats) -> Floats:
        duration = nested_batch_time(n, prompt_len, ends, batch_time)
        return chain(least_above((1 + slack) * arrivals(duration)), p, slack)

    return least_thresholds(
        step,
        chain(1, p, slack),
        lambda n: segment_memory(n, prompt_len, ends),
        max_memory,
        condition=condition,
    )


def chain(first: float, p: Floats, slack: float) -> Floats:
    """Return the least thresholds from n_1 on, each above (1 + slack) p times the one before."""
    check_number("slack", slack)
    n = [float(check_number("first", first))]
    for q in check_numbers("p", p):
        wanted = min(least_above((1 + slack) * q * n[-1]), n[-1])  # more than n_k cannot arrive
        n.append(max(wanted, least_above(q * n[-1])))
    return np.array(n)


def least_above(x: float) -> float:
    """Return the least whole number above x, up to rounding."""
    return math.floor(check_number("x", x) * (1 + ROUNDING)) + 1.0


def above(n: float, x: float) -> bool:
    """Whether n > x by more than rounding."""
    return bool(check_number("n", n) > check_number("x", x) * (1 + ROUNDING))


def drifts_down(n: Floats, p: Floats) -> bool:
    """Whether every threshold is above the mean of what reaches it: the second line of (12)."""
    return all(above(b, a * q) for a, b, q in zip(n[:-1], n[1:], p, strict=True))


def _tails(rates: ArrayLike) -> Floats:
    """Return sum_{j>=k} lambda_j, shape (m,)."""
    x = check_numbers("rates", rates, above=0)
    if x.ndim != 1 or not len(x):
        raise ConfigError(f"rates: expected a list of numbers, one per segment, got {shown(rates)}")
    return np.cumsum(x[::-1])[::-1]


def ends_of(output_lens: ArrayLike) -> NDArray[np.int64]:
    """Return the ends l'_k of the segments, int64 (m,).

    Raises:
        ConfigError: they are not ascending whole numbers.
    """
    ends = whole_numbers("output_lens", output_lens)
    if np.any(np.diff(ends) <= 0):
        raise ConfigError(f"output_lens must ascend, got {shown(output_lens)}")
    return ends


def thresholds_of(thresholds: ArrayLike) -> Floats:
    """Return thresholds as float64 (m,).

    Raises:
        ConfigError: one is not a number ≥ 0.
    """
    n = check_numbers("thresholds", thresholds, least=0)
    if n.ndim != 1 or not len(n):
        raise ConfigError(f"thresholds: expected a list of numbers, one per segment, got {shown(thresholds)}")
    return n


def same_length(a: NDArray[np.generic], b: NDArray[np.generic], longer: int = 0) -> None:
    """Check that ``a`` has ``longer`` entries more than ``b``.

    Raises:
        ConfigError: it has not.
    """
    if len(a) != len(b) + longer:
        found = f"{len(a)} and {len(b) + longer}"
        raise ConfigError(f"expected as many output lengths, rates and thresholds, got {found}")
