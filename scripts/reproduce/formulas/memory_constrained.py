"""Bounds on the distance of MC-SF from the optimum for simultaneous arrivals: its constant competitive ratio.

Source throughout: P. Jaillet, J. Jiang, K. Mellou, M. Molinaro, C. Podimata, Z. Zhou, "Online Scheduling for LLM
Inference with KV Cache Constraints", Section 4 (lengths known exactly) and Appendix B.3 (lengths predicted too
high). Time runs in slots; a request of prompt s and output o occupies s + 1, …, s + o tokens in the o slots after it
starts, vol_o = s·o + o(o + 1)/2 in total (:func:`kvgym.theory.flow.request_workload`). Latencies are totals over the
requests, in slots.

The setting of Theorem 4.3, which all functions here assume: every request arrives at time 0 with the same prompt, its
true output o and its prediction õ satisfy o ≤ õ ≤ α·o, and M ≥ 2·max(s + õ). n_o is the number of requests that are
*predicted* to have output o. Groups take predictions by powers of two: group ℓ has 2^ℓ ≤ õ < 2^(ℓ+1).

All bounds hold; some of the printed proofs need a repair:

- *Lemma 4.4* drops the term Σ|U_ℓ|·ō_ℓ between its first and its second display, which would make the second constant
  26. It had rounded 5ō + 1 up to 6ō before; without that rounding 22 suffices, so 24 holds.
- *Lemmas 4.5 and B.1* use M ≥ 2(s + ō_ℓ), where ō_ℓ = 2^(ℓ+1) − 1 may be longer than any request. With the longest
  prediction of the group in its place the proof goes through as it stands.
- *Lemma B.1* is printed with α², its proof ends with α³. The step that costs the third α is wrong: it says that while
  requests of a group wait, the *real* memory in use peaks above (M − s − ō)/α in every ō slots. Real peaks of different
  requests need not coincide: with s = 1, M = 448, five requests of each length 6 … 15 predicted exactly and then 124
  of length 14 predicted as 31 (α = 31/14), slots 32 … 62 peak at 180 < 187.9. The step is not needed: what blocks the
  next request is Σ(s + õ) > M − (s + ō) over active ones, so at least (M − (s + ō))/(s + ō) are active, and each takes
  at least vol_ō/(4α²) of memory within ō slots before and after. So α² is right in B.1, and suffices in B.3.
- *Lemma B.4* says on its way that a true volume is at least vol_õ/α; for s = 1, õ = 4, o = 2 it is 5 < 14/2. It is at
  least vol_õ/α², which is all that is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, shown
from kvgym.theory.checks import check_number, check_numbers
from kvgym.theory.flow import request_workload
from kvgym.utils.arguments import explained

__all__ = [
    "Span",
    "competitive_ratio_at_most",
    "group_of",
    "latency_at_most",
    "meets_theorem",
    "optimum_at_least",
    "ordered_volume",
    "spans_at_most",
]

VOLUME_FACTOR = 1536
"""Factor of the first term of Lemma 4.4."""

LENGTH_FACTOR = 24
"""Factor of its second term."""

SPAN_FACTOR = 192
"""Factor of the first term of Lemma 4.5."""

OPTIMUM_SHARE = 6
"""By Lemma 4.7, this many times the optimum is at least the two sums together."""


class Span(NamedTuple):
    """Upper bound on the time MC-SF is busy with a group of requests.

    Attributes:
        shortest: 2^ℓ, tokens; the group is predicted to have outputs from here …
        longest: … to 2^(ℓ+1) − 1.
        requests: how many are in the group.
        slots: last slot in which one of them is processed, minus the first such slot, at most.
    """

    shortest: int
    longest: int
    requests: int
    slots: float


def meets_theorem(prompt_len: int, predicted_len: ArrayLike, kv_capacity: int) -> bool:
    """Whether M ≥ 2·max(s + õ), the condition of Theorem 4.3.

    Args:
        prompt_len: s, of every request, tokens.
        predicted_len: õ of each request, whole tokens, shape (n,).
        kv_capacity: M, tokens.
    """
    predicted = _lengths(prompt_len, predicted_len)
    check_number("kv_capacity", kv_capacity, least=1)
    return bool(kv_capacity >= 2 * (prompt_len + predicted.max(initial=0)))


def ordered_volume(prompt_len: int, predicted_len: ArrayLike) -> float:
    """Return Σ_o n_o Σ_{o' ≤ o} n_{o'} vol_{o'}, a term of both bounds; tokens × slots.

    It is the volume served before the requests in order of length, summed over them, with ties counted in full.

    Args:
        prompt_len: s, of every request, tokens.
        predicted_len: õ of each request, whole tokens, shape (n,).
    """
    lengths, counts = np.unique(_lengths(prompt_len, predicted_len), return_counts=True)
    return float(np.sum(counts * np.cumsum(counts * request_workload(prompt_len, lengths))))


@explained
def latency_at_most(
    prompt_len: int, predicted_len: ArrayLike, kv_capacity: int, *, alpha: float = 1.0, exponent: int = 3
) -> float:
    """Return an upper bound on MC-SF's total latency, Lemmas 4.4 (α = 1) and B.3.

    1536·α³/M · Σ_o n_o Σ_{o' ≤ o} n_{o'} vol_{o'} + 24·Σ_o n_o·o.

    Args:
        prompt_len: s, of every request, tokens.
        predicted_len: õ of each request, whole tokens, shape (n,).
        kv_capacity: M, tokens.
        alpha: no prediction is more than this many times the truth, ≥ 1.
        exponent: of α in the first term: 3 as printed, 2 as suffices (see above).

    Raises:
        ConfigError: M < 2·max(s + õ), or an argument is out of its range.
    """
    predicted = _within_theorem(prompt_len, predicted_len, kv_capacity, alpha, exponent)
    first = VOLUME_FACTOR * alpha**exponent / kv_capacity * ordered_volume(prompt_len, predicted)
    return first + LENGTH_FACTOR * float(predicted.sum())


def spans_at_most(
    prompt_len: int, predicted_len: ArrayLike, kv_capacity: int, *, alpha: float = 1.0, exponent: int = 2
) -> list[Span]:
    """Return upper bounds on the time MC-SF is busy with each group, Lemmas 4.5 (α = 1) and B.1; shortest group first.

    192·α²/M · Σ_{o in the group} n_o vol_o + 5·(2^(ℓ+1) − 1).

    Args:
        prompt_len: s, of every request, tokens.
        predicted_len: õ of each request, whole tokens, shape (n,).
        kv_capacity: M, tokens.
        alpha: no prediction is more than this many times the truth, ≥ 1.
        exponent: of α: 2 as the lemma is printed, 3 as its proof ends.

    Raises:
        ConfigError: M < 2·max(s + õ), or an argument is out of its range.
    """
    predicted = _within_theorem(prompt_len, predicted_len, kv_capacity, alpha, exponent)
    volumes = request_workload(prompt_len, predicted)
    group = group_of(predicted)
    found = []
    for place in np.unique(group).tolist():
        mine, longest = group == place, 2 ** (place + 1) - 1
        slots = SPAN_FACTOR * alpha**exponent / kv_capacity * float(volumes[mine].sum()) + 5 * longest
        found.append(Span(2**place, longest, int(mine.sum()), slots))
    return found


def group_of(predicted_len: ArrayLike) -> NDArray[np.int64]:
    """Return ℓ = ⌊log2 õ⌋ of each request, shape (n,)."""
    return np.frexp(_lengths(1, predicted_len))[1].astype(np.int64) - 1


def optimum_at_least(
    prompt_len: int, predicted_len: ArrayLike, kv_capacity: int, *, alpha: float = 1.0
) -> float:
    """Return a lower bound on the total latency of any schedule, Lemmas 4.7 (α = 1) and B.4.

    (1/6)·(1/(M·α²) · Σ_o n_o Σ_{o' ≤ o} n_{o'} vol_{o'} + 1/α · Σ_o n_o·o). It needs no condition on M.

    Args:
        prompt_len: s, of every request, tokens.
        predicted_len: õ of each request, whole tokens, shape (n,).
        kv_capacity: M, tokens.
        alpha: no prediction is more than this many times the truth, ≥ 1.
    """
    predicted = _lengths(prompt_len, predicted_len)
    check_number("kv_capacity", kv_capacity, least=1)
    check_number("alpha", alpha, least=1)
    volume = ordered_volume(prompt_len, predicted) / (kv_capacity * alpha**2)
    return (volume + float(predicted.sum()) / alpha) / OPTIMUM_SHARE


def competitive_ratio_at_most(alpha: float = 1.0, *, exponent: int = 3) -> float:
    """Return the constant of Theorem 4.3: MC-SF's total latency over the optimum, at most.

    Term by term, 1536·α³ against 1/(6α²) and 24 against 1/(6α): 9,216·α⁵ and 144·α, and the first is larger. The
    paper only says that there is such a constant, O(α⁵).

    Args:
        alpha: no prediction is more than this many times the truth, ≥ 1.
        exponent: of α in :func:`latency_at_most`.
    """
    check_number("alpha", alpha, least=1)
    _check_exponent(exponent)
    return float(OPTIMUM_SHARE * max(VOLUME_FACTOR * alpha ** (exponent + 2), LENGTH_FACTOR * alpha))


def _lengths(prompt_len: int, predicted_len: ArrayLike) -> NDArray[np.float64]:
    check_number("prompt_len", prompt_len, least=0, whole=True)
    found = check_numbers("predicted_len", predicted_len, least=1, whole=True)
    if found.ndim != 1:
        raise ConfigError(
            f"predicted_len has shape {found.shape}; expected one length for each request, (n,)"
        )
    return found


def _within_theorem(
    prompt_len: int, predicted_len: ArrayLike, kv_capacity: int, alpha: float, exponent: int
) -> NDArray[np.float64]:
    predicted = _lengths(prompt_len, predicted_len)
    check_number("alpha", alpha, least=1)
    _check_exponent(exponent)
    if not meets_theorem(prompt_len, predicted, kv_capacity):
        longest = int(predicted.max())
        raise ConfigError(
            f"kv_capacity {kv_capacity} is less than twice prompt + longest prediction, "
            f"2 × ({prompt_len} + {longest}); the bound is proven from {2 * (prompt_len + longest)} on"
        )
    return predicted


def _check_exponent(exponent: int) -> None:
    if not isinstance(exponent, int | np.integer) or exponent not in (2, 3):
        raise ConfigError(f"exponent must be 2 or 3, got {shown(exponent)}")
