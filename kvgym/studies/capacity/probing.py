"""Searches for rates and numbers of workers, and the runs that they request, in rounds on an executor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgym.experiments.comparison import label_of
from kvgym.experiments.journal import Play
from kvgym.experiments.load.loads import Load
from kvgym.experiments.marks import backlog_growth, measure_marks
from kvgym.experiments.runs import PlannedRun, Played
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.catalogue import metric_names
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.policies.runner import SimulationResult
from kvgym.studies.capacity.entries import Entry
from kvgym.studies.capacity.search import Rates, Search, Workers
from kvgym.studies.capacity.targets import Target
from kvgym.studies.capacity.verdict import Verdict, judge

Progress = Callable[[str], None]
"""Called with a line of text after each run."""

MOST_HALVINGS = 14
MOST_DOUBLINGS = 24


@dataclass(frozen=True)
class Probe:
    """A run, and whether it meets the targets.

    Attributes:
        entry: the entry that was run.
        workers: number of workers.
        value: the searched value: the rate, arrivals per second, or the number of workers.
        rate: arrivals per second.
        seed: the seed.
        verdict: whether the run passes, and why not.
        played: result of the run.
    """

    entry: Entry
    workers: int
    value: float
    rate: float
    seed: int
    verdict: Verdict
    played: Played

    @property
    def label(self) -> str:
        """The label of the entry."""
        return self.entry.label

    def row(self) -> dict[str, Any]:
        """Return the probe as a row of a table: the run, the verdict, all metrics."""
        measured, nan = self.played.measured, float("nan")
        return {
            "contender": self.label, "policy": self.entry.policy_label, "router": self.entry.router_label,
            "workers": self.workers, "rate": self.rate, "seed": self.seed, "num_requests": self.played.num_requests,
            "held": self.verdict.held, "reasons": "; ".join(self.verdict.reasons),
            "backlog_growth": measured.get("backlog_growth", nan),
            "backlog_allowed": measured.get("backlog_allowed", nan),
            "wall_time": self.played.record.wall_time,
            **{name: self.played.record.metrics[name] for name in metric_names()},
        }  # fmt: skip


def probe_figures(result: SimulationResult) -> dict[str, float]:
    """Return the figures of a verdict and of marks, for :attr:`kvgym.experiments.runs.PlannedRun.measure`."""
    return {"queues": 0.0, **measure_marks(result), **backlog_growth(result)}


@dataclass
class Quest:
    """A search, and how its values are run.

    Attributes:
        search: the search.
        entry: the entry that is run.
        seed: the seed.
        place: returns scenario and rate of a value, the same objects for equal values.
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

    @property
    def held(self) -> Probe | None:
        """The run of the hardest value that passed and is easier than every failure, None if there is none."""
        value = self.search.bracket()[0]
        return None if value is None else self.probes[value]

    @property
    def failed(self) -> Probe | None:
        """The run of the easiest value that failed, None if there is none."""
        value = self.search.bracket()[1]
        return None if value is None else self.probes[value]

    def run(self, value: float, **options: Any) -> PlannedRun:
        """Return the run of a value.

        Args:
            value: the value.
            options: further fields of the run.
        """
        scenario, _ = self.place(value)
        router = None if scenario.workers == 1 else self.entry.router
        return PlannedRun(scenario, self.entry.policy, router, self.seed, self.entry.label, **options)

    def record(self, value: float, played: Played, targets: Sequence[Target]) -> None:
        """Judge a run and record the verdict in the search."""
        scenario, rate = self.place(value)
        verdict = judge(played, targets, sustained=self.sustained)
        workers = (
            scenario.workers if isinstance(scenario.workers, int) else sum(g.count for g in scenario.workers)
        )
        self.probes[value] = Probe(self.entry, workers, value, rate, self.seed, verdict, played)
        self.search.record(value, verdict.held)


def rate_quest(load: Load, entry: Entry, seed: int, tolerance: float) -> Quest:
    """Return the search for the highest rate of an entry under a seed, which starts at the load's own rate."""
    count, start = entry.workers or 1, load.rate
    if entry.workers is not None:
        usual = load.scenario.workers
        start *= count / (usual if isinstance(usual, int) else len(load.scenario.make_system().all_workers))
    scale = Rates(start / 2**MOST_HALVINGS, start * 2**MOST_DOUBLINGS, tolerance)
    size = load.num_requests * count if not load.replays else None

    @functools.cache
    def place(rate: float) -> tuple[Scenario, float]:
        return load.at(rate, workers=entry.workers, num_requests=size), rate

    return Quest(Search(scale, start), entry, seed, place)


def workers_quest(
    load: Load, policy: Policy, router: Router, seed: int, start: int, most: int, share: float = 1.0
) -> Quest:
    """Return the search for the smallest number of workers, at a share of the load's rate."""

    @functools.cache
    def place(count: float) -> tuple[Scenario, float]:
        return load.at(share * load.rate, workers=int(count)), share * load.rate

    entry = Entry(f"{label_of(policy)} via {label_of(router)}", policy, router, None)
    return Quest(Search(Workers(most), start), entry, seed, place, sustained=False)


@dataclass(frozen=True)
class Prober:
    """Runs the values that searches request.

    Attributes:
        targets: the targets that runs are judged by.
        play: executes the runs.
        progress: called with a line of text after each run.
    """

    targets: Sequence[Target]
    play: Play
    progress: Progress | None = None

    def pursue(self, quests: Sequence[Quest]) -> None:
        """Run searches to their end; every round runs the next value of each."""
        while requested := [(q, value) for q in quests if (value := q.search.ask()) is not None]:
            self.probe(requested)

    def probe(self, requested: Iterable[tuple[Quest, float]]) -> None:
        """Run given values, with those of one scenario and seed together, as they share their requests."""
        wanted = sorted(requested, key=lambda item: (item[0].seed, item[1]))
        for at, played in self.play([quest.run(value, measure=probe_figures) for quest, value in wanted]):
            quest, value = wanted[at]
            quest.record(value, played, self.targets)
            if self.progress is not None:
                self.progress(f"{quest.entry.label}, {quest.place(value)[1]:.4g}/s, seed {quest.seed}")
