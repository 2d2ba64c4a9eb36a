"""Verdict on a run: whether it shows that a load is sustained.

A run passes if

1. every request finished exactly once: no livelock, no impossible decision, nothing left at a horizon;
2. every target is met, over all requests of the run, including the first and the last;
3. the backlog does not grow from the second to the last quarter of the arrivals. The backlog of a quarter is the mean
   number of requests in the system, waiting or running, that its arrivals find. It may rise by :data:`MOST_GROWTH` of
   the requests that arrived between the centres of the two quarters, plus an allowance for chance. The
   allowance is 2·√(N + 1), with N the backlog of the second quarter. The first quarter, in which the
   system fills, does not count.

An overload by a share ε makes ε of all arrivals pile up, so the third rule detects overloads above
MOST_GROWTH + 4·√(N + 1)/n; a smaller overload passes in a run of n requests unless a target detects it. A run
with a first quarter shorter than the latency of requests fails the rule without an overload: it is too short.

With the third rule a finite run stands for a continuing load. If the load *is* the run, as a trace that workers are
provisioned for, only the first two apply.
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
"""Share of the arriving requests that may pile up, see the module."""

LEAST_REQUESTS = 20
"""Minimum number of requests of a run: with fewer, its quarters cannot be compared."""

BACKLOG = "backlog"
"""Reason for a failure if all targets are met but requests pile up."""


@dataclass(frozen=True)
class Verdict:
    """Whether a run passes.

    Attributes:
        held: whether it passes.
        reasons: why it fails: an error, ``"unfinished"``, targets as texts, or :data:`BACKLOG`; empty if it passes.
    """

    held: bool
    reasons: tuple[str, ...]


def backlog_growth(result: SimulationResult) -> dict[str, float]:
    """Return the growth of the backlog in a run, for :attr:`kvgym.experiments.runs.Run.measure`.

    Returns:
        ``backlog_growth``: (N4 - N2) / (n/2) with N2 and N4 the backlogs of the second and the last quarter, and n the
        number of requests. ``backlog_allowed``: the growth that is no sign of an overload, see the module.
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
    """Return whether a run passes.

    Args:
        played: result of the run; it measured :func:`backlog_growth`.
        targets: the targets.
        sustained: whether the third rule applies, by which the backlog must not grow.
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
    """Check that runs of the requests can be judged, and return notes on how reliable targets are.

    Raises:
        ConfigError: there are too few requests, or their share within SLOs is a target and they have none.
    """
    n = len(table)
    if n < LEAST_REQUESTS:
        raise ConfigError(f"{n} requests are too few to judge a load; run at least {LEAST_REQUESTS}")
    check_targets([t.metric for t in targets], table)
    beyond = {"p90": 0.1, "p95": 0.05, "p99": 0.01}
    thin = [t for t in targets if t.metric.startswith(("ttft", "e2e", "queueing", "tpot"))]
    return tuple(
        f"{target}: depends on the {share * n:.3g} slowest of {n:,} requests; use more for a reliable result."
        for target in thin
        if (share := beyond.get(target.metric.rpartition("_")[2], 1.0)) * n < 10
    )
