"""Means, the best of a group, and relative gains paired by seed."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compare_agents.contestants import AGENT
from compare_agents.store import Entry, Row
from kvgym.experiments.statistics import Estimate, improvement_interval, mean_interval
from kvgym.metrics import metric_info


def lower_is_better(metric: str) -> bool:
    """Return whether lower values of a metric are better."""
    return bool(metric_info(metric).lower_is_better)


def mean_of(entry: Entry) -> float:
    """Return the mean over seeds; NaN if the run failed."""
    return float(np.mean(entry.outcome.values)) if entry.outcome.values else math.nan


def estimate_of(entry: Entry) -> Estimate:
    """Return the mean over seeds with its interval."""
    return (
        mean_interval(entry.outcome.values)
        if entry.outcome.values
        else Estimate(math.nan, math.nan, math.nan, 0)
    )


def best_of(entries: Sequence[Entry], metric: str) -> Entry | None:
    """Return the entry with the best mean; None if all failed."""
    finished = [entry for entry in entries if entry.outcome.values]
    if not finished:
        return None
    return (min if lower_is_better(metric) else max)(finished, key=mean_of)


def gain(mine: Entry, other: Entry, metric: str) -> Estimate:
    """Return the relative gain over another entry, with a 95 % interval over pairs; NaN if one failed."""
    return _gain(mine.outcome.values, other.outcome.values, lower_is_better(metric))


@functools.lru_cache(maxsize=4096)
def _gain(mine: tuple[float, ...], other: tuple[float, ...], lower: bool) -> Estimate:
    if not mine or not other:
        return Estimate(math.nan, math.nan, math.nan, 0)
    return improvement_interval(mine, other, lower_is_better=lower)


def agent_in(row: Row) -> Entry | None:
    """Return the agent of a row; None if it was not run."""
    found = row.group(AGENT)
    return found[0] if found else None


@dataclass(frozen=True)
class Summary:
    """Gains of an agent over the best of a group, over the rows of a task.

    Attributes:
        rows: in how many of them both have a value.
        better: in how many the agent is better, the whole interval above 0.
        worse: in how many it is worse, the whole interval below 0.
        least: its smallest gain.
        median: the median gain.
        most: its largest gain.
    """

    rows: int
    better: int
    worse: int
    least: float
    median: float
    most: float


def summary_of(rows: Sequence[Row], group: str) -> Summary | None:
    """Return the agent's gains over the best of a group; None if there is nothing to compare."""
    found = []
    for row in rows:
        agent, rival = agent_in(row), best_of(row.group(group), row.metric)
        if agent is not None and rival is not None and agent.outcome.values:
            found.append(gain(agent, rival, row.metric))
    if not found:
        return None
    values = [estimate.value for estimate in found]
    return Summary(
        rows=len(found),
        better=sum(estimate.low > 0 for estimate in found),
        worse=sum(estimate.high < 0 for estimate in found),
        least=min(values),
        median=float(np.median(values)),
        most=max(values),
    )
