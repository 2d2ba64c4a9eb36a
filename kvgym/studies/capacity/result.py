"""Results of a capacity search: estimates with intervals, all probes, files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.experiments.describing import describe_cluster, describe_hardware
from kvgym.experiments.marks import Mark, find_marks
from kvgym.experiments.result_files import jsonable, run_context, write_json, write_table
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import CONFIDENCE, Estimate, mean_interval
from kvgym.studies.capacity.entries import Entry
from kvgym.studies.capacity.probing import Probe
from kvgym.studies.capacity.targets import Target
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
        cls,
        entry: Entry,
        held: Sequence[float],
        failed: Sequence[float],
        limits: Sequence[tuple[str, ...]],
        edges: Sequence[Probe],
        targets: Sequence[Target],
        notes: tuple[str, ...],
        why: tuple[str, ...],
    ) -> Capacity:
        """Return the capacity that results from the searches of all seeds."""
        counts = Counter(reason for reasons in limits for reason in reasons)
        metrics = [target.metric for target in targets]
        return cls(
            label=entry.label,
            policy=entry.policy_label,
            router=entry.router_label,
            workers=entry.workers,
            held=tuple(held),
            failed=tuple(failed),
            estimate=mean_interval(held),
            limits=tuple(counts.most_common()),
            values={
                name: float(np.mean([probe.played.record.metrics[name] for probe in edges]))
                if edges
                else float("nan")
                for name in metrics
            },
            notes=notes,
            why=why,
            marks=find_marks([probe.played for probe in edges]),
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

    def to_frame(self) -> Frame:
        """Return one row per run, sorted by entry, seed and rate."""
        return Frame.from_rows(probe.row() for probe in self.probes)

    def summary(self) -> dict[str, Any]:
        """Return capacities with intervals, JSON-able."""
        return {
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
                    "rate": jsonable(vars(c.estimate)), "on_every_seed": c.on_every_seed,
                    "held": list(c.held), "failed": [jsonable(rate) for rate in c.failed],
                    "limits": dict(c.limits), "at_capacity": jsonable(c.values),
                    "efficiency": jsonable(self.efficiency(c)), "notes": list(c.notes), "why": list(c.why),
                    "marks": [mark.name for mark in c.marks],
                }
                for c in self.capacities
            ],
            "notes": list(self.notes),
        }  # fmt: skip

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``probes.csv``, ``capacity.json`` and ``config.json`` into ``folder``; with PyArrow ``probes.parquet``.

        Args:
            folder: created if missing.
            command: the command line, recorded in ``config.json``.

        Returns:
            The folder.
        """
        path = write_table(folder, "probes", self.to_frame())
        config = {"scenario": self.scenario.model_dump(mode="json"), **run_context(command)}
        write_json(path / "capacity.json", self.summary())
        write_json(path / "config.json", config)
        return path
