"""Runs that searches request, in rounds, on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgym.experiments.journal import Play
from kvgym.experiments.marks import backlog_growth, measure_marks
from kvgym.experiments.runs import Played, Run
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.compute import metric_names
from kvgym.policies.routing import Router
from kvgym.policies.runner import SimulationResult
from kvgym.studies.capacity.entries import Entry
from kvgym.studies.capacity.search import Search
from kvgym.studies.capacity.targets import Target
from kvgym.studies.capacity.verdict import Verdict, judge

Progress = Callable[[str], None]
"""Called with a line of text after each run."""


@dataclass(frozen=True)
class Probe:
    """A run, and whether it meets the targets.

    Attributes:
        label: label of the entry.
        policy: label of the policy.
        router: label of the router, "" for one worker.
        workers: number of workers.
        value: the searched value: the rate, arrivals per second, or the number of workers.
        rate: arrivals per second.
        seed: the seed.
        verdict: whether the run passes, and why not.
        played: result of the run.
    """

    label: str
    policy: str
    router: str
    workers: int
    value: float
    rate: float
    seed: int
    verdict: Verdict
    played: Played

    def row(self) -> dict[str, Any]:
        """Return the probe as a row of a table: the run, the verdict, all metrics."""
        nan = float("nan")
        return {
            "contender": self.label, "policy": self.policy, "router": self.router, "workers": self.workers,
            "rate": self.rate, "seed": self.seed, "num_requests": self.played.num_requests,
            "held": self.verdict.held, "reasons": "; ".join(self.verdict.reasons),
            "backlog_growth": self.played.measured.get("backlog_growth", nan),
            "backlog_allowed": self.played.measured.get("backlog_allowed", nan),
            "wall_time": self.played.record.wall_time,
            **{name: self.played.record.metrics[name] for name in metric_names()},
        }  # fmt: skip


def probe_figures(result: SimulationResult) -> dict[str, float]:
    """Return the figures of a verdict and of marks, for :attr:`kvgym.experiments.runs.Run.measure`."""
    return {"queues": 0.0, **measure_marks(result), **backlog_growth(result)}


@dataclass
class Quest:
    """A search, and how its values are run.

    Attributes:
        search: the search.
        entry: the entry that is run.
        seed: the seed.
        place: returns scenario and rate of a value.
        sustained: whether a run stands for a continuing load, see
            :func:`~kvgym.studies.capacity.verdict.judge`.
        probes: runs so far, by value.
    """

    search: Search
    entry: Entry
    seed: int
    place: Callable[[float], tuple[Scenario, float]]
    sustained: bool = True
    probes: dict[float, Probe] = field(default_factory=dict)

    def router(self, value: float) -> Router | None:
        """Return the router of a value; None for one worker."""
        return None if self.place(value)[0].workers == 1 else self.entry.router

    def record(self, value: float, played: Played, targets: Sequence[Target]) -> None:
        """Judge a run and record the verdict in the search."""
        scenario, rate = self.place(value)
        verdict = judge(played, targets, sustained=self.sustained)
        entry = self.entry
        workers = (
            scenario.workers if isinstance(scenario.workers, int) else sum(g.count for g in scenario.workers)
        )
        self.probes[value] = Probe(
            entry.label,
            entry.policy_label,
            entry.router_label,
            workers,
            value,
            rate,
            self.seed,
            verdict,
            played,
        )
        self.search.record(value, verdict.held)


def pursue(
    quests: Sequence[Quest],
    targets: Sequence[Target],
    play: Play,
    progress: Progress | None = None,
) -> None:
    """Run searches to their end; every round runs the next value of each."""
    while requested := [(q, value) for q in quests if (value := q.search.ask()) is not None]:
        play_values(requested, targets, play, progress)


def play_values(
    requested: Iterable[tuple[Quest, float]],
    targets: Sequence[Target],
    play: Play,
    progress: Progress | None = None,
) -> None:
    """Run given values, with those of one scenario and seed together, as they share their requests."""
    wanted = sorted(requested, key=lambda item: (item[0].seed, item[1]))
    runs = []
    for quest, value in wanted:
        entry = quest.entry
        scenario, _ = quest.place(value)
        runs.append(
            Run(scenario, entry.policy, quest.router(value), quest.seed, entry.label, measure=probe_figures)
        )
    for at, played in play(runs):
        quest, value = wanted[at]
        quest.record(value, played, targets)
        if progress is not None:
            progress(f"{quest.entry.label}, {quest.place(value)[1]:.4g}/s, seed {quest.seed}")
