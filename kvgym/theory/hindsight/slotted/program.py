"""The integer program (1)-(4) of slotted time, solved by HiGHS through SciPy.

Source: Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", Section 3: x_ik = 1 where
request i starts at moment k; each starts once (2), and no slot needs more than M (3). Objectives: the total latency
(1), or the end or the longest latency as one more variable.

A schedule is known, so the program searches only for better ones: the objective is cut off below it. Starts are left
out that no better schedule has, because the request alone would be too late, because the others have latencies too, or
because of the prices of memory (reduced costs of the relaxation, see :mod:`kvgym.theory.hindsight.slotted.prices`). If
no start is left, the known schedule is optimal. Extra rows tighten the relaxation: large requests, s + o > M/2,
complete at distances that add up. So they are intervals of one machine
(:mod:`kvgym.theory.hindsight.slotted.bounds`), at most one of which covers any moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests
from kvgym.theory.hindsight.slotted.prices import Prices, price_bound, rounded_up, separated
from kvgym.theory.hindsight.slotted.search import Goal
from kvgym.theory.hindsight.slotted.volume import earliest_completions


@dataclass(frozen=True, eq=False)
class Solved:
    """Result of the integer program.

    Attributes:
        low: no schedule is better, slots.
        reached: what the schedule reaches, slots.
        schedule: the best known one, int64 (n,).
        variables: number of starts left to decide.
        status: the solver's message.
    """

    low: int
    reached: int
    schedule: Ints
    variables: int
    status: str

    @property
    def optimal(self) -> bool:
        """Whether the schedule is proved to be optimal."""
        return self.low >= self.reached


@dataclass(frozen=True, eq=False)
class _Starts:
    """Starts to decide: request and moment of each, int64 (m,)."""

    request: Ints
    moment: Ints


def solve(requests: SlottedRequests, goal: Goal, known: Ints, low: int, *, seconds: float = 60.0) -> Solved:
    """Return the best schedule, or the best known one and a bound if time runs out.

    Args:
        requests: the requests, at least one.
        goal: what to minimise.
        known: a schedule, int64 (n,).
        low: a known bound.
        seconds: time limit of the solver.
    """
    from scipy.optimize import milp

    known = requests.check(known)
    reached = goal.reached_by(requests, known)
    if low >= reached:
        return Solved(reached, reached, known, 0, "the bound is reached")
    starts = _useful_starts(requests, goal, known, reached)
    if len(np.unique(starts.request)) < len(requests):
        return Solved(
            reached, reached, known, len(starts.moment), "a request of a better schedule has no start"
        )
    cost, rows, integrality, bounds = _program(requests, goal, starts, low, reached)
    options = {"time_limit": seconds, "mip_rel_gap": 0.0}
    answer = milp(cost, constraints=rows, integrality=integrality, bounds=bounds, options=options)
    size = len(starts.moment)
    if answer.status == 2:
        return Solved(reached, reached, known, size, "no better schedule: the program is infeasible")
    schedule = known
    if answer.x is not None:
        schedule = requests.check(_read(requests, starts, answer.x))
        reached = goal.reached_by(requests, schedule)
    proved = answer.mip_dual_bound
    if answer.status == 0:
        low = reached
    elif proved is not None and np.isfinite(proved):
        low = min(max(low, rounded_up(float(proved))), reached)
    return Solved(low, reached, schedule, size, str(answer.message))


def _read(requests: SlottedRequests, starts: _Starts, x: NDArray[np.float64]) -> Ints:
    """Return the starts that a solution takes, int64 (n,)."""
    schedule = np.zeros(len(requests), np.int64)
    chosen = x[: len(starts.moment)] > 0.5
    schedule[starts.request[chosen]] = starts.moment[chosen]
    return schedule


def _useful_starts(requests: SlottedRequests, goal: Goal, known: Ints, reached: int) -> _Starts:
    """Return the starts that a better schedule may have."""
    windows = [
        np.arange(a, end + 1)
        for a, end in zip(requests.arrival, _latest(requests, goal, reached), strict=True)
    ]
    request = np.repeat(np.arange(len(requests)), [len(window) for window in windows])
    moment = np.concatenate(windows)
    if goal is Goal.TOTAL and len(moment):
        plain = price_bound(requests, known, chains=False)
        keep = plain.value + _reduced_costs(requests, plain, request, moment) < reached - 1 + 1e-6 * reached
        request, moment = request[keep], moment[keep]
    return _Starts(request, moment)


def _latest(requests: SlottedRequests, goal: Goal, reached: int) -> Ints:
    """Return the latest start of each request in a schedule that is better by a slot, int64 (n,)."""
    if goal is Goal.END:
        return np.asarray(reached - 1 - requests.output)
    if goal is Goal.LONGEST:
        return np.asarray(requests.arrival + reached - 1 - requests.output)
    latest = np.zeros(len(requests), np.int64)
    for i in range(len(requests)):
        others = np.arange(len(requests)) != i
        rest = SlottedRequests(
            requests.arrival[others], requests.prompt[others], requests.output[others], requests.memory
        )
        least = int((earliest_completions(rest) - rest.arrival).sum()) if others.any() else 0
        latest[i] = requests.arrival[i] + reached - 1 - least - requests.output[i]
    return np.minimum(latest, requests.end_of_any)


def _reduced_costs(
    requests: SlottedRequests, plain: Prices, request: Ints, moment: Ints
) -> NDArray[np.float64]:
    """Return by how much each start exceeds the cheapest one of its request under the prices of memory, (m,)."""
    longest = int((moment + requests.output[request]).max()) + 1
    price = np.zeros(max(longest, len(plain.memory)))
    price[: len(plain.memory)] = plain.memory
    sums, moments = np.cumsum(price), np.cumsum(price * np.arange(len(price)))
    done = moment + requests.output[request]
    cost = (
        done - requests.arrival[request] + (requests.prompt[request] - moment) * (sums[done] - sums[moment])
    )
    cost = cost + moments[done] - moments[moment]
    least = np.full(len(requests), np.inf)
    np.minimum.at(least, request, cost)
    return np.asarray(cost - least[request])


def _program(
    requests: SlottedRequests, goal: Goal, starts: _Starts, low: int, reached: int
) -> tuple[Any, ...]:
    """Return costs, rows, integrality and bounds for SciPy's ``milp``."""
    from scipy.optimize import Bounds, LinearConstraint

    m, extra = len(starts.moment), int(goal is not Goal.TOTAL)
    done = starts.moment + requests.output[starts.request]
    late = done if goal is Goal.END else done - requests.arrival[starts.request]
    width = m + extra
    once = _sparse(np.ones(m), starts.request, np.arange(m), (len(requests), width))
    rows = [LinearConstraint(once, 1, 1)]
    memory = _memory_rows(requests, starts, width)
    rows.append(LinearConstraint(memory, -np.inf, requests.memory))
    if (machine := _machine_rows(requests, starts, width)) is not None:
        rows.append(LinearConstraint(machine, -np.inf, 1))
    cost = np.zeros(width)
    if extra:
        cost[m] = 1
        last = _sparse(
            np.concatenate([late.astype(float), -np.ones(len(requests))]),
            np.concatenate([starts.request, np.arange(len(requests))]),
            np.concatenate([np.arange(m), np.full(len(requests), m)]),
            (len(requests), width),
        )
        rows.append(LinearConstraint(last, -np.inf, 0))
        least, most = np.append(np.zeros(m), low), np.append(np.ones(m), reached - 1)
    else:
        cost[:m] = late
        rows.append(LinearConstraint(cost[None, :], low, reached - 1))
        least, most = np.zeros(m), np.ones(m)
    return cost, rows, np.ones(width), Bounds(least, most)


