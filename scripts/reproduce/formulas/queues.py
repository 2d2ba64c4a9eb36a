"""Queue lengths of WAIT and Nested WAIT: exact values of random walks, and bounds built on them.

Source throughout: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling with
Memory Constraints", Theorem 1 and Appendix B, Theorem 2 and Appendix C, Propositions 4 and 5. A queue is observed
once per batch: X arrive during a full batch, and n leave if the threshold n is reached. It is dominated by
n0 + max(0, S_1, …, S_B) in distribution, S the random walk with steps X - n (Lindley's recursion, Lemmas 2, 3, 6, 7),
with n0 = 2 n for arrivals from outside (X Poisson), n0 = n between segments (X binomial).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, poisson

from kvgym.errors import ConfigError, shown
from kvgym.theory.buffers import theta
from kvgym.theory.checks import check_number
from kvgym.utils.arguments import explained

__all__ = [
    "expected_walk_maximum",
    "kingman_bound",
    "poisson_excess",
    "poisson_queue_law",
    "queue_bound",
    "segment_queue_bound",
    "segment_queue_law",
    "segment_queue_tail",
    "throughput_gap",
    "zero_drift_bound",
]

Floats = NDArray[np.float64]

MOST_QUEUE = 10_000_000
"""The most batches, and the longest queue, that the exact computations accept."""


def poisson_excess(mean: float, level: float) -> float:
    """Return E[(X - level)^+] of a Poisson variable X, exactly.

    Args:
        mean: of X, > 0.
        level: any number.
    """
    check_number("mean", mean, above=0)
    check_number("level", level)
    if level < 0:
        return mean - level
    k = math.floor(level)  # E[X; X > k] = mean P(X >= k)
    return float(mean * poisson.sf(k - 1, mean) - level * poisson.sf(k, mean))


def expected_walk_maximum(mean: float, threshold: float, num_batches: int) -> float:
    """Return E[max(0, S_1, …, S_B)] of the walk with steps Poisson(mean) - threshold, Lemma 4: sum E[S_k^+] / k.

    Args:
        mean: arrivals expected during a full batch, lambda_j Delta T, > 0.
        threshold: n_j, > 0.
        num_batches: B, >= 1.
    """
    check_number("threshold", threshold, above=0)
    check_number("mean", mean, above=0)
    check_number("num_batches", num_batches, least=1, most=MOST_QUEUE, whole=True)
    k = np.arange(1, num_batches + 1)
    total, level = k * float(mean), k * float(threshold)
    whole = np.floor(level)
    excess = total * poisson.sf(whole - 1, total) - level * poisson.sf(whole, total)
    return float((excess / k).sum())


@explained
def queue_bound(mean: float, threshold: float, num_batches: int) -> float:
    """Return a bound on the mean number waiting after ``num_batches`` full batches, Lemma 6 with Lemma 4.

    2 n + E[max of the walk]: the paper's bounds below follow from it by estimating the maximum. Arguments as
    :func:`expected_walk_maximum`.
    """
    return 2 * threshold + expected_walk_maximum(mean, threshold, num_batches)


def zero_drift_bound(threshold: float, num_batches: int) -> float:
    """Return the bound of Appendix B at zero drift, mean = n: n + sqrt(n) sum_{k<=B} k^(-1/2).

    Of the single-type queue of Lemma 1 (Lemma 5). The sum is close to 2 sqrt(B): where the paper continues with
    sqrt(lambda B), as in Case 1 of the proof for several types, a factor of 2 is lost, and the start 2 n_j of
    Lemma 6 is replaced by lambda_j. :func:`queue_bound` has neither slip.

    Args:
        threshold: n, requests, > 0.
        num_batches: B, >= 1.
    """
    check_number("threshold", threshold, above=0)
    check_number("num_batches", num_batches, least=1, most=MOST_QUEUE, whole=True)
    return threshold + math.sqrt(threshold) * float((np.arange(1, num_batches + 1) ** -0.5).sum())


def kingman_bound(mean: float, threshold: float) -> float:
    """Return Kingman's bound for a queue with negative drift, Appendix B: 2 n + mean / (2 (n - mean)).

    Args:
        mean: arrivals expected during a full batch, lambda_j Delta T; in Appendix C's first segment of all types, in
            Appendix D the largest of any interval, :func:`kvgym.theory.time_varying.worst_arrivals`. > 0.
        threshold: n, > mean.

    Raises:
        ConfigError: there is no drift.
    """
    check_number("mean", mean, above=0)
    check_number("threshold", threshold, above=0)
    if threshold <= mean:
        raise ConfigError(
            f"Kingman's bound needs a threshold above the arrivals, got {threshold:g} and {mean:g}"
        )
    return 2 * threshold + mean / (2 * (threshold - mean))


@explained
def throughput_gap(
    mean: float, threshold: float, num_batches: int, kind: Literal["exact", "printed"] = "exact"
) -> float:
    """Return the bound of Theorem 1 on WAIT's throughput loss, requests of a type per batch: its queue over B batches.

    Requests that have arrived and not completed are in the queue (or in the l' batches that a request takes: at most
    n (l' + 1) more, which the paper leaves out). Multiply by l'_j / Delta T for tokens per second.

    Args:
        mean: arrivals expected during a full batch, > 0.
        threshold: n, >= mean.
        num_batches: B, >= 1.
        kind: ``"exact"`` by :func:`queue_bound`; ``"printed"`` by the paper's estimates: :func:`kingman_bound`, or
            :func:`zero_drift_bound` at mean = n.

    Raises:
        ConfigError: arrivals exceed the threshold, so that the queue grows without bound.
    """
    if kind not in ("exact", "printed"):
        raise ConfigError(f"unknown kind of gap {shown(kind)}; valid: exact, printed")
    check_number("mean", mean, above=0)
    check_number("threshold", threshold, above=0)
    if mean > threshold * (1 + 1e-12):
        raise ConfigError(f"no bound: {mean:g} arrive in a full batch, above the threshold {threshold:g}")
    if kind == "exact":
        return queue_bound(mean, threshold, num_batches) / num_batches
    level = math.isclose(mean, threshold, rel_tol=1e-12)
    bound = zero_drift_bound(threshold, num_batches) if level else kingman_bound(mean, threshold)
    return bound / num_batches


def segment_queue_bound(n_prev: float, n_k: float, p_k: float) -> float:
    """Return the bound of Appendix C on the mean queue before segment k >= 2: n_k + n_prev p (1 - p) / (2 drift).

    Args:
        n_prev: threshold of the segment before, > 0.
        n_k: threshold of the segment, above n_prev p_k.
        p_k: probability of going on, in [0, 1]; p*_k in Appendix D.

    Raises:
        ConfigError: there is no drift.
    """
    _check_segment(n_prev, n_k, p_k)
    if n_k <= n_prev * p_k:
        raise ConfigError(f"the queue has no bound: n_k = {n_k:g} must exceed n_prev p = {n_prev * p_k:g}")
    return n_k + n_prev * p_k * (1 - p_k) / (2 * (n_k - n_prev * p_k))


def segment_queue_tail(n_prev: float, n_k: float, p_k: float, level: float) -> float:
    """Return the bound of Appendix C.4 on P(queue before segment k >= level): e^(-theta_k (level - n_k)), at most 1.

    Arguments and errors: as :func:`kvgym.theory.buffers.theta`; ``level`` in requests.
    """
    rate, over = theta(n_prev, n_k, p_k), check_number("level", level) - n_k
    if over <= 0:
        return 1.0
    return 0.0 if math.isinf(rate) else math.exp(-rate * over)


@explained
def segment_queue_law(n_prev: int, n_k: int, p_k: float, num_batches: int, most: int) -> Floats:
    """Return the law of the queue W before segment k after ``num_batches`` batches, exactly, float64 (most + 1,).

    W_{b+1} = W_b + Y_b - n_k 1{W_b + Y_b >= n_k} with Y_b binomial(n_prev, p_k), W_0 = 0; entry w is P(W = w), and the
    last one P(W >= most).

    Args:
        n_prev: threshold of the segment before, a whole number >= 1.
        n_k: threshold of the segment, a whole number >= 1.
        p_k: probability of going on.
        num_batches: B, >= 0.
        most: the largest queue with an entry of its own, > n_k.
    """
    _check_segment(n_prev, n_k, p_k)
    for name, value in (("n_prev", n_prev), ("n_k", n_k)):
        check_number(name, value, least=1, whole=True)
    check_number("num_batches", num_batches, least=0, whole=True)
    check_number("most", most, above=n_k, most=MOST_QUEUE, whole=True)
    arrivals = binom.pmf(np.arange(n_prev + 1), n_prev, p_k)
    law = np.zeros(most + 1)
    law[0] = 1.0
    for _ in range(num_batches):
        there = np.convolve(law, arrivals)
        left = np.concatenate([there[n_k:], np.zeros(n_k)])
        left[:n_k] += there[:n_k]
        law = left[: most + 1].copy()
        law[most] += left[most + 1 :].sum()
    return law


@explained
def poisson_queue_law(mean: float, threshold: int, num_batches: int, most: int) -> Floats:
    """Return the law of the queue of Lemma 1 after ``num_batches`` batches, exactly, float64 (most + 1,).

    As :func:`segment_queue_law`, with X_b Poisson(mean) for Y_b, cut off beyond ``most``.
    """
    check_number("mean", mean, above=0)
    check_number("threshold", threshold, least=1, whole=True)
    check_number("most", most, above=threshold, most=MOST_QUEUE, whole=True)
    arrivals = poisson.pmf(np.arange(most + threshold + 1), mean)
    law = np.zeros(most + 1)
    law[0] = 1.0
    for _ in range(check_whole(num_batches)):
        there = np.convolve(law, arrivals)[: most + threshold + 1]
        there[-1] += 1.0 - there.sum()
        left = there[threshold:].copy()
        left[:threshold] += there[:threshold]
        law = left
    return law


def check_whole(num_batches: int) -> int:
    """Return a number of batches.

    Raises:
        ConfigError: it is not a whole number >= 0.
    """
    return int(check_number("num_batches", num_batches, least=0, whole=True))


def _check_segment(n_prev: float, n_k: float, p_k: float) -> None:
    check_number("n_prev", n_prev, above=0)
    check_number("n_k", n_k, above=0)
    check_number("p_k", p_k, least=0, most=1)
