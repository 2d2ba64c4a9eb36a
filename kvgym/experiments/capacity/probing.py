"""Runs that searches ask for, round by round, on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgym.experiments.capacity.contenders import Contender
from kvgym.experiments.capacity.search import Search
from kvgym.experiments.capacity.targets import Target
from kvgym.experiments.capacity.witness import Verdict, backlog_growth, judge
from kvgym.experiments.journal import Play
from kvgym.experiments.runs import Played, Run
from kvgym.experiments.scenario import Scenario
from kvgym.metrics import metric_names

Progress = Callable[[str], None]
"""Called with a line of text after each run."""


@dataclass(frozen=True)
class Probe:
    """A run, and whether it holds the targets.

    Attributes:
        label: of the contender.
        policy: label of the policy.
        router: label of the router, "" for one worker.
        workers: number of workers.
        value: what was searched: the rate, arrivals per second, or the number of workers.
        rate: arrivals per second.
        seed: the seed.
        verdict: whether it holds, and why not.
        played: what the run gave.
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
        """Return the probe as a row of a table: what was run, the verdict, all metrics."""
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


@dataclass
class Quest:
    """A search, and how what it asks for is run.

    Attributes:
        search: the search.
        contender: whom it is about.
        seed: under which seed.
        place: returns scenario and rate of a value.
        sustained: whether runs speak for a load that goes on, see :func:`~kvgym.experiments.capacity.witness.judge`.
        probes: what was run, by value.
    """

    search: Search
    contender: Contender
    seed: int
    place: Callable[[float], tuple[Scenario, float]]
    sustained: bool = True
    probes: dict[float, Probe] = field(default_factory=dict)

    def take(self, value: float, played: Played, targets: Sequence[Target]) -> None:
        """Judge a run and tell the search."""
        scenario, rate = self.place(value)
        verdict = judge(played, targets, sustained=self.sustained)
        who = self.contender
        workers = (
            scenario.workers if isinstance(scenario.workers, int) else sum(g.count for g in scenario.workers)
        )
        self.probes[value] = Probe(
            who.label, who.policy_label, who.router_label, workers, value, rate, self.seed, verdict, played
        )
        self.search.tell(value, verdict.held)


def pursue(
    quests: Sequence[Quest],
    targets: Sequence[Target],
    play: Play,
    progress: Progress | None = None,
) -> None:
    """Run what searches ask for until all have ended; every round runs the next value of each."""
    while asked := [(q, value) for q in quests if (value := q.search.ask()) is not None]:
        play_values(asked, targets, play, progress)


def play_values(
    asked: Iterable[tuple[Quest, float]],
    targets: Sequence[Target],
    play: Play,
    progress: Progress | None = None,
) -> None:
    """Run given values; those of one scenario and seed side by side, as they share their requests."""
    wanted = sorted(asked, key=lambda item: (item[0].seed, item[1]))
    runs = []
    for quest, value in wanted:
        who = quest.contender
        scenario, _ = quest.place(value)
        router = None if scenario.workers == 1 else who.router
        runs.append(Run(scenario, who.policy, router, quest.seed, who.label, measure=backlog_growth))
    for at, played in play(runs):
        quest, value = wanted[at]
        quest.take(value, played, targets)
        if progress is not None:
            progress(f"{quest.contender.label}, {quest.place(value)[1]:.4g}/s, seed {quest.seed}")
