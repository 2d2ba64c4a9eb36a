"""Flow control of admissions: overload, sufficient budgets, queue lengths and the rarity of overflows.

Source throughout: the paper of the "Flow-Controlled LLM Inference Policy" with known and with unknown output
lengths (its Algorithms 1 and 2; called FLOW here). Time runs in
slots; in each slot every active request generates one token, and at most b_k requests of class k (Algorithm 1) or
B_t requests (Algorithm 2) are activated. Symbols: l prompt length, o output length, M KV-cache tokens.

For classes the paper lets all requests of a class have the same lengths: :class:`ClassStatistics` then holds
exactly these. Where lengths vary within a class use :func:`mean_workload`, as the workload is not linear in
the output length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, shown
from kvgym.theory.checks import check_number, check_numbers
from kvgym.utils.arguments import explained
from kvgym.workloads.classes import ClassStatistics
from kvgym.workloads.table import RequestTable

__all__ = [
    "class_load",
    "drift_bound",
    "is_overloaded",
    "largest_budget_unknown",
    "largest_budgets",
    "least_unfinished",
    "load",
    "mean_latency_bound",
    "mean_queue_bound",
    "mean_workload",
    "overflow_bound",
    "peak_memory",
    "request_workload",
    "smallest_budgets",
    "sufficient",
    "sufficient_unknown",
    "unfinished_growth",
]


def request_workload(prompt_len: ArrayLike, output_len: ArrayLike) -> NDArray[Any]:
    """Return l·o + (o + o²)/2: KV tokens of a request summed over the o slots in which it is active.

    It holds l + 1, …, l + o tokens (Section 2.1; equation (1)).

    Args:
        prompt_len: tokens, any shape.
        output_len: tokens, a shape that broadcasts with it.

    Returns:
        float64 array of the broadcast shape; exact for whole lengths.
    """
    prompt, output = (
        check_numbers("prompt_len", prompt_len, least=0),
        check_numbers("output_len", output_len, least=0),
    )
    try:
        return np.asarray(prompt * output + (output + output * output) / 2)
    except ValueError as error:
        raise ConfigError(f"prompt_len and output_len: {error}") from None


@explained
def mean_workload(requests: RequestTable) -> float:
    """Return E[l·o + (o + o²)/2] over the requests of a table, as in (3) and (4)."""
    return float(np.mean(request_workload(requests.prompt_len, requests.output_len)))


@explained
def class_load(classes: Sequence[ClassStatistics], *, slot: float = 1.0) -> float:
    """Return the left side of (1): KV tokens that arrive per slot, summed over classes.

    Args:
        classes: the classes; their rates are per second.
        slot: seconds per slot.

    Raises:
        ConfigError: no classes, or a slot that is not positive.
    """
    return float(np.sum(_rates(classes, slot) * _workloads(classes)))


def load(rate: float, workload: float) -> float:
    """Return the left side of (3), λ E[l·o + (o + o²)/2]: KV tokens that arrive per slot.

    Args:
        rate: λ, arrivals per slot.
        workload: mean workload of a request, see :func:`mean_workload`.
    """
    return check_number("rate", rate, least=0) * check_number("workload", workload, least=0)


def is_overloaded(arriving: float, kv_capacity: float) -> bool:
    """Whether (1) or (3) holds: no policy can keep the system stable (Propositions 3.2 and 3.5).

    Args:
        arriving: KV tokens that arrive per slot, from :func:`class_load` or :func:`load`.
        kv_capacity: M, tokens.
    """
    return check_number("arriving", arriving, least=0) > check_number("kv_capacity", kv_capacity, least=0)


def unfinished_growth(arriving: float, kv_capacity: float, largest_workload: float) -> float:
    """Return the least mean growth of unfinished requests per slot under any policy; 0 if they need not grow.

    From (5): T slots hold MT, which is less than the work arriving in them by δT, δ = Σ λ_k w_k − M. A request takes at
    most max w of it, so E[Q(T)] ≥ δT / max w (Propositions 3.2 and 3.5).

    Args:
        arriving: KV tokens that arrive per slot, from :func:`class_load` or :func:`load`.
        kv_capacity: M, tokens.
        largest_workload: of a request, see :func:`request_workload`; with lengths up to C, (3C² + C) / 2.
    """
    check_number("arriving", arriving, least=0)
    check_number("kv_capacity", kv_capacity, least=0)
    check_number("largest_workload", largest_workload, above=0)
    return max(0.0, arriving - kv_capacity) / largest_workload


def least_unfinished(workloads: ArrayLike, kv_capacity: float, slots: int) -> int:
    """Return the least number of these requests unfinished after some slots, under any policy.

    Inequality (5) for known requests, without its last step: at best, the requests of least workload are finished, as
    long as their sum is within M times the slots.

    Args:
        workloads: of the requests that arrive in these slots, shape (n,), see :func:`request_workload`.
        kv_capacity: M, tokens.
        slots: T.
    """
    work = np.sort(check_numbers("workloads", workloads, least=0).ravel())
    room = check_number("kv_capacity", kv_capacity, least=0) * check_number("slots", slots, least=0)
    return len(work) - int(np.searchsorted(np.cumsum(work), room, side="right"))


def drift_bound(queue: float, rate: float, budget: float, *, variance: float | None = None) -> float:
    """Return the right side of (8), −ε Q + B / 2: no less than the drift of Q² / 2 from one slot to the next.

    Here ε = b − λ, and B = E[(n − b)²] = Var n + (λ − b)², the least constant that (8) allows for. The queue of a
    class moves as Q = (Q + n − b)⁺, with n arrivals in a slot.

    Args:
        queue: Q, waiting requests of a class at the end of a slot.
        rate: λ, arrivals per slot.
        budget: b, activations per slot.
        variance: of the arrivals in a slot; ``None`` = a Poisson number's, λ.
    """
    check_number("queue", queue, least=0)
    slack, spread = _drift(rate, budget, variance)
    return -slack * queue + spread / 2


def mean_queue_bound(rate: float, budget: float, *, variance: float | None = None) -> float:
    """Return B / 2ε, a bound on the mean queue of a class under Algorithm 1 if (2) holds and b > λ.

    In the steady state the drift of Q² / 2 is 0 on average, so that (8) gives ε E[Q] ≤ B / 2. The paper stops at
    "the queue is positive recurrent"; its inequality also bounds the length.

    Args:
        rate: λ, arrivals per slot.
        budget: b, activations per slot.
        variance: of the arrivals in a slot; ``None`` = a Poisson number's, λ.

    Raises:
        ConfigError: the budget is not above the rate, so that nothing bounds the queue.
    """
    slack, spread = _drift(rate, budget, variance)
    if slack <= 0:
        raise ConfigError(
            f"budget = {shown(budget)} must be above the rate, {shown(rate)}, for a bounded queue"
        )
    return spread / (2 * slack)


@explained
def mean_latency_bound(
    classes: Sequence[ClassStatistics], budgets: Sequence[int], *, slot: float = 1.0
) -> float:
    """Return a bound on the mean slots from arrival to completion under Algorithm 1 with Poisson arrivals.

    A request of class k waits E[Q_k] / λ_k slots (Little) and runs o_k; for E[Q_k] see :func:`mean_queue_bound`.
    It holds if no slot overflows, which (2) ensures.

    Args:
        classes: the classes; their rates are per second.
        budgets: b_k, activations per slot and class, each above its rate.
        slot: seconds per slot.

    Raises:
        ConfigError: the budgets do not match the classes, or one is not above its rate.
    """
    rates, most = _rates(classes, slot), _budgets(classes, budgets)
    queues = sum(mean_queue_bound(rate, b) for rate, b in zip(rates.tolist(), most.tolist(), strict=True))
    return float((queues + np.sum(rates * [c.output_len for c in classes])) / np.sum(rates))


@explained
def peak_memory(classes: Sequence[ClassStatistics], budgets: Sequence[int]) -> float:
    """Return the left side of (2), Σ b_k w_k: the most KV tokens in use under Algorithm 1, equation (6).

    It is reached when every budget is used up in as many successive slots as the longest output has tokens.

    Raises:
        ConfigError: the budgets do not match the classes or are not whole numbers >= 0.
    """
    return float(np.sum(_budgets(classes, budgets) * _workloads(classes)))


@explained
def sufficient(
    classes: Sequence[ClassStatistics], budgets: Sequence[int], kv_capacity: float, *, slot: float = 1.0
) -> bool:
    """Whether Theorem 3.3 proves flow control by class stable: (2) holds and every b_k > λ_k.

    (2) alone, ``peak_memory(classes, budgets) < kv_capacity``, already rules out overflow at any load. It is
    taken strictly as printed, although a peak of exactly M would fit as well.

    Args:
        classes: the classes; their rates are per second.
        budgets: b_k, activations per slot and class.
        kv_capacity: M, tokens.
        slot: seconds per slot.

    Raises:
        ConfigError: the budgets do not match the classes or are not whole numbers >= 0.
    """
    check_number("kv_capacity", kv_capacity, least=0)
    enough = np.all(_budgets(classes, budgets) > _rates(classes, slot))
    return bool(enough) and peak_memory(classes, budgets) < kv_capacity


def sufficient_unknown(
    budget: float, rate: float, workload: float, kv_capacity: float, epsilon: float
) -> bool:
    """Whether the premises of Theorem 3.6 hold: b > λ and (4), b E[l·o + (o + o²)/2] <= (1 − ε)M.

    Args:
        budget: b = E[B_t], activations per slot.
        rate: λ, arrivals per slot.
        workload: mean workload of a request.
        kv_capacity: M, tokens.
        epsilon: ε in (0, 1).

    Raises:
        ConfigError: ε is not in (0, 1).
    """
    for name, value in (
        ("budget", budget),
        ("rate", rate),
        ("workload", workload),
        ("kv_capacity", kv_capacity),
    ):
        check_number(name, value, least=0)
    check_number("epsilon", epsilon, above=0, below=1)
    return budget > rate and budget * workload <= (1 - epsilon) * kv_capacity


def overflow_bound(
    slots: int, kv_capacity: float, epsilon: float, largest_budget: int, longest: int
) -> float:
    """Return T·exp(−ε²M² / (2(A² + A)C³)): expected slots with overflow are fewer (Theorem 3.6, (9)).

    The theorem leaves the constant C(A, ε) open; its proof (Appendix A.4) gives ε² / (2(A² + A)C³). The proof
    draws the lengths of all activated requests afresh; after a first overflow that is no longer so (evicted
    requests are activated again, and long ones more often). What it proves without that is the same bound on
    the probability that any of the slots overflows. Unless εM is well above A·C^1.5 the bound is close to T
    and says nothing.

    Args:
        slots: T.
        kv_capacity: M, tokens.
        epsilon: slack ε of (4), in (0, 1).
        largest_budget: A, the most activations in a slot.
        longest: C, the largest prompt or output length, tokens.

    Raises:
        ConfigError: a figure is out of range.
    """
    check_number("epsilon", epsilon, above=0, below=1)
    for name, value in (
        ("slots", slots),
        ("kv_capacity", kv_capacity),
        ("largest_budget", largest_budget),
        ("longest", longest),
    ):
        check_number(name, value, above=0)
    spread = 2.0 * (largest_budget**2 + largest_budget) * float(longest) ** 3
    return slots * math.exp(-((epsilon * kv_capacity) ** 2) / spread)


@explained
def largest_budgets(classes: Sequence[ClassStatistics], kv_capacity: float) -> tuple[int, ...]:
    """Return the largest budgets, equal for all classes, that satisfy (2); zeros where not even ones do.

    Args:
        classes: the classes; their rates play no part.
        kv_capacity: M, tokens.
    """
    total = float(np.sum(_workloads(classes)))
    check_number("kv_capacity", kv_capacity, least=0)
    budget = max(0, math.ceil(kv_capacity / total) - 1)
    return (budget,) * len(classes)


@explained
def smallest_budgets(classes: Sequence[ClassStatistics], *, slot: float = 1.0) -> tuple[int, ...]:
    """Return the least whole budgets above the arrival rates, ⌊λ_k⌋ + 1.

    If these violate (2) then so do all others that Theorem 3.3 admits: the load may still be below M, but only
    because budgets are whole numbers per slot the theorem does not cover it.

    Args:
        classes: the classes; their rates are per second.
        slot: seconds per slot.
    """
    return tuple(math.floor(rate) + 1 for rate in _rates(classes, slot))


def largest_budget_unknown(workload: float, kv_capacity: float, epsilon: float) -> float:
    """Return the largest mean budget b = E[B_t] that satisfies (4), (1 − ε)M / E[l·o + (o + o²)/2].

    A constant budget is a whole number: round down. A random B_t attains any mean.

    Raises:
        ConfigError: ε is not in (0, 1), or a figure is not positive.
    """
    check_number("epsilon", epsilon, above=0, below=1)
    check_number("workload", workload, above=0)
    check_number("kv_capacity", kv_capacity, above=0)
    return (1 - epsilon) * kv_capacity / workload


def _drift(rate: float, budget: float, variance: float | None) -> tuple[float, float]:
    """Return ε and the least B of (8)."""
    check_number("rate", rate, least=0, most=1e150)  # they are squared
    check_number("budget", budget, least=0, most=1e150)
    spread = rate if variance is None else check_number("variance", variance, least=0)
    return budget - rate, spread + (rate - budget) ** 2


def _workloads(classes: Sequence[ClassStatistics]) -> NDArray[np.float64]:
    if not len(classes):
        raise ConfigError("there must be at least one class")
    return request_workload([c.prompt_len for c in classes], [c.output_len for c in classes])


def _rates(classes: Sequence[ClassStatistics], slot: float) -> NDArray[np.float64]:
    check_number("slot", slot, above=0)
    return np.array([c.rate for c in classes], dtype=np.float64) * slot


def _budgets(classes: Sequence[ClassStatistics], budgets: Sequence[int]) -> NDArray[np.int64]:
    raw = check_numbers("budgets", budgets, least=0, whole=True)
    if raw.shape != (len(classes),):
        raise ConfigError(f"{len(classes)} classes need as many budgets, got {shown(budgets)}")
    return raw.astype(np.int64)
