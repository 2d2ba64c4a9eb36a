"""Verdict on a run: whether it shows that a load is sustained.

A run passes if

1. every request finished exactly once: no livelock, no impossible decision, nothing left at a horizon;
2. every target is met, over all requests of the run, including the first and the last;
3. the backlog does not grow, by the test of :mod:`kvgym.experiments.marks`. A smaller overload than that finds passes
   unless a target detects it, and a run that is too short fails without an overload.

With the third rule a finite run stands for a continuing load. If the load *is* the run, as a trace that workers are
provisioned for, only the first two apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgym.errors import ConfigError
from kvgym.experiments.marks import LEAST_REQUESTS, grows
from kvgym.experiments.runs import Played
from kvgym.metrics.attainment import check_targets
from kvgym.studies.capacity.targets import Target
from kvgym.workloads.table import RequestTable

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


def judge(played: Played, targets: Sequence[Target], *, sustained: bool = True) -> Verdict:
    """Return whether a run passes.

    Args:
        played: result of the run; it measured :func:`~kvgym.experiments.marks.backlog_growth`.
        targets: the targets.
        sustained: whether the third rule applies, by which the backlog must not grow.
    """
    record = played.record
    if record.error:
        return Verdict(False, (record.error,))
    if not record.completed_once:
        return Verdict(False, ("unfinished",))
    reasons = [str(target) for target in targets if not target.met(record.metrics)]
    if sustained and grows(played.measured):
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
