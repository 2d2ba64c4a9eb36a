"""WAIT and Nested WAIT under arrival rates that change over time: condition (15) and thresholds that satisfy it.

Source throughout: Ao, Luo, Simchi-Levi and Wang, "Optimizing LLM Inference: Fluid-Guided Online Scheduling
with Memory Constraints", Section 7.1 and Appendix D. Notation as in :mod:`kvgym.theory.nested`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.theory.checks import check_number, check_numbers
from kvgym.theory.fluid import at_least, batch_memory, full_batch_time, least_thresholds
from kvgym.theory.nested import (
    Floats,
    above,
    drifts_down,
    ends_of,
    least_chain,
    same_length,
    thresholds_of,
)
from kvgym.utils.arguments import explained
from kvgym.workloads.classes import ClassStatistics

__all__ = [
    "peak_arrivals",
    "time_varying_condition",
    "time_varying_thresholds",
    "time_varying_wait_thresholds",
    "worst_arrivals",
    "worst_survival",
]


def worst_arrivals(times: ArrayLike, rates: ArrayLike, window: float, period: float | None = None) -> float:
    """Return the most requests expected in any interval of the given length, the supremum in eq. (15).

    The accumulated rate of a sliding window is piecewise linear in its start, so it is largest where an
    end of the window lies on a change of rate.

    Args:
        times: instants from which each column of ``rates`` holds, ascending seconds, shape (t,); the last
            one holds forever.
        rates: lambda_j on each piece, 1/s, shape (m, t), >= 0.
        window: seconds, >= 0.
        period: seconds after which the pieces repeat; None = they do not.
    """
    start, rate = _pieces(times, rates)
    check_number("window", window, least=0)
    total = rate.sum(axis=0)
    if period is not None:
        check_number("period", period, above=float(start[-1] - start[0]))
        cycles = window // period
        cycle = float(total @ np.diff(start, append=start[0] + period))
        twice = np.concatenate([start, start + period, [start[0] + 2 * period]]), [[*total, *total, 0.0]]
        return cycles * cycle + worst_arrivals(*twice, window - cycles * period)
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
    n, p = thresholds_of(thresholds), worst_survival(times, rates)
    same_length(n, p, 1)
    check_number("full_batch_time", full_batch_time, least=0)
    return above(n[0], worst_arrivals(times, rates, full_batch_time)) and drifts_down(n, p)


@explained
def peak_arrivals(c: ClassStatistics, window: float) -> float:
    """Return the most requests of a class expected in any ``window`` seconds; at a constant rate all are alike."""
    check_number("window", window, least=0)
    p = c.profile
    return c.rate * window if p is None else worst_arrivals(p.times, [p.rates], window, p.period)


@explained
def time_varying_wait_thresholds(
    classes: Sequence[ClassStatistics],
    batch_time: BatchTimeModel,
    *,
    slack: float = 0.0,
    max_memory: float | None = None,
) -> NDArray[np.int64]:
    """Return the least thresholds of WAIT with which no full batch is exceeded at any time, int64, shape (m,).

    The paper states (15) for Nested WAIT. For types known on arrival it reads n_j >= the most arrivals of type j
    expected in any interval as long as a full batch, (11) with the accumulated rate in place of lambda_j Delta T.

    Args and errors: as :func:`kvgym.theory.fluid.wait_thresholds`; rates are those of the classes' profiles.
    """
    share = 1 + check_number("slack", slack, least=0)

    def step(n: Floats) -> Floats:
        window = full_batch_time(classes, n, batch_time)
        return np.maximum(1.0, at_least([share * peak_arrivals(c, window) for c in classes]))

    return least_thresholds(
        step, np.ones(len(classes)), lambda n: batch_memory(classes, n), max_memory, condition="(15)"
    )


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
    p*_k, Appendix D. If on some piece no request ends in segment k, p*_k = 1 and n_{k+1} > n_k.

    Args and errors: as :func:`worst_arrivals` and :func:`nested_thresholds`.
    """
    check_number("slack", slack, least=0)
    p, ends = worst_survival(times, rates), ends_of(output_lens)
    same_length(ends, p, 1)
    return least_chain(
        lambda t: worst_arrivals(times, rates, t), p, prompt_len, ends, batch_time, slack, max_memory, "(15)"
    )


def _pieces(times: ArrayLike, rates: ArrayLike) -> tuple[Floats, Floats]:
    start, rate = check_numbers("times", times), check_numbers("rates", rates, least=0)
    if start.ndim != 1 or not len(start) or np.any(np.diff(start) <= 0):
        raise ConfigError(f"times must ascend, got {shown(times)}")
    if rate.ndim != 2 or rate.shape[1] != len(start):
        raise ConfigError(f"rates must have shape (types, {len(start)}), got {shown(rates)}")
    return start, rate
