"""What provisioning gives: plans with costs, what one worker serves, windows, files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgym.experiments.capacity.estimates import OBVIOUS, SOUND, WorkerEstimates
from kvgym.experiments.capacity.probing import Probe, Quest
from kvgym.experiments.capacity.targets import Target
from kvgym.experiments.capacity.windows import Profile, WindowPlan
from kvgym.experiments.result_files import jsonable, run_context, write_json, write_table
from kvgym.experiments.scenario import Scenario
from kvgym.theory.stability import provision
from kvgym.utils.frame import Frame


@dataclass(frozen=True)
class Plan:
    """How many workers a load needs with a policy, a router and hardware.

    Attributes:
        hardware: its name.
        policy: label of the policy.
        router: label of the router.
        by_theory: ⌈λ/μ⌉ with the mean batch time of the saturated load; None where it could not run.
        obvious: ⌈λ/μ⌉ with the median of the load as it is; None where it could not run.
        by_targets: ⌈λ/λ₁⌉ with λ₁ the rate up to which one worker holds the targets; None where it holds none.
        simulated: the smallest number that holds the targets, with all larger ones that were tried; None where none
            does.
        one_fewer: what the largest smaller number that was tried misses.
        values: metrics of the targets at ``simulated``.
        price: of a worker per hour; None where it was not given.
        notes: what a reader should know.
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
    ) -> Plan:
        """Sum up a search for the smallest number of workers."""
        enough, few = quest.search.bracket()
        sound, obvious = own.find(*SOUND), own.find(*OBVIOUS)
        metrics = {} if enough is None else quest.probes[enough].played.record.metrics
        notes = []
        if surprises := quest.search.surprises():
            fewer = ", ".join(f"{count:.0f}" for count in surprises)
            notes.append(f"not monotone: {fewer} held the targets though {few:.0f} did not.")
        if enough is None:
            assert few is not None
            notes.append(f"no number up to {few:.0f} holds the targets.")
        return cls(
            hardware=own.hardware,
            policy=own.policy,
            router=quest.contender.router_label,
            by_theory=None if sound is None else sound.workers,
            obvious=None if obvious is None else obvious.workers,
            by_targets=provision(rate, own.target_rate) if own.target_rate > 0 else None,
            simulated=None if enough is None else int(enough),
            one_fewer=() if few is None else quest.probes[few].verdict.reasons,
            values={t.metric: metrics.get(t.metric, float("nan")) for t in targets},
            price=price,
            notes=tuple(notes),
        )

    @property
    def cost_per_hour(self) -> float | None:
        """Price of the simulated number of workers; None where either is not known."""
        return None if self.price is None or self.simulated is None else self.price * self.simulated


@dataclass(frozen=True)
class Provisioning:
    """The outcome of :func:`~kvgym.experiments.capacity.provisioning.provision`.

    Attributes:
        scenario: the scenario with its load, on the first hardware.
        targets: the targets.
        rate: λ, arrivals per second.
        num_requests: requests of the load.
        mean_output: mean output length, tokens.
        workers: what one worker serves, by hardware and policy.
        plans: by hardware, policy and router.
        windows: by hardware, policy, router and time; empty unless asked for.
        probes: the runs of the searches for numbers of workers, with the hardware.
        notes: what happened to the workload, policies left out, one sentence each.
    """

    scenario: Scenario
    targets: tuple[Target, ...]
    rate: float
    num_requests: int
    mean_output: float
    workers: tuple[WorkerEstimates, ...]
    plans: tuple[Plan, ...]
    windows: tuple[WindowPlan, ...]
    probes: tuple[tuple[str, Probe], ...]
    notes: tuple[str, ...]

    def cost_per_million_tokens(self, plan: Plan) -> float | None:
        """Return the cost of a million output tokens at the rate of the load; None where no cost is known."""
        cost = plan.cost_per_hour
        return None if cost is None else cost / (self.rate * self.mean_output * 3600 / 1e6)

    def windows_of(self, plan: Plan) -> tuple[WindowPlan, ...]:
        """Return the windows of a plan, in time."""
        whose = (plan.hardware, plan.policy, plan.router)
        return tuple(w for w in self.windows if (w.hardware, w.policy, w.router) == whose)

    def profile(self, plan: Plan) -> Profile | None:
        """Return peak, 95 % and mean of a plan's windows; None without windows, or where one has no number."""
        return Profile.of(self.windows_of(plan))

    def summary(self) -> dict[str, Any]:
        """Return everything but the single runs, JSON-able."""
        return {
            "targets": [str(target) for target in self.targets],
            "rate": self.rate,
            "num_requests": self.num_requests,
            "mean_output_len": self.mean_output,
            "workers": [
                jsonable({**vars(w), "estimates": [vars(e) for e in w.estimates]}) for w in self.workers
            ],
            "plans": [
                jsonable(
                    {
                        **vars(plan),
                        "cost_per_hour": plan.cost_per_hour,
                        "cost_per_million_output_tokens": self.cost_per_million_tokens(plan),
                        "windows": None if (found := self.profile(plan)) is None else found.row(),
                    }
                )
                for plan in self.plans
            ],
            "notes": list(self.notes),
        }

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Write ``provision.json``, ``estimates.csv``, ``probes.csv`` and ``config.json``.

        With windows also ``windows.csv``, with PyArrow ``probes.parquet``.

        Args:
            folder: created if missing.
            command: the command line that led here, kept in ``config.json``.

        Returns:
            The folder.
        """
        probes = Frame.from_rows({"hardware": hardware} | probe.row() for hardware, probe in self.probes)
        path = write_table(folder, "probes", probes)
        Frame.from_rows(row for own in self.workers for row in own.rows()).write_csv(path / "estimates.csv")
        if self.windows:
            Frame.from_rows(vars(w) for w in self.windows).write_csv(path / "windows.csv")
        config = {"scenario": self.scenario.model_dump(mode="json"), **run_context(command)}
        write_json(path / "provision.json", self.summary())
        write_json(path / "config.json", config)
        return path
