"""The fluid model of a worker, its equilibrium, and thresholds for types known on arrival.

Source throughout: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling
with Memory Constraints" (the WAIT paper). A request of type j with prompt length l_j and output length l'_j
passes stages 0 (prefill, holding l_j tokens) and 1 … l'_j (stage s holds l_j + s tokens), one per iteration.
Symbols: lambda_j arrival rate, d0 + d1 * (KV tokens of the batch) duration of an iteration, eq. (1).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import poisson

from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.checks import check_number, check_numbers
from kvgym.utils.arguments import explained
from kvgym.workloads.classes import ClassStatistics

__all__ = [
    "Equilibrium",
    "batch_memory",
    "class_load",
    "fcfs_overflow_probability",
    "fluid_equilibrium",
    "full_batch_time",
    "is_unstable",
    "load_time",
    "practical_thresholds",
    "safe_arrivals",
    "stability_load",
    "wait_condition",
    "wait_margin",
    "wait_thresholds",
]

ROUNDING = 1e-12
"""Relative difference below which two computed numbers of requests count as equal."""

MAX_TOKENS = 2.0**40
"""KV tokens of a batch beyond which a search for thresholds gives up: far above any device's memory."""

MAX_ROUNDS = 20_000
"""Rounds after which a search for thresholds gives up."""

_MAX_COMBINATIONS = 1_000_000


@explained
def class_load(c: ClassStatistics) -> float:
    """Return (l'+1)(l + l'/2): KV tokens that one request puts into batches, summed over its iterations.

    The l'+1 iterations are the prefill, which counts l tokens, and the decodes s = 1 … l', which count l + s.
    """
    return (c.output_len + 1) * (c.prompt_len + c.output_len / 2)


@explained
def stability_load(classes: Sequence[ClassStatistics], d1: float) -> float:
    """Return d1 * sum_j lambda_j (l'_j + 1)(l_j + l'_j/2), the share of time spent on KV tokens.

    Source: Proposition 1, which has one type; the sum over types is where the equilibrium (8) ceases to exist.

    Args:
        classes: the request types, at least one.
        d1: seconds per KV token of a batch, >= 0.
    """
    check_number("d1", d1, least=0)
    return d1 * sum(c.rate * class_load(c) for c in _some(classes))


@explained
def is_unstable(classes: Sequence[ClassStatistics], d1: float) -> bool:
    """Return whether latency grows without bound under every policy: load >= 1, Proposition 1."""
    return stability_load(classes, d1) >= 1.0


@dataclass(frozen=True)
class Equilibrium:
    """The state in which arrivals match completions, with requests spread evenly over their stages.

    Attributes:
        num_active: n*_j of eq. (7), requests of each type over all stages, float64, shape (m,).
        per_stage: n*_j / (l'_j + 1), requests at each stage = arrivals per iteration, float64, shape (m,).
            (Section 3.2 closes with n*_j / (l_j + 1); the number of stages is l'_j + 1.)
        memory: M* of eq. (8), KV tokens.
        iteration_time: eq. (9), seconds.
        throughput: eq. (10), output tokens per second.
    """

    num_active: NDArray[np.float64]
    per_stage: NDArray[np.float64]
    memory: float
    iteration_time: float
    throughput: float


@explained
def fluid_equilibrium(classes: Sequence[ClassStatistics], d0: float, d1: float) -> Equilibrium:
    """Return the fluid equilibrium, eq. (7)–(10); with one type, eq. (4)–(6).

    Args:
        classes: the m request types.
        d0: seconds per batch, > 0.
        d1: seconds per KV token of a batch, >= 0.

    Raises:
        ConfigError: the load is at or above the stability limit, or a coefficient is out of range.
    """
    check_number("d0", d0, above=0)  # without a fixed cost the equilibrium is empty
    load = stability_load(classes, d1)
    if load >= 1:
        raise ConfigError(
            f"fluid equilibrium: the load is {load:.6g}; an equilibrium exists only below 1 (Proposition 1)"
        )
    iteration_time = d0 / (1 - load)
    rate, output_len = _rates(classes), np.array([c.output_len for c in classes])
    per_stage = iteration_time * rate
    return Equilibrium(
        num_active=per_stage * (output_len + 1),
        per_stage=per_stage,
        memory=batch_memory(classes, per_stage),
        iteration_time=iteration_time,
        throughput=float(rate @ output_len),
    )


