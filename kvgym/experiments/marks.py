"""Marks on results that need caution: exact or predicted lengths, overload and collapse, with the figures behind them.

Overload is found by the backlog, see :func:`backlog_growth`. The backlog of a quarter of the arrivals is the mean
number of requests in the system, waiting or running, that its arrivals find. From the second to the last quarter it
may rise by :data:`MOST_GROWTH` of the requests that arrived between the centres of the two, plus an allowance
for chance. The allowance is 2·√(N + 1), with N the backlog of the second quarter. The first quarter, in which
the system fills, does not count.

An overload by a share ε makes ε of all arrivals pile up, so overloads above MOST_GROWTH + 4·√(N + 1)/n are found.
A run with quarters shorter than the latency of requests is too short for that: it grows without an overload, and
does not show one while the system fills. Where the load is known, as a share of the rate that the policy sustains
(:mod:`kvgym.experiments.load.sustained`), it decides there; within :data:`ERROR` of 1 nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.experiments.runs import Played
from kvgym.policies.hyperparameters import AUTO
from kvgym.policies.policy import Policy
from kvgym.policies.runner import SimulationResult, observes_exact_lengths, observes_predictions
from kvgym.utils.hyperparameters import all_hyperparameters, given_hyperparameters
from kvgym.utils.specs import spec_text
from kvgym.workloads.table import RequestTable

MOST_GROWTH = 0.01
"""Share of the arriving requests that may pile up, see the module."""

LEAST_REQUESTS = 20
"""Minimum number of requests of a run: with fewer, its quarters cannot be compared."""

ERROR = 0.15
"""Error of the estimate of the sustained rate: loads within it of 1 may be above or below."""

SHORT = 4
"""A run is too short to show whether requests pile up if its arrivals last less than this many latencies."""

RELIEF: Mapping[str, Any] = {"protection": 0.15, "overrun": "extend", "watermark": 0.05, "alpha": 0.4}
"""Hyperparameters by which policies evict less, and a value that often suffices."""


@dataclass(frozen=True)
class Mark:
    """A mark on a policy in results.

    Attributes:
        name: its name in files.
        sign: its sign behind the label of the policy.
    """

    name: str
    sign: str

    @property
    def words(self) -> str:
        """The name as text."""
        return self.name.replace("_", " ")


EXACT = Mark("exact_lengths", "†")
PREDICTED = Mark("predicted_lengths", "§")
OVERLOADED = Mark("overloaded", "‡")
COLLAPSED = Mark("collapsed", "!")

_TEXTS: Mapping[Mark, str] = {
    EXACT: "The predictions are exact: {} observed the true output lengths, which no server knows in advance. "
    "For predictions with errors: --predictions noisy:epsilon=0.5.",
    PREDICTED: "Observed predicted output lengths, with errors: {}. Schedulers without the sign decide without them.",
    OVERLOADED: "Overload, requests pile up (share of arrivals): {}. A longer run has larger means; kvgym capacity "
    "finds the rate that each policy sustains.",
    COLLAPSED: "Collapsed, more was repeated than done: {}.",
}

MARKS = tuple(_TEXTS)
"""All marks, in the order in which they are shown."""

MOST_NAMED = 12
"""Most policies that a note names."""


def backlog_growth(result: SimulationResult) -> dict[str, float]:
    """Return the growth of the backlog in a run, for :attr:`kvgym.experiments.runs.PlannedRun.measure`.

    Returns:
        ``backlog_growth``: (N4 - N2) / (n/2) with N2 and N4 the backlogs of the second and the last quarter, and n the
        number of requests. ``backlog_allowed``: the growth that is no sign of an overload, see the module.
    """
    growth, allowed = _growth(result.table.arrival_time, result.requests["finish_time"])
    return {"backlog_growth": growth, "backlog_allowed": allowed}


def _growth(arrival: NDArray[np.float64], left: NDArray[np.float64]) -> tuple[float, float]:
    """Return the growth of the number of requests that have arrived and not left, and the growth that is allowed.

    Args:
        arrival: float64 (n,), seconds, non-decreasing.
        left: float64 (n,), seconds, when each request left; NaN = never.
    """
    left, n = np.sort(left), len(arrival)  # NaN comes last

    def backlog(first: int, end: int) -> float:
        came = (first + end - 1) * (end - first) // 2  # before each arrival, summed
        return (came - int(left.searchsorted(arrival[first:end], side="right").sum())) / (end - first)

    second, last = backlog(n // 4, n // 2), backlog(n - n // 4, n)
    return (last - second) / (n / 2), float(MOST_GROWTH + 2 * np.sqrt(second + 1) / (n / 2))


def grows(measured: Mapping[str, float]) -> bool:
    """Return whether the backlog of a run grows more than chance explains; False if it was not measured."""
    return measured.get("backlog_growth", 0.0) > measured.get("backlog_allowed", 0.0)


def measure_marks(result: SimulationResult) -> dict[str, float]:
    """Return the figures of marks, for :attr:`kvgym.experiments.runs.PlannedRun.measure`.

    Returns:
        ``exact_lengths``: 1 if the policy observed the true output lengths as predictions, else 0.
        ``predicted_lengths``: 1 if it observed predictions. The figures of
        :func:`backlog_growth`, and ``queues``: 1 if the number of requests that wait for their first admission grows,
        too. With separate decode workers, which have queues of their own, it is 1 in any case. ``short``: 1 if the run
        is too short for the others, by the 90 % quantile of latencies. The last four are missing if there are too few
        requests, or all arrive at once.
    """
    arrival = result.table.arrival_time
    found = {
        "exact_lengths": float(observes_exact_lengths(result.policy, result.table)),
        "predicted_lengths": float(observes_predictions(result.policy, result.table)),
    }
    if len(arrival) < LEAST_REQUESTS or arrival[-1] == arrival[0]:
        return found
    growth, allowed = _growth(arrival, result.requests["start_time"])
    queues = growth > allowed or result.system.num_prefill_workers > 0
    stay = np.sort(result.requests["finish_time"] - arrival)  # NaN comes last
    longest = stay[math.ceil(0.9 * (len(stay) - 1))]
    short = math.isnan(longest) or arrival[-1] - arrival[0] < SHORT * longest
    return {**found, **backlog_growth(result), "queues": float(queues), "short": float(short)}


def _by_load(measured: Mapping[str, float]) -> bool:
    """Return whether the load of a run is known and decides, as the run is too short to show its backlog."""
    return bool(measured.get("short")) and "load" in measured


def overloaded(measured: Mapping[str, float]) -> bool:
    """Return whether requests pile up in a run, see the module.

    Args:
        measured: figures of :func:`measure_marks`, and ``load`` if it is known: arrivals over what is sustained.
    """
    if _by_load(measured):
        return measured["load"] > 1 + ERROR
    return grows(measured) and bool(measured["queues"])


def undecided(runs: Sequence[Played]) -> bool:
    """Return whether most runs of a policy are too short, and their load too close to what it sustains, to tell."""
    close = [
        _by_load(p.measured) and abs(p.measured["load"] - 1) <= ERROR for p in runs if not p.record.error
    ]
    return 2 * sum(close) > len(close)


def collapsed(played: Played) -> bool:
    """Return whether evictions lost more tokens than a run processed for finished requests.

    Their number does not count: evictions that lose little, or nothing as their KV is kept, cost little.
    """
    metrics = played.record.metrics
    return metrics["recomputed_tokens"] > metrics["input_tokens"] + metrics["output_tokens"]


def find_marks(runs: Sequence[Played]) -> tuple[Mark, ...]:
    """Return the marks of a policy.

    Args:
        runs: its runs, one per seed, which measured :func:`measure_marks`. Most of them must be overloaded for that
            mark, and one of them for each other mark.
    """
    ended = [played for played in runs if not played.record.error]
    exact = any(played.measured.get("exact_lengths") for played in ended)
    found = {
        EXACT: exact,
        PREDICTED: not exact and any(played.measured.get("predicted_lengths") for played in ended),
        OVERLOADED: 2 * sum(overloaded(p.measured) for p in ended) > len(ended),
        COLLAPSED: any(collapsed(played) for played in ended),
    }
    return tuple(mark for mark in MARKS if found[mark])


def mark_notes(
    runs: Mapping[str, Sequence[Sequence[Played]]], policies: Mapping[str, Policy], what: str = "points"
) -> list[str]:
    """Return a note on each mark that some policy has.

    Args:
        runs: by label of a policy, its runs at each point, one per seed.
        policies: the policies by label.
        what: points in words, if there are several.
    """
    notes = []
    for mark in MARKS:
        parts = []
        for label, points in runs.items():
            affected = [point for point in points if mark in find_marks(point)]
            if affected:
                at = f" at {len(affected)} of {len(points)} {what}" if len(affected) < len(points) else ""
                every = [played for point in affected for played in point if not played.record.error]
                parts.append(f"{label}{_detail(mark, every, policies[label])}{at}")
        notes += _note(mark, parts)
    return notes


def exact_notes(policies: Mapping[str, Policy], table: RequestTable) -> list[str]:
    """Return the note on policies, given by label, that observe exact lengths; without runs, none if no policy does."""
    return _note(EXACT, [label for label, made in policies.items() if observes_exact_lengths(made, table)])


def _note(mark: Mark, parts: Sequence[str]) -> list[str]:
    """Return the note on a mark; ``parts`` are the policies that have it, with figures."""
    if not parts:
        return []
    more = f" and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
    return [f"{mark.sign} {_TEXTS[mark].format(', '.join(parts[:MOST_NAMED]) + more)}"]


def _detail(mark: Mark, runs: Sequence[Played], policy: Policy) -> str:
    """Return the figures of a mark in runs that have it, to append to the label of a policy."""
    if mark is OVERLOADED:
        return f" ({max(_piles_up(played.measured) for played in runs):.0%})"
    if mark is COLLAPSED:
        worst = max(filter(collapsed, runs), key=lambda played: played.record.metrics["recomputed_tokens"])
        figures = worst.record.metrics
        done = figures["input_tokens"] + figures["output_tokens"]
        lost = (
            f"{figures['recomputed_tokens']:,.0f} tokens lost by evictions, {done:,.0f} of finished requests"
        )
        return f" ({lost}; {relief_of(policy)})"
    return ""


def _piles_up(measured: Mapping[str, float]) -> float:
    """Return the share of arrivals that pile up in a run."""
    return 1 - 1 / measured["load"] if _by_load(measured) else measured.get("backlog_growth", 0.0)


def relief_of(policy: Policy) -> str:
    """Return advice against evictions: the policy's spec with :data:`RELIEF`, or how to search its options."""
    name, values = policy.info.name, all_hyperparameters(policy)
    better = {
        key: value
        for key, value in RELIEF.items()
        if key in values
        and values[key] not in (AUTO, value)
        and not (isinstance(values[key], int | float) and values[key] > value)
    }
    if not better:
        return f"kvgym tune {name} searches its options"
    usual = dict(policy.info.auto)
    given = {k: v for k, v in given_hyperparameters(policy).items() if k not in usual or v != usual[k]}
    return f"try {spec_text(name, {**given, **better})}"
