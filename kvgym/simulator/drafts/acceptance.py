"""How often drafts are right: rates by position, of a drafter on a kind of text.

``right(i, t)`` is the number of drafts in a row that are right after t output tokens of request i. It is fixed by
the request and the position, not by the schedule: all depths and schedulers verify the same text, and a request that
was evicted finds the same drafts again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.simulator.drafts.tables import MAX_DEPTH
from kvgym.utils.checks import real_number

_STEPS = 60  # halvings of an interval of logits
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)


class Acceptance(NamedTuple):
    """Published or assumed acceptance of a drafter.

    Attributes:
        rates: share of right drafts at positions 1, 2, …, of those after right ones only; later ones have the last.
        spread: standard deviation between requests, on the logit of the rates.
        owns_kv: whether the drafter writes KV of its own, so that memory is reserved for its drafts.
        base_ms: milliseconds per batch for making the drafts.
        ms_per_pass: and per draft of the request with the most.
        us_per_draft: and microseconds per draft.
        ns_per_kv_token: and nanoseconds per token in the cache.
        source: where the figures are from.
    """

    rates: tuple[float, ...]
    spread: float = 0.0
    owns_kv: bool = True
    base_ms: float = 0.0
    ms_per_pass: float = 0.0
    us_per_draft: float = 0.0
    ns_per_kv_token: float = 0.0
    source: str = "assumed"


_BENCH = "profiles of SpecDecode-Bench (arXiv 2601.11580), Llama-3.1-8B on an H100"

PUBLISHED: dict[str, tuple[str, tuple[float, float, float, float], float]] = {
    "eagle-chat": ("ShareGPT", (1.66, 2.25, 2.48, 2.58), 0.45),
    "eagle-summaries": ("CNN summaries", (1.67, 2.33, 2.57, 2.69), 0.30),
    "eagle-math": ("GSM8K", (1.69, 2.38, 2.65, 2.75), 0.25),
    "eagle-code": ("InstructCoder", (1.68, 2.34, 2.62, 2.75), 0.80),
    "ngram-chat": ("ShareGPT", (1.24, 1.40, 1.45, 1.48), 0.45),
    "ngram-math": ("GSM8K", (1.11, 1.16, 1.18, 1.18), 0.45),
    "ngram-code": ("InstructCoder", (1.51, 2.03, 2.29, 2.45), 0.75),
}
"""Text, tokens per step at depths 1, 3, 5 and 7, and the spread between requests, of the profiles of SpecDecode-Bench.

The spread is the one of :class:`Acceptance` that fits the 10th and 90th percentile of requests at depth 8 best.
"""


def rates_from_steps(tokens: Sequence[float]) -> tuple[float, ...]:
    """Return rates with the given tokens per step at depths 1, 3, 5 …, equal ones for positions 2 and 3, 4 and 5 ….

    Rates at single positions of a text are lower: right drafts follow each other, and a step begins behind them.
    """
    rates = [tokens[0] - 1]
    for before, after in pairwise(tokens):
        pair = (after - before) / math.prod(rates)  # c + c²
        rates += 2 * [min(1.0, (math.sqrt(1 + 4 * pair) - 1) / 2)]
    return tuple(rates)


def _published(name: str) -> Acceptance:
    text, tokens, spread = PUBLISHED[name]
    rates = rates_from_steps(tokens)
    if name.startswith("ngram"):
        return Acceptance(rates, spread, owns_kv=False, source=f"n-grams, {text}: {_BENCH}")
    # 2.14 ms a step there, three passes of the drafter.
    return Acceptance(rates, spread, True, 0.0, 0.713, 0.84, 2.4, source=f"EAGLE, {text}: {_BENCH}")


ACCEPTANCES: dict[str, Acceptance] = {
    **{name: _published(name) for name in PUBLISHED},
    "eagle3-gpt-oss": Acceptance(
        (0.58, 0.53, 0.52, 0.50),
        ms_per_pass=0.9,
        source="EAGLE-3 on gpt-oss-120b, positions .58, .31, .16, .08 in all; the time of a pass is assumed",
    ),
    "mtp": Acceptance(
        (0.85, 0.75, 0.70, 0.65),
        ms_per_pass=0.9,
        source="first position as in the report on DeepSeek-V3 (.85 to .90); later ones and the time are assumed",
    ),
}
"""Acceptance by drafter and text."""


def find_acceptance(given: str | Sequence[float]) -> Acceptance:
    """Return an acceptance by its name, or of given rates.

    Raises:
        UnknownNameError: no acceptance of that name.
        ConfigError: rates that are no probabilities, or none.
    """
    if isinstance(given, Acceptance):
        return given
    if isinstance(given, str):
        if given not in ACCEPTANCES:
            raise UnknownNameError("acceptance", given, ACCEPTANCES)
        return ACCEPTANCES[given]
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MAX_DEPTH:
        raise ConfigError(
            f"acceptance = {shown(given)}; expected {', '.join(ACCEPTANCES)}, or 1 … {MAX_DEPTH} rates as in [0.7, 0.6]"
        )
    expected = "a probability, 0 … 1"
    rates = (
        real_number(rate, f"acceptance[{k}]", expected, lambda x: 0 <= x <= 1) for k, rate in enumerate(given)
    )
    return Acceptance(tuple(rates))


def rates_to(acceptance: Acceptance, depth: int) -> NDArray[np.float64]:
    """Return the rates of positions 1 … ``depth``, float64 (depth,)."""
    rates = acceptance.rates
    return np.array([rates[min(k, len(rates) - 1)] for k in range(depth)])


def expected_tokens(acceptance: Acceptance, depth: int) -> float:
    """Return the tokens of a step with ``depth`` drafts in the mean over the rates: 1 + c₁ + c₁ c₂ …."""
    return 1.0 + float(np.cumprod(rates_to(acceptance, depth)).sum())


def chances(acceptance: Acceptance, depth: int, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability of each request that its first 1, 2, … drafts are right, float64 (n, depth).

    Each request adds ``spread`` times its normal number to the logits. The logits are shifted such that the rates of
    all requests together are those of the acceptance: requests with good drafts weigh more at later positions.

    Args:
        acceptance: rates and spread.
        depth: number of positions.
        normal: standard normal numbers, float64 (n,).
    """
    weights, odds = _WEIGHTS / _WEIGHTS.sum(), np.ones((len(normal), depth))
    for k, rate in enumerate(rates_to(acceptance, depth)):
        own: NDArray[np.float64] | float = rate
        if 0 < rate < 1 and acceptance.spread > 0:
            low, high = -40.0, 40.0
            for _ in range(_STEPS):
                middle = (low + high) / 2
                mean = float((weights * _logistic(middle + acceptance.spread * _NODES)).sum() / weights.sum())
                low, high = (middle, high) if mean < rate else (low, middle)
            own = _logistic(low + acceptance.spread * normal)
            weights = weights * _logistic(low + acceptance.spread * _NODES)
        odds[:, k:] *= np.reshape(own, (-1, 1))
    return odds


def _logistic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-x))
    return result