@explained
def batch_memory(classes: Sequence[ClassStatistics], thresholds: ArrayLike) -> float:
    """Return M^pi of eq. (11), KV tokens of a batch with n_j requests of type j at each of its stages.

    Args:
        classes: the m request types.
        thresholds: n_j, requests per stage (not in total, as n*_j of eq. (7)), shape (m,), >= 0.
    """
    n = _per_type(classes, thresholds)
    return float(n @ [class_load(c) for c in classes])


@explained
def load_time(
    batch_time: BatchTimeModel,
    *,
    prefills: float,
    prefill_tokens: float,
    prefill_squares: float,
    decodes: float,
    decode_context: float,
) -> float:
    """Return the seconds of a batch with fractional sums, as mean lengths give.

    Batch-time models count whole requests and tokens; each sum is rounded up, so that a condition on the
    duration is never met by rounding alone.

    Args:
        batch_time: the model.
        prefills: requests in prefill, all with their whole prompt; their tokens and squared lengths follow.
        prefill_tokens: sum of l.
        prefill_squares: sum of l * l.
        decodes: requests that decode.
        decode_context: tokens they find in the cache.
    """
    check_number("prefills", prefills)
    check_number("decodes", decodes)
    load = {
        "num_prefills": prefills,
        "prefill_tokens": prefill_tokens,
        "prefill_squares": prefill_squares,
        "num_decodes": decodes,
        "decode_context": decode_context,
    }
    whole = {name: int(at_least(max(0.0, check_number(name, value)))) for name, value in load.items()}
    return float(batch_time(prefill_context=0, prefill_products=0, **whole))


@explained
def full_batch_time(
    classes: Sequence[ClassStatistics], thresholds: ArrayLike, batch_time: BatchTimeModel
) -> float:
    """Return Delta T of eq. (11), seconds of a batch with n_j requests of type j at each stage 0 … l'_j.

    A decode at stage s finds l + s - 1 tokens in the cache and writes one, so with
    ``AffineBatchTime.from_wait(d0, d1)`` the duration is d0 + d1 * M^pi.

    Args:
        classes: the m request types; sums over fractional mean lengths are rounded up, see :func:`load_time`.
        thresholds: n_j, requests per stage, shape (m,), >= 0.
        batch_time: any batch-time model; eq. (1) is one of them, Section 2.3 suggests others.
    """
    n = _per_type(classes, thresholds)
    prompt = np.array([c.prompt_len for c in classes])
    output = np.array([c.output_len for c in classes])
    return load_time(
        batch_time,
        prefills=float(n.sum()),
        prefill_tokens=float(n @ prompt),
        prefill_squares=float(n @ prompt**2),
        decodes=float(n @ output),
        decode_context=float(n @ (output * prompt + output * (output - 1) / 2)),
    )


@explained
def wait_margin(
    classes: Sequence[ClassStatistics], thresholds: ArrayLike, batch_time: BatchTimeModel
) -> NDArray[np.float64]:
    """Return n_j / lambda_j - Delta T in seconds, shape (m,): how far eq. (11) is from being violated.

    Theorem 1 bounds latency by a constant for types with a positive margin, and by O(sqrt(T)) at zero.
    """
    n = _per_type(classes, thresholds)
    return np.asarray(n / _rates(classes) - full_batch_time(classes, n, batch_time))


@explained
def wait_condition(
    classes: Sequence[ClassStatistics], thresholds: ArrayLike, batch_time: BatchTimeModel
) -> bool:
    """Return whether thresholds n_j, shape (m,), satisfy eq. (11): Delta T(n) <= n_j / lambda_j for all j."""
    n = _per_type(classes, thresholds)
    arrivals = _rates(classes) * full_batch_time(classes, n, batch_time)
    return bool(np.all(n >= arrivals * (1 - ROUNDING)))


