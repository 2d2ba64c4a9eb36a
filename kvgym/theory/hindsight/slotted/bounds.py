"""Interval of the best value that any schedule reaches in slotted time: a bound and a schedule.

Large requests (s + o > M/2) complete at distances of at least w_j - max(s_j, M - w_i), w = s + o, see
:mod:`kvgym.theory.hindsight.slotted.prices`. With peaks cut to M - max s this is at least (h_i + h_j)/2 for
h = 2w - M. So m of them take, from the first completion to the last, Σ h less half of the first's and the last's:
a lower bound on the end and on the longest latency.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kvgym.errors import ConfigError, WorkloadError, shown
from kvgym.theory.checks import check_number
from kvgym.theory.hindsight.interval import Interval
from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests, slotted_requests
from kvgym.theory.hindsight.slotted.prices import STEPS, price_bound, separated
from kvgym.theory.hindsight.slotted.search import Goal, local_search
from kvgym.theory.hindsight.slotted.volume import (
    earliest_completions,
    earliest_end,
    earliest_first_tokens,
    least_longest,
)
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

TRIES = 50_000
MANY = 300  # moments of arrival considered as ends of spans
WORK = 4e9  # most steps of compiled loops for the search and for the prices, each: a few seconds


@dataclass(frozen=True)
class _Metric:
    """How a metric follows from what is minimised: its value, and whether more of it is better."""

    goal: Goal
    value: Callable[[SlottedRequests, float], float]
    more_is_better: bool = False


def _span(requests: SlottedRequests, end: float) -> float:
    return end - float(requests.arrival[0])


_METRICS = {
    "e2e_latency_mean": _Metric(Goal.TOTAL, lambda r, x: x / len(r)),
    "ttft_mean": _Metric(Goal.TOTAL, lambda r, x: (x - r.output.sum()) / len(r) + 1),
    "queueing_delay_mean": _Metric(Goal.TOTAL, lambda r, x: (x - r.output.sum()) / len(r)),
    "e2e_latency_max": _Metric(Goal.LONGEST, lambda r, x: float(x)),
    "makespan": _Metric(Goal.END, _span),
    "request_throughput": _Metric(Goal.END, lambda r, x: len(r) / _span(r, x), True),
    "token_throughput": _Metric(Goal.END, lambda r, x: r.output.sum() / _span(r, x), True),
    "kv_utilisation": _Metric(Goal.END, lambda r, x: r.volume.sum() / (r.memory * _span(r, x)), True),
}

SLOTTED_METRICS = tuple(_METRICS)
"""Metrics of :mod:`kvgym.metrics` that :func:`bound_slotted` can bound."""


@explained
def bound_slotted(
    table: RequestTable,
    memory: int,
    metric: str = "e2e_latency_mean",
    *,
    seconds: float = 0.0,
    seed: int | np.random.Generator = 0,
    best: ArrayLike | None = None,
    interruptions: bool = False,
    effort: float = 1.0,
) -> Interval:
    """Return an interval around the best value of a metric that schedules of these requests reach in slotted time.

    A slotted system has one worker with ``batch_time`` ``unit`` (one slot a second), ``block_size`` 1,
    ``first_token="counted"`` and no ``swap_time``, with arrivals at whole seconds: a request holds s + 1, …, s + o
    tokens over its o slots and gets a token in each, the first one in the slot of its whole prompt. The schedule found
    is one that the engine runs (:func:`~kvgym.theory.hindsight.slotted.replay.replay`).

    The bounds on latencies to completion and on the end hold for every policy if an evicted request loses its
    progress: only its last attempt counts, and earlier ones only take memory. A request that chunks its prompt or
    pauses holds, at every moment, at least what it would hold if it had begun later and run through. So its last o
    slots are a placement in the sense of the integer program. Evicted requests that keep their progress may do better,
    and so may first tokens of interrupted requests: ``interruptions`` gives the bounds from memory × time alone, which
    hold for these as well. Without it, ``ttft_mean``, ``queueing_delay_mean`` and ``kv_utilisation`` are about
    schedules without interruptions. Waiting for a moment between slots gains nothing: batches that begin at t may all
    begin at ⌊t⌋ instead, as they are at least a second apart and arrivals are whole.

    The means of the three latencies share their best schedules, and so do the end, both throughputs and memory use.

    Args:
        table: the requests, at least one, with whole arrival times.
        memory: M, tokens.
        metric: one of :data:`SLOTTED_METRICS`.
        seconds: time limit of the integer program, which runs if the interval is still open; 0 skips it, and then equal
            arguments give equal results.
        seed: of the local search, or a generator.
        best: a known schedule to start the search from: the moments at which requests start, (n,).
        interruptions: whether the bound must hold where evicted requests keep progress, or for first tokens of
            interrupted requests.
        effort: a factor on the work of search and prices; at 0 only a few orders of insertion are tried.

    Raises:
        ConfigError: an unknown metric, arrivals between slots, or ``best`` is not a schedule.
        WorkloadError: no requests, or one that needs more than the memory.
    """
    if metric not in _METRICS:
        raise ConfigError(
            f"no bound in slotted time for {shown(metric)}; metrics: {', '.join(SLOTTED_METRICS)}"
        )
    if not len(table):
        raise WorkloadError("there are no requests to schedule")
    if interruptions and metric in ("queueing_delay_mean", "kv_utilisation"):
        raise ConfigError(f"with interruptions nothing bounds {metric}: a request may be admitted many times")
    limit, amount = check_number("seconds", seconds, least=0), check_number("effort", effort, least=0)
    requests, chosen = slotted_requests(table, memory), _METRICS[metric]
    rng = np.random.default_rng(seed)
    cost = int(requests.output.sum()) + 10 * len(requests)
    tries = int(min(TRIES * amount, WORK * amount / cost))
    schedule = local_search(requests, chosen.goal, rng=rng, tries=tries, best=best)
    reached = chosen.goal.reached_by(requests, schedule)
    low, how = _lower(requests, chosen.goal, schedule, interruptions, metric, amount)
    assert low <= reached or interruptions
    method = f"below: {how}; above: local search"
    if limit and low < reached and not interruptions:
        from kvgym.theory.hindsight.slotted.program import solve  # SciPy's solver is slow to import

        solved = solve(requests, chosen.goal, schedule, low, seconds=limit)
        if solved.low > low:
            low, how = solved.low, "integer program"
        method = f"below: {how}; above: {'integer program' if solved.reached < reached else 'local search'}"
        schedule, reached = solved.schedule, solved.reached
    bound, value = chosen.value(requests, low), chosen.value(requests, reached)
    if metric == "ttft_mean" and interruptions:
        bound = low / len(requests)
    if chosen.more_is_better:
        return Interval(metric, value, bound, schedule, method)
    return Interval(metric, bound, value, schedule, method)


def _lower(
    requests: SlottedRequests, goal: Goal, schedule: Ints, interruptions: bool, metric: str, effort: float
) -> tuple[int, str]:
    """Return the best bound without a solver on what is minimised, and its name."""
    if goal is Goal.TOTAL and interruptions and metric == "ttft_mean":
        return int((earliest_first_tokens(requests) - requests.arrival).sum()), "memory of first tokens"
    if goal is Goal.TOTAL:
        found = [(int((earliest_completions(requests) - requests.arrival).sum()), "memory × time")]
        end = int((schedule + requests.output).max())
        steps = int(min(STEPS * effort, WORK * effort / (4 * len(requests) * end)))
        if steps >= 50 and not interruptions:
            found.append((price_bound(requests, schedule, steps=steps).bound, "prices and chains"))
    elif goal is Goal.END:
        found = [(earliest_end(requests), "memory × time")]
        if not interruptions:
            found.append((earliest_chained_end(requests), "chain of large requests"))
    else:
        found = [(least_longest(requests), "memory × time")]
        if not interruptions:
            found.append((least_chained_longest(requests), "chain of large requests"))
    return max(found, key=lambda one: one[0])


def _halves(requests: SlottedRequests) -> tuple[Ints, Ints, Ints]:
    """Return arrivals, outputs and h of the large requests, in order of arrival."""
    large = separated(requests)
    longest = int(requests.prompt[large].max(initial=0))
    halves = 2 * np.minimum(requests.peak[large], requests.memory - longest) - requests.memory
    some = halves > 0
    return requests.arrival[large][some], requests.output[large][some], halves[some]


def _chain(output: Ints, halves: Ints) -> int:
    """Return the least slots from the first arrival of these requests to the last completion."""
    doubled = (2 * output - halves).min() + 2 * halves.sum() - halves.max()
    return max(int(-(-int(doubled) // 2)), int(output.max()))


def earliest_chained_end(requests: SlottedRequests) -> int:
    """Return a moment before which the large requests are not all done, 0 if there are none."""
    arrival, output, halves = _halves(requests)
    return max(
        (int(r) + _chain(output[arrival >= r], halves[arrival >= r]) for r in np.unique(arrival)), default=0
    )


def least_chained_longest(requests: SlottedRequests) -> int:
    """Return a lower bound on the longest latency of the large requests, slots; 0 if there are none.

    Requests that arrive from r to r' keep the last of them, which arrived by r', until the end of their chain. Only
    spans among the first :data:`MANY` moments are considered.
    """
    arrival, output, halves = _halves(requests)
    moments = np.unique(arrival)[:MANY]
    best = 0
    for at, last in enumerate(moments):
        for first in moments[: at + 1]:
            span = (arrival >= first) & (arrival <= last)
            best = max(best, int(first - last) + _chain(output[span], halves[span]))
    return best
