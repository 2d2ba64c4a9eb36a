"""Results of a capacity search: estimates with intervals, all probes, files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.experiments.describing import describe_cluster, describe_hardware
from kvgym.experiments.marks import Mark, find_marks
from kvgym.experiments.notes import merge_notes
from kvgym.experiments.result_files import jsonable, run_context, write_json, write_table
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import CONFIDENCE, Estimate, mean_interval
from kvgym.studies.capacity.probing import Probe, Quest
from kvgym.studies.capacity.targets import Target
from kvgym.studies.capacity.verdict import BACKLOG
from kvgym.utils.frame import Frame


@dataclass(frozen=True)
class Capacity:
    """The highest rate at which an entry meets the targets.

    Attributes:
        label: label of the entry.
        policy: label of the policy.
        router: label of the router, "" for one worker.
        workers: number of equal workers; None = as in the scenario.
        held: by seed, the highest rate that passed below every failure, requests per second; 0 if none passed.
        failed: by seed, the lowest rate that failed; inf if none did.
        estimate: mean of ``held`` over seeds, with its bootstrap interval.
        limits: reasons of the failures at ``failed`` with the number of seeds, most frequent first.
        values: the metrics of the targets at ``held``, means over seeds; NaN if no rate passed.
        notes: remarks for readers, one sentence each.
        marks: marks of the runs at ``held``; the notes of the result explain them.
        why: why targets are missed at ``failed`` on the first seed, and what to change, one sentence each.
        clairvoyant: whether the policy is clairvoyant.
    """

    label: str
    policy: str
    router: str
    workers: int | None
    held: tuple[float, ...]
    failed: tuple[float, ...]
    estimate: Estimate
    limits: tuple[tuple[str, int], ...]
    values: dict[str, float]
    notes: tuple[str, ...]
    why: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    clairvoyant: bool = False

    @classmethod
    def of(
        cls, quests: Sequence[Quest], targets: Sequence[Target], tolerance: float, why: tuple[str, ...]
    ) -> Capacity:
        """Return the capacity that results from the searches of an entry, one per seed."""
        entry = quests[0].entry
        held = [probe for quest in quests if (probe := quest.held) is not None]
        failed = [probe for quest in quests if (probe := quest.failed) is not None]
        rates = tuple(0.0 if quest.held is None else quest.held.rate for quest in quests)
        counts = Counter(reason for probe in failed for reason in probe.verdict.reasons)
        found = {t.metric: [probe.played.record.metrics[t.metric] for probe in held] for t in targets}
        return cls(
            label=entry.label,
            policy=entry.policy_label,
            router=entry.router_label,
            workers=entry.workers,
            held=rates,
            failed=tuple(math.inf if quest.failed is None else quest.failed.rate for quest in quests),
            estimate=mean_interval(rates),
            limits=tuple(counts.most_common()),
            values={name: float(np.mean(values)) if values else math.nan for name, values in found.items()},
            notes=merge_notes([(q.seed, note) for q in quests for note in _notes(q, tolerance)], len(quests)),
            why=why,
            marks=find_marks([probe.played for probe in held]),
            clairvoyant=entry.policy.info.clairvoyant,
        )

    @property
    def signs(self) -> str:
        """The signs behind the label: of the marks, and a star if the policy is clairvoyant."""
        return "*" * self.clairvoyant + "".join(mark.sign for mark in self.marks)

    @property
    def on_every_seed(self) -> float:
        """The highest rate that passed on every seed, requests per second."""
        return min(self.held)


def _notes(quest: Quest, tolerance: float) -> Iterator[str]:
    """Yield remarks on the search of a seed."""
    held, failed = quest.held, quest.failed
    if failed is None:
        assert held is not None
        yield f"passes at every rate up to {held.rate:.3g}/s: the run is too short to show a limit."
        return
    surprises = [rate for rate in quest.search.surprises() if rate > failed.rate * (1 + tolerance)]
    if surprises:
        yield (
            f"not monotone: passed at {', '.join(f'{rate:.4g}' for rate in surprises)}/s but failed at "
            f"{failed.rate:.4g}/s ({'; '.join(failed.verdict.reasons)})."
        )
    if _too_short(failed):
        yield "the backlog is the limit, in runs not much longer than request latencies: use more requests."
    if held is None:
        yield f"fails at every rate down to {failed.rate:.3g}/s."


def _too_short(probe: Probe) -> bool:
    """Return whether a run failed only by its backlog, perhaps because it was short."""
    if probe.verdict.reasons != (BACKLOG,):
        return False
    stay = probe.played.record.metrics["e2e_latency_p90"]
    return probe.played.num_requests / probe.rate < 4 * stay


@dataclass(frozen=True)
class CapacityResult:
    """The outcome of :func:`~kvgym.studies.capacity.finding.find_capacity`.

    Attributes:
        scenario: the scenario at its own rate, as run.
        targets: the targets.
        tolerance: maximum width of a final bracket, as a share.
        seeds: seeds, the same for all entries and rates.
        capacities: one per entry.
        probes: all runs, by entry, seed and rate.
        num_requests: requests per run, by seed (per worker if numbers of workers were given).
        notes: changes to the workload and excluded policies, one sentence each.
        replays: whether a trace is replayed with its own times, compressed or stretched.
    """

    scenario: Scenario
    targets: tuple[Target, ...]
    tolerance: float
    seeds: tuple[int, ...]
    capacities: tuple[Capacity, ...]
    probes: tuple[Probe, ...]
    num_requests: tuple[int, ...]
    notes: tuple[str, ...] = ()
    replays: bool = False

    @property
    def own_rate(self) -> float | None:
        """Arrivals per second of a replayed trace as it was recorded; None = the workload is made for any rate."""
        return self.scenario.make_workload().mean_rate if self.replays else None

    @property
    def heading(self) -> str:
        """Name of the scenario, its hardware and its workload, without the rate and the number of requests."""
        scenario = self.scenario
        routers = dict.fromkeys(c.router for c in self.capacities if c.router)
        cluster = "" if any(c.workers for c in self.capacities) else describe_cluster(scenario, list(routers))
        lengths = scenario.make_workload().spec.name
        return f"{scenario.name}: {cluster}{describe_hardware(scenario)}, {lengths}"

    def efficiency(self, capacity: Capacity) -> float:
        """Return the rate per worker relative to that with the fewest workers in the result, same policy and router.

        One worker needs no router, so it is the reference for all routers. NaN if no numbers of workers were given.
        """
        if capacity.workers is None:
            return float("nan")
        alike = [
            c
            for c in self.capacities
            if c.policy == capacity.policy and (c.router in ("", capacity.router)) and c.workers is not None
        ]
        base = min(alike, key=lambda c: c.workers or 1)
        assert base.workers is not None
        per_worker = base.estimate.value / base.workers
        return capacity.estimate.value / capacity.workers / per_worker if per_worker > 0 else float("nan")

    def summary(self) -> dict[str, Any]:
        """Return capacities with intervals, JSON-able."""
        content: dict[str, Any] = jsonable({
            "targets": [str(target) for target in self.targets],
            "tolerance": self.tolerance,
            "confidence": CONFIDENCE,
            "seeds": list(self.seeds),
            "num_requests": list(self.num_requests),
            "own_rate": self.own_rate,
            "runs": len(self.probes),
            "simulated_seconds_of_work": sum(probe.played.record.wall_time for probe in self.probes),
            "capacities": [
                {
                    "contender": c.label, "policy": c.policy, "router": c.router, "workers": c.workers,
                    "rate": vars(c.estimate), "on_every_seed": c.on_every_seed, "held": list(c.held),
                    "failed": list(c.failed), "limits": dict(c.limits), "at_capacity": c.values,
                    "efficiency": self.efficiency(c), "notes": list(c.notes), "why": list(c.why),
                    "marks": [mark.name for mark in c.marks],
                }
                for c in self.capacities
            ],
            "notes": list(self.notes),
        })  # fmt: skip
        return content

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``probes.csv``, ``capacity.json`` and ``config.json`` into ``folder``; with PyArrow ``probes.parquet``.

        Args:
            folder: created if missing.
            command: the command line, recorded in ``config.json``.

        Returns:
            The folder.
        """
        probes = Frame.from_rows(probe.row() for probe in self.probes)
        return write_outcome(folder, "capacity", self.summary(), self.scenario, command, probes)


def write_outcome(
    folder: str | Path, name: str, summary: dict[str, Any], scenario: Scenario, command: str, probes: Frame,
    **others: Frame,
) -> Path:  # fmt: skip
    """Write the table ``probes``, other tables as CSV by name, ``NAME.json`` and ``config.json``; return the folder."""
    path = write_table(folder, "probes", probes)
    for table, frame in others.items():
        frame.write_csv(path / f"{table}.csv")
    write_json(path / f"{name}.json", summary)
    write_json(path / "config.json", {"scenario": scenario.model_dump(mode="json"), **run_context(command)})
    return path