@explained
def wait_thresholds(
    classes: Sequence[ClassStatistics],
    batch_time: BatchTimeModel,
    *,
    slack: float = 0.0,
    max_memory: float | None = None,
) -> NDArray[np.int64]:
    """Return the smallest whole thresholds that satisfy eq. (11), int64, shape (m,).

    They are the least fixed point of n_j = max(1, ceil((1 + slack) lambda_j Delta T(n))). Batch times do not
    fall when the load grows, so the iteration from n = 1 rises to it, and every vector that satisfies (11)
    with this slack is at least as large in each component.

    Args:
        classes: the m request types.
        batch_time: the batch-time model.
        slack: share by which thresholds must exceed the arrivals of a full batch; > 0 gives Theorem 1's strict
            inequality, hence bounded latency.
        max_memory: KV tokens that M^pi must not exceed; None = no limit.

    Raises:
        ConfigError: the thresholds of the iteration, below which no solution lies, have passed
            ``max_memory`` or :data:`MAX_TOKENS`, or still grow after :data:`MAX_ROUNDS` rounds.
    """
    rate = (1 + check_number("slack", slack, least=0)) * _rates(classes)

    def step(n: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(1.0, at_least(rate * full_batch_time(classes, n, batch_time)))

    return least_thresholds(
        step, np.ones(len(classes)), lambda n: batch_memory(classes, n), max_memory, condition="(11)"
    )


@explained
def practical_thresholds(classes: Sequence[ClassStatistics], batch_limit: float) -> NDArray[np.int64]:
    """Return n_j = B rho_j / (l'_j + 1) with rho_j = lambda_j / sum lambda, Section 6.1, int64, shape (m,).

    Each type gets a share of the batch in proportion to its arrival rate, spread over its stages. That
    contradicts eq. (11), which needs n_j itself proportional to lambda_j: types with long outputs get too
    few places here. Check with :func:`wait_condition`.

    Args:
        classes: the m request types.
        batch_limit: B, requests in a batch. Thresholds are rounded down, but to no less than 1, so that
            a small limit with many types or long outputs can be exceeded.
    """
    check_number("batch_limit", batch_limit, above=0)
    rate = _rates(classes)
    stages = np.array([c.output_len + 1 for c in classes])
    share = batch_limit * rate / rate.sum() / stages
    return np.asarray(np.maximum(1, np.floor(share * (1 + ROUNDING))), dtype=np.int64)


@explained
def safe_arrivals(
    classes: Sequence[ClassStatistics],
    per_stage: ArrayLike,
    capacity: float | None = None,
    *,
    iterations: int | None = None,
) -> list[tuple[int, ...]]:
    """Return the numbers of arrivals (X_1 … X_m) of one iteration that never overflow the memory.

    A worker at the fluid equilibrium admits every arrival at once, as first come first served does. In one
    iteration X_j requests of each type arrive in place of the expected n_j; n_j arrive in each later one.
    The batch r iterations later then holds sum_j n_j * load_j + sum over l'_j >= r of (X_j - n_j)(l_j + r)
    tokens, which must not exceed the capacity.

    Source: proof of Proposition 3, which lists the five safe pairs of its instance. It says "within two
    iterations" and counts the one that admits the arrivals as number zero; two is the longest output there,
    and by default overflow is followed to the end of the longest output.

    Args:
        classes: the m request types, with whole lengths; rates are not used.
        per_stage: n_j, requests at each stage, shape (m,).
        capacity: KV tokens; None = the equilibrium memory M* itself.
        iterations: how many iterations after the admission are followed; None = until all have finished.

    Raises:
        ConfigError: a length is not whole, or the combinations to try are more than a million.
    """
    n = _per_type(classes, per_stage, "per_stage")
    if capacity is not None:
        check_number("capacity", capacity, least=0)
    if iterations is not None:
        check_number("iterations", iterations, least=0, whole=True)
    prompt = whole_numbers("prompt_len", [c.prompt_len for c in classes])
    output = whole_numbers("output_len", [c.output_len for c in classes])
    memory = batch_memory(classes, n)
    room = (memory if capacity is None else capacity) - memory + 1e-9 * memory
    last = int(output.max()) if iterations is None else min(iterations, int(output.max()))
    later = np.arange(last + 1)[:, None]
    tokens = np.where(output >= later, prompt + later, 0.0)  # of one more arrival, (iterations, m)
    limits = room + tokens @ n
    # The first batch bounds each type's arrivals by themselves.
    most = np.floor(limits[0] / tokens[0]).astype(np.int64) if limits[0] >= 0 else np.full(len(n), -1)
    if float(np.prod(most + 1.0)) > _MAX_COMBINATIONS:
        raise ConfigError(f"safe arrivals: up to {most.tolist()} of each type; too many combinations to list")
    combinations = itertools.product(*(range(int(x) + 1) for x in most))
    return [x for x in combinations if bool(np.all(tokens @ np.asarray(x) <= limits))]


@explained
def fcfs_overflow_probability(
    classes: Sequence[ClassStatistics],
    per_stage: ArrayLike,
    capacity: float | None = None,
    *,
    iterations: int | None = None,
) -> float:
    """Return the probability that the arrivals of one iteration at equilibrium overflow the memory.

    Arrivals of an iteration are independent and Poisson with mean n_j; see :func:`safe_arrivals` for the
    arguments. Source: proof of Proposition 3, 1 - 9/(2 e^2) = 0.391 in its instance.
    """
    n = _per_type(classes, per_stage, "per_stage")
    safe = safe_arrivals(classes, n, capacity, iterations=iterations)
    return 1.0 - float(sum(np.prod(poisson.pmf(x, n)) for x in safe))


def at_least(x: ArrayLike) -> NDArray[np.float64]:
    """Return the least whole numbers >= x, up to :data:`ROUNDING`."""
    return np.asarray(np.ceil(check_numbers("x", x) * (1 - ROUNDING)))


def least_thresholds(
    step: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    start: NDArray[np.float64],
    memory: Callable[[NDArray[np.float64]], float],
    max_memory: float | None,
    *,
    condition: str,
) -> NDArray[np.int64]:
    """Return the least fixed point of a non-decreasing step at or above ``start``, int64, shape (m,).

    Args:
        step: thresholds needed when a batch is as long as with the given ones, shape (m,) -> (m,).
        start: a lower bound of the solution with step(start) >= start, shape (m,).
        memory: KV tokens of a full batch with these thresholds.
        max_memory: limit on them; None = none but :data:`MAX_TOKENS`.
        condition: the equation's number, for messages.

    Raises:
        ConfigError: no fixed point within the limits; the message's figures bound every solution from below.
    """
    if max_memory is not None:
        check_number("max_memory", max_memory, above=0)
    n = check_numbers("start", start, least=0)
    for _ in range(MAX_ROUNDS):
        tokens = memory(n)
        if max_memory is not None and tokens > max_memory:
            raise ConfigError(
                f"thresholds for {condition} must be at least {_short(n)}, a full batch of which holds "
                f"{tokens:.6g} KV tokens; max_memory is {max_memory:.6g}"
            )
        if tokens > MAX_TOKENS:
            break
        following = step(n)
        if np.array_equal(following, n):
            return n.astype(np.int64)
        n = following
    raise ConfigError(
        f"no thresholds found for {condition}: they must be at least {_short(n)}, a full batch of which holds "
        f"{memory(n):.6g} KV tokens; up to there more requests arrive during a full batch than it serves"
    )


def whole_numbers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return positive whole numbers as int64, shape (m,).

    Raises:
        ConfigError: one is not positive and whole, or there are none.
    """
    x = check_numbers(name, values, least=1, whole=True)
    if x.ndim != 1 or not len(x):
        raise ConfigError(f"{name}: expected a list of numbers, got {shown(values)}")
    return x.astype(np.int64)


def _short(n: NDArray[np.float64]) -> str:
    figures = ", ".join(f"{x:.6g}" for x in n[:6])
    return f"n = [{figures}{', …' if len(n) > 6 else ''}]"


def _some(classes: Sequence[ClassStatistics]) -> Sequence[ClassStatistics]:
    if not len(classes):
        raise ConfigError("at least one request class is needed")
    return classes


def _rates(classes: Sequence[ClassStatistics]) -> NDArray[np.float64]:
    return np.array([c.rate for c in _some(classes)], dtype=np.float64)


def _per_type(
    classes: Sequence[ClassStatistics], values: ArrayLike, name: str = "thresholds"
) -> NDArray[np.float64]:
    n = check_numbers(name, values, least=0)
    if n.shape != (len(_some(classes)),):
        raise ConfigError(f"{name}: expected {len(classes)} numbers, one per class, got {shown(values)}")
    return n
