"""Results of provisioning: plans with costs, rates of one worker, windows, files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.batch_time.deployments.load import hardware_label
from kvgym.experiments.result_files import jsonable
from kvgym.experiments.scenario import Scenario
from kvgym.studies.capacity.estimates import OBVIOUS, SOUND, WorkerEstimates
from kvgym.studies.capacity.probing import Probe, Quest
from kvgym.studies.capacity.result import write_outcome
from kvgym.studies.capacity.scaled import FleetPlan
from kvgym.studies.capacity.targets import Target
from kvgym.studies.capacity.windows import WindowPlan, WindowSummary
from kvgym.theory.stability import provision
from kvgym.utils.frame import Frame


@dataclass(frozen=True)
class WorkersPlan:
    """The number of workers that a load needs, for one policy, router and hardware.

    Attributes:
        hardware: name of the hardware.
        policy: label of the policy.
        router: label of the router.
        by_theory: ⌈λ/μ⌉ with the mean batch time of the saturated load; None if that run failed.
        obvious: ⌈λ/μ⌉ with the median of the load as it is; None if that run failed.
        by_targets: ⌈λ/λ₁⌉ with λ₁ the highest rate at which one worker meets the targets; None if there is none.
        simulated: the smallest number that meets the targets, such that all larger numbers tried meet them too; None
            if there is none.
        one_fewer: targets missed with the largest smaller number that was tried.
        values: metrics of the targets at ``simulated``.
        price: price of a worker per hour; None if it was not given.
        notes: remarks for readers, one sentence each.
    """

    hardware: str
    policy: str
    router: str
    by_theory: int | None
    obvious: int | None
    by_targets: int | None
    simulated: int | None
    one_fewer: tuple[str, ...]
    values: dict[str, float]
    price: float | None
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, quest: Quest, own: WorkerEstimates, rate: float, targets: Sequence[Target], price: float | None
    ) -> WorkersPlan:
        """Return the plan that results from a search for the smallest number of workers."""
        enough, few = quest.held, quest.failed
        sound, obvious = own.find(*SOUND), own.find(*OBVIOUS)
        metrics = {} if enough is None else enough.played.record.metrics
        notes = []
        if few is not None and (surprises := quest.search.surprises()):
            fewer = ", ".join(f"{count:.0f}" for count in surprises)
            notes.append(f"not monotone: {fewer} met the targets but {few.value:.0f} did not.")
        if enough is None:
            assert few is not None
            notes.append(f"no number up to {few.value:.0f} meets the targets.")
        return cls(
            hardware=own.hardware,
            policy=own.policy,
            router=quest.entry.router_label,
            by_theory=None if sound is None else sound.workers,
            obvious=None if obvious is None else obvious.workers,
            by_targets=provision(rate, own.target_rate) if own.target_rate > 0 else None,
            simulated=None if enough is None else enough.workers,
            one_fewer=() if few is None else few.verdict.reasons,
            values={t.metric: metrics.get(t.metric, float("nan")) for t in targets},
            price=price,
            notes=tuple(notes),
        )

    @property
    def cost_per_hour(self) -> float | None:
        """Price of the simulated number of workers; None if either is unknown."""
        return None if self.price is None or self.simulated is None else self.price * self.simulated


@dataclass(frozen=True)
class LoadPoint:
    """The number of workers that a load needs at another rate, the load compressed or stretched.

    Attributes:
        plan: the plan, for its policy, router and hardware.
        rate: arrivals per second.
        workers: the smallest number that meets the targets; None if no number does.
    """

    plan: WorkersPlan
    rate: float
    workers: int | None

    @property
    def cost_per_hour(self) -> float | None:
        """Price of the workers; None if either is unknown."""
        return None if self.plan.price is None or self.workers is None else self.plan.price * self.workers


@dataclass(frozen=True)
class Provisioning:
    """The outcome of :func:`~kvgym.studies.capacity.provisioning.provision`.

    Attributes:
        scenario: the scenario with its load, on the first hardware.
        targets: the targets.
        rate: λ, arrivals per second.
        num_requests: requests of the load.
        mean_output: mean output length, tokens.
        workers: rates of one worker, by hardware and policy.
        plans: plans by hardware, policy and router.
        windows: plans by hardware, policy, router and time; empty unless requested.
        probes: the runs of the searches for numbers of workers, with their hardware.
        notes: changes to the workload and excluded policies, one sentence each.
        points: numbers of workers at other rates, by plan and rate; empty unless requested.
        fleets: plans for workers that come and go, by hardware, policy, router and rule; empty unless requested.
    """

    scenario: Scenario
    targets: tuple[Target, ...]
    rate: float
    num_requests: int
    mean_output: float
    workers: tuple[WorkerEstimates, ...]
    plans: tuple[WorkersPlan, ...]
    windows: tuple[WindowPlan, ...]
    probes: tuple[tuple[str, Probe], ...]
    notes: tuple[str, ...]
    points: tuple[LoadPoint, ...] = ()
    fleets: tuple[FleetPlan, ...] = ()

    def cost_per_million_tokens(self, plan: WorkersPlan | LoadPoint) -> float | None:
        """Return the cost of a million output tokens at the rate of a plan or a point; None if it is unknown."""
        cost, rate = plan.cost_per_hour, plan.rate if isinstance(plan, LoadPoint) else self.rate
        return None if cost is None else cost / (rate * self.mean_output * 3600 / 1e6)

    def label(self, plan: WorkersPlan | FleetPlan) -> str:
        """Return the policy of a plan, with its router and hardware where plans differ in them."""
        several = [len({getattr(p, name) for p in self.plans}) > 1 for name in ("router", "hardware")]
        router = f" via {plan.router}" if several[0] else ""
        return f"{plan.policy}{router}" + (f" on {hardware_label(plan.hardware)}" if several[1] else "")

    def answers(self) -> list[str]:
        """Return the outcome of each plan in a line, the cheapest first, or without prices that with fewest workers."""

        def key(plan: WorkersPlan) -> tuple[float, float]:
            cost, count = plan.cost_per_hour, plan.simulated
            return math.inf if cost is None else cost, math.inf if count is None else count

        return [f"{self.label(plan)}: {self._answer(plan)}" for plan in sorted(self.plans, key=key)]

    def _answer(self, plan: WorkersPlan) -> str:
        if plan.simulated is None:
            return "no number of workers that was tried meets the targets"
        parts = [f"{plan.simulated:,} worker{'s' if plan.simulated > 1 else ''}"]
        cost, tokens = plan.cost_per_hour, self.cost_per_million_tokens(plan)
        if cost is not None and tokens is not None:
            parts += [f"{_amount(cost)} per hour", f"{_amount(tokens)} per million output tokens"]
        return ", ".join(parts)

    def windows_of(self, plan: WorkersPlan) -> tuple[WindowPlan, ...]:
        """Return the windows of a plan, in order of time."""
        own = (plan.hardware, plan.policy, plan.router)
        return tuple(w for w in self.windows if (w.hardware, w.policy, w.router) == own)

    def window_summary(self, plan: WorkersPlan) -> WindowSummary | None:
        """Return peak, 95 % and mean of a plan's windows; None without windows, or if a window has no number."""
        return WindowSummary.of(self.windows_of(plan))

    def summary(self) -> dict[str, Any]:
        """Return everything but the single runs, JSON-able."""
        content: dict[str, Any] = jsonable({
            "targets": [str(target) for target in self.targets],
            "rate": self.rate,
            "num_requests": self.num_requests,
            "mean_output_len": self.mean_output,
            "workers": [{**vars(w), "estimates": [vars(e) for e in w.estimates]} for w in self.workers],
            "plans": [
                {
                    **vars(plan),
                    "cost_per_hour": plan.cost_per_hour,
                    "cost_per_million_output_tokens": self.cost_per_million_tokens(plan),
                    "windows": None if (found := self.window_summary(plan)) is None else vars(found),
                }
                for plan in self.plans
            ],
            "rates": [
                {"plan": self.label(p.plan), "rate": p.rate, "workers": p.workers, "cost_per_hour": p.cost_per_hour}
                for p in self.points
            ],
            "fleets": [vars(plan) for plan in self.fleets],
            "notes": list(self.notes),
        })  # fmt: skip
        return content

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``provision.json``, ``estimates.csv``, ``probes.csv`` and ``config.json``.

        With windows also ``windows.csv``, with autoscalers ``fleets.csv``, with PyArrow ``probes.parquet``.

        Args:
            folder: created if missing.
            command: the command line, recorded in ``config.json``.

        Returns:
            The folder.
        """
        probes = Frame.from_rows({"hardware": hardware} | probe.row() for hardware, probe in self.probes)
        tables = {"estimates": Frame.from_rows(row for own in self.workers for row in own.rows())}
        if self.windows:
            tables["windows"] = Frame.from_rows(vars(w) for w in self.windows)
        if self.fleets:
            tables["fleets"] = Frame.from_rows(
                {
                    **{name: x for name, x in vars(plan).items() if name != "values"},
                    **{t.metric: plan.values.get(t.metric, math.nan) for t in self.targets},
                }
                for plan in self.fleets
            )
        return write_outcome(folder, "provision", self.summary(), self.scenario, command, probes, **tables)


def _amount(value: float) -> str:
    """Return an amount of money: two decimals, or three digits below 1."""
    return f"{value:,.2f}".removesuffix(".00") if value >= 1 else f"{value:.3g}"
