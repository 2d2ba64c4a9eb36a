"""A quick estimate of the rate that a scheduler sustains, from a backlog; and how a load compares with it.

One worker serves a backlog: requests of the workload that all arrive at the start. While some wait, the worker does all
that it can, so that the work done by then, as a share of what the backlog takes in all, gives the rate. Work is
counted twice: in tokens processed, and in KV tokens held, summed over batches. Requests of a backlog start together, so
short ones finish first and long ones hold memory last: by tokens the rate is too high in short runs, and by memory too
low. The estimate is the geometric mean of the two. docs/capacity.md has its error.

It is a throughput: a rate at which targets are met is lower. A policy that prefers short requests can let the long ones
wait, and then keeps the number that wait small at higher rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvgym.experiments.load.loads import Load
from kvgym.experiments.marks import ERROR, LEAST_REQUESTS, MOST_NAMED, undecided
from kvgym.experiments.runs import PlannedRun, Played
from kvgym.experiments.scenario import Scenario
from kvgym.policies.policy import CompiledPolicy, Policy
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable

LEAST, MOST = 1000, 10_000
"""Fewest and most requests of a backlog."""

FILLS = 4
"""Requests of a backlog, in multiples of those that fit into the memory."""

SHARE = 0.1
"""Largest backlog of a policy in plain Python, as a share of the requests that it serves in the comparison."""

LEAST_BUSY = 0.2
"""Smallest part of a run in which requests wait; with less the backlog is too small."""

FULL = 0.8
"""Share of the memory in use below which no scheduler has to let requests wait for memory."""


def backlog_figures(result: SimulationResult) -> dict[str, float]:
    """Return the estimate from the run of a backlog with a log, for :attr:`kvgym.experiments.runs.PlannedRun.measure`.

    Returns:
        ``"sustained"``: requests per second, NaN if the backlog is too small; ``"work"``: see :func:`mean_work`.
    """
    log = result.log
    assert log is not None
    waits = np.flatnonzero(log["num_waiting"] > 0)
    busy = log["end_time"][waits[-1]] if len(waits) else 0.0
    if not busy >= LEAST_BUSY * log["end_time"][-1]:
        return {"sustained": math.nan, "work": math.nan}
    work = np.stack([log["prefill_tokens"] + log["num_output_tokens"], log["kv_tokens"]]).astype(np.float64)
    shares = work[:, : waits[-1] + 1].sum(axis=1) / work.sum(axis=1)
    rate = len(result.table) * math.sqrt(shares.prod()) / busy
    return {"sustained": float(rate), "work": mean_work([result.table])}


def mean_work(tables: Sequence[RequestTable]) -> float:
    """Return the work of a request without regard to batches: the geometric mean of tokens and of KV tokens held."""
    prompt, output = (
        np.concatenate([getattr(table, name) for table in tables]).astype(np.float64)
        for name in ("prompt_len", "output_len")
    )
    return math.sqrt(float((prompt + output).mean()) * float(((prompt + output / 2) * output).mean()))


class Backlogs:
    """The runs of backlogs that a comparison adds, and the loads that follow from them.

    There is none for groups of workers, for closed sessions, and if requests have no rate. Labels with the same
    scenario and policy share a run.

    Args:
        policies: scenario and policy of each label.
        system: the system, for its memory.
        tables: the requests of each seed.
        rate: arrivals per second.
        seed: seed of the backlogs.

    Attributes:
        runs: the runs.
    """

    def __init__(
        self,
        policies: Mapping[str, tuple[Scenario, Policy]],
        system: System,
        tables: Sequence[RequestTable],
        rate: float,
        seed: int,
    ) -> None:
        self.runs: list[PlannedRun] = []
        self._places: dict[str, int] = {}
        self._workers: dict[str, int] = {}
        self._sustained: dict[int, float] = {}
        self._rate = rate
        if not all(len(table) and table.arrival_time[-1] > table.arrival_time[0] for table in tables):
            return
        self._work = mean_work(tables)
        requests = sum(map(len, tables))
        tokens = sum(int((table.prompt_len + table.output_len).sum()) for table in tables)
        size = math.ceil(min(max(LEAST, FILLS * system.kv_capacity * requests / tokens), MOST))
        loads: dict[tuple[int, int], Scenario] = {}
        places: dict[tuple[int, int], int] = {}
        for label, (scenario, policy) in policies.items():
            own = size if isinstance(policy, CompiledPolicy) else min(size, int(SHARE * requests))
            if (
                own < LEAST_REQUESTS
                or not isinstance(scenario.workers, int)
                or scenario.system.sessions != "open"
            ):
                continue
            if (id(scenario), id(policy)) not in places:
                at = id(scenario), own
                if at not in loads:
                    loads[at] = Load(scenario, num_requests=own).at_once()
                places[id(scenario), id(policy)] = len(self.runs)
                self.runs.append(
                    PlannedRun(loads[at], policy, None, seed, label, log=True, measure=backlog_figures)
                )
            self._places[label] = places[id(scenario), id(policy)]
            self._workers[label] = scenario.workers

    def record(self, place: int, played: Played) -> None:
        """Record the result of a run; the backlog may take more or less work for a request than the comparison."""
        figures = played.measured
        self._sustained[place] = (
            figures.get("sustained", math.nan) * figures.get("work", math.nan) / self._work
        )

    def loads(self) -> dict[str, float]:
        """Return the rate over what the workers sustain, by label; NaN if the backlog failed or was too small."""
        return {
            label: self._rate / (self._sustained[place] * self._workers[label])
            for label, place in self._places.items()
        }


def with_load(played: Played, load: float | None) -> Played:
    """Return a run with its load among what was measured, if it is known."""
    if load is None or math.isnan(load):
        return played
    return replace(played, measured={**played.measured, "load": load})


def load_note(rate: float, loads: Mapping[str, float], runs: Mapping[str, Sequence[Played]]) -> list[str]:
    """Return the note on how a load compares with what policies sustain; none without an estimate.

    Args:
        rate: arrivals per second.
        loads: the load of each label by :func:`load_of`.
        runs: the runs of each label, one per seed.
    """
    known = {label: load for label, load in loads.items() if not math.isnan(load)}
    if not known:
        few = "these requests are too few to estimate what schedulers sustain"
        return [f"Load: {rate:.3g}/s; {few}."] if loads else []
    groups: list[list[str]] = []
    for label in sorted(known, key=lambda label: -known[label]):
        if groups and known[label] * (1 + ERROR) >= known[groups[-1][0]]:
            groups[-1].append(label)
        else:
            groups.append([label])
    alike = len(groups) == 1 and len(groups[0]) == len(runs) > 1
    parts = [
        f"{_times(known, group)} "
        + ("each scheduler sustains" if alike else _sustain([label for label in known if label in group]))
        for group in groups
    ]
    how = f"by a backlog of such requests, ±{ERROR:.0%}, without regard to targets"
    found = [f"Load: {rate:.3g}/s is {'; '.join(parts)} ({how})."]
    peak = max(
        (p.record.metrics["kv_peak"] for each in runs.values() for p in each if not p.record.error), default=1
    )
    if peak < FULL:
        found.append(f"Memory is at most {peak:.0%} full: schedulers hardly differ here, token budgets may.")
    if unclear := [label for label, each in runs.items() if undecided(each)]:
        found.append(f"Too short to tell if requests pile up: {_labels(unclear)}; run more requests.")
    return [" ".join(found)]


def _times(loads: Mapping[str, float], labels: Sequence[str]) -> str:
    """Return the loads of labels in words, the lowest and the highest if they differ."""
    low, high = (
        f"{load:.2f}" if load < 2 else f"{load:.2g}" for load in (loads[labels[-1]], loads[labels[0]])
    )
    return f"{low} times what" if low == high else f"{low} to {high} times what"


def _sustain(labels: Sequence[str]) -> str:
    return f"{_labels(labels)} sustain{'s' * (len(labels) == 1)}"


def _labels(labels: Sequence[str]) -> str:
    """Return labels as a list; of many the first."""
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return ", ".join(labels[:MOST_NAMED]) + more
