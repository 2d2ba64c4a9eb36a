"""What makes a finite run a witness that a load can be held.

A run holds its targets if

1. every request finished, exactly once: no livelock, no impossible decision, nothing left at a horizon;
2. every target is met, over all requests of the run, the first and the last ones included;
3. the backlog does not grow: between the second and the last quarter of the arrivals, the mean number of requests in
   the system (as an arriving one finds it, waiting or active) rises by at most :data:`MOST_GROWTH` of the requests that
   arrived between the centres of the two quarters, and what chance may add, 2·√(N + 1) with N the mean of the second
   quarter. The first quarter, in which the system fills, does not count.

An overload by a share ε lets ε of all arrivals pile up, so that the third rule finds overloads of more than
MOST_GROWTH + 4·√(N + 1)/n; one of less than that passes in a run of n requests unless a target catches it. A run whose
first quarter is shorter than requests stay fails the rule though nothing is wrong: it is too short to be a witness.

The third rule makes a finite run speak for a load that goes on. Where the load *is* the run, as a trace that workers
are provisioned for, the first two decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.capacity.targets import Target
from kvgym.experiments.runs import Played
from kvgym.metrics import check_targets
from kvgym.runner import SimulationResult
from kvgym.workloads.table import RequestTable

MOST_GROWTH = 0.01
"""Share of the arriving requests that may pile up, see above."""

LEAST_REQUESTS = 20
"""A run of fewer requests has no quarters to compare."""

BACKLOG = "backlog"
"""What limits a rate at which all targets are met and requests pile up."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run holds its targets.

    Attributes:
        held: whether it does.
        reasons: why not: an error, ``"unfinished"``, targets as texts, or :data:`BACKLOG`; empty where it does.
    """

    held: bool
    reasons: tuple[str, ...]


def backlog_growth(result: SimulationResult) -> dict[str, float]:
    """Return by what the backlog of a run grew, for :attr:`kvgym.experiments.runs.Run.measure`.

    Returns:
        ``backlog_growth``: (N4 - N2) / (n/2) with N2 and N4 the mean numbers of requests in the system that the
        arrivals of the second and of the last quarter find, and n the number of requests. ``backlog_allowed``: how
        much of that is no sign of an overload, see the module.
    """
    arrival = result.table.arrival_time
    finish = result.requests["finish_time"]
    finish = np.sort(np.where(np.isnan(finish), np.inf, finish))
    n = len(arrival)
    found = np.arange(n) - np.searchsorted(finish, arrival, side="right")
    second, last = float(found[n // 4 : n // 2].mean()), float(found[n - n // 4 :].mean())
    allowed = MOST_GROWTH + 2 * np.sqrt(second + 1) / (n / 2)
    return {"backlog_growth": (last - second) / (n / 2), "backlog_allowed": float(allowed)}


def judge(played: Played, targets: Sequence[Target], *, sustained: bool = True) -> Verdict:
    """Return whether a run holds its targets.

    Args:
        played: what the run gave; it measured :func:`backlog_growth`.
        targets: the targets.
        sustained: whether the backlog must not grow, the third rule.
    """
    record = played.record
    if record.error:
        return Verdict(False, (record.error,))
    if not record.completed_once:
        return Verdict(False, ("unfinished",))
    reasons = [str(target) for target in targets if not target.met(record.metrics)]
    if sustained and played.measured["backlog_growth"] > played.measured["backlog_allowed"]:
        reasons.append(BACKLOG)
    return Verdict(not reasons, tuple(reasons))


def check_requests(table: RequestTable, targets: Sequence[Target]) -> tuple[str, ...]:
    """Check that requests can be judged, and return what a reader should know of it.

    Raises:
        ConfigError: there are too few of them, or their share within SLOs is a target and they have none.
    """
    n = len(table)
    if n < LEAST_REQUESTS:
        raise ConfigError(
            f"{n} requests are too few to tell whether a load is held; run at least {LEAST_REQUESTS}"
        )
    check_targets([t.metric for t in targets], table)
    beyond = {"p90": 0.1, "p95": 0.05, "p99": 0.01}
    thin = [t for t in targets if t.metric.startswith(("ttft", "e2e", "queueing", "tpot"))]
    return tuple(
        f"{target}: rests on the {share * n:.3g} slowest of {n:,} requests; more requests make it firmer."
        for target in thin
        if (share := beyond.get(target.metric.rpartition("_")[2], 1.0)) * n < 10
    )