def _memory_rows(requests: SlottedRequests, starts: _Starts, width: int) -> Any:
    """Return (3): what each start takes in each slot, slots × width."""
    lengths = requests.output[starts.request]
    column = np.repeat(np.arange(len(lengths)), lengths)
    token = np.arange(len(column)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
    slot = starts.moment[column] + token
    taken = requests.prompt[starts.request][column] + token
    return _sparse(taken, slot, column, (int(slot.max()) + 1, width))


def _machine_rows(requests: SlottedRequests, starts: _Starts, width: int) -> Any:
    """Return which large requests' intervals [2C - h, 2C + h) cover each half slot; None where there are none."""
    large = separated(requests)
    cut = requests.memory - int(requests.prompt[large].max(initial=0))
    halves = 2 * np.minimum(requests.peak, cut) - requests.memory
    some = np.flatnonzero((large & (halves > 0))[starts.request])
    if not len(some):
        return None
    h = halves[starts.request[some]]
    begin = 2 * (starts.moment[some] + requests.output[starts.request[some]]) - h
    column = np.repeat(some, 2 * h)
    half = np.arange(len(column)) - np.repeat(np.cumsum(2 * h) - 2 * h, 2 * h) + np.repeat(begin, 2 * h)
    half -= half.min()
    return _sparse(np.ones(len(column)), half, column, (int(half.max()) + 1, width))


def _sparse(values: Any, rows: Any, columns: Any, shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_array

    return csr_array((values, (rows, columns)), shape=shape)
