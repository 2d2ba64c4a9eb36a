"""GPU-hours of a load on workers that come and go: tuned autoscalers, the best fixed size, and references."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.fleet.groups import StartUp
from kvgym.experiments.load.loads import Load
from kvgym.experiments.scenario import Scenario
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.policies.scaling import make_autoscaler
from kvgym.studies.capacity.entries import Entry
from kvgym.studies.capacity.hindsight import STEP, FleetRuns, plan_in_hindsight
from kvgym.studies.capacity.probing import Prober, Quest
from kvgym.studies.capacity.search import Rates, Search
from kvgym.studies.capacity.targets import Target
from kvgym.studies.capacity.windows import WindowSummary

FIXED, INSTANT, HINDSIGHT = "best fixed", "instant profile", "plan in hindsight"

WEIGHTS, CLOSE = 64.0, 0.1
"""Largest factor on the default of a weight that is tried, and share by which two may differ at the end."""

LEAST_SPANS = 24
"""Spans of time that a plan in hindsight has at least."""

MISSED = 1e6
"""GPU-hours that a plan which misses a target counts as, while one is searched for."""


@dataclass(frozen=True)
class FleetPlan:
    """What a load takes on workers that come and go.

    Attributes:
        hardware: name of the hardware.
        policy: label of the policy.
        router: label of the router.
        rule: the autoscaler with the setting that was found, :data:`FIXED`, :data:`INSTANT` or :data:`HINDSIGHT`.
        gpu_hours: billed from the order to start until off, or until the load is served; NaN if no setting meets the
            targets.
        workers: mean number that is ready.
        cost: of the load, by the price of a worker; None if it is unknown.
        values: metrics of the targets; empty for the instant profile.
        reference: whether no autoscaler could do so.
    """

    hardware: str
    policy: str
    router: str
    rule: str
    gpu_hours: float
    workers: float
    cost: float | None
    values: dict[str, float]
    reference: bool = False


@dataclass(frozen=True)
class FleetPlanner:
    """Plans for one load, policy and router.

    Attributes:
        load: the load.
        policy: the policy.
        router: the router.
        seed: seed of everything.
        fixed: the smallest number of workers that meets the targets if it does not change.
        most: places of the fleet.
        startup: start-up time of a worker, as in scenarios; None = their default.
        price: price of a worker per hour; None if unknown.
    """

    load: Load
    policy: Policy
    router: Router
    seed: int
    fixed: int
    most: int
    startup: StartUp | None = None
    price: float | None = None

    def scenario(self, autoscaler: str) -> Scenario:
        """Return the load on a fleet that begins with the fixed size."""
        base = self.load.at(self.load.rate, workers=1)
        group: dict[str, Any] = {} if isinstance(base.workers, int) else base.workers[0].model_dump()
        group.update(count=self.fixed, least=1, most=self.most)
        shared = {} if self.startup is None else {"startup": self.startup}
        return base.override(workers=[group], fleet=shared, autoscaler=autoscaler)

    def plans(
        self, autoscalers: Sequence[str], prober: Prober, instant: WindowSummary | None, hindsight: bool
    ) -> list[FleetPlan]:
        """Return the plan of the fixed size, of each autoscaler, and the references.

        Args:
            autoscalers: specs; one that sets its weight is run as it is.
            prober: runs the searches.
            instant: workers over the windows of the load; None = unknown.
            hindsight: also search for a plan.
        """
        fixed = f"fixed:workers={self.fixed}"
        quests = [self._quest(spec) for spec in (fixed, *autoscalers)]
        prober.pursue([quest for quest in quests if quest is not None])
        found = [
            self._found(spec, quest, prober.targets)
            for spec, quest in zip((fixed, *autoscalers), quests, strict=True)
        ]
        if instant is not None:
            hours = instant.mean * self._seconds / 3600 * self._gpus
            found.append(self._plan(INSTANT, hours, instant.mean, {}, reference=True))
        if hindsight:
            best = min(found[: len(quests)], key=lambda p: p.gpu_hours if p.gpu_hours >= 0 else math.inf)
            found.append(self._hindsight(fixed if best.rule == FIXED else best.rule, prober.targets))
        return found

    @functools.cached_property
    def _gpus(self) -> int:
        fleet = self.scenario("fixed").make_system().fleet
        assert fleet is not None
        return fleet.pools[0].gpus

    @functools.cached_property
    def _seconds(self) -> float:
        return float(self.load.at(self.load.rate).make_workload().sample(self.seed).arrival_time[-1])

    def _quest(self, spec: str) -> Quest:
        """Return the search for the largest weight of an autoscaler with which the targets are met."""
        rule = make_autoscaler(spec)
        weight = rule.info.weight
        searched = bool(weight) and weight not in rule.hyperparameters()
        start = float(rule.content()[weight]) if searched else 1.0

        @functools.cache
        def place(value: float) -> tuple[Scenario, float]:
            joint = "," if ":" in spec else ":"
            own = f"{spec}{joint}{weight}={value:.4g}" if searched else spec
            return self.scenario(own), self.load.rate

        scale = Rates(start / WEIGHTS, start * WEIGHTS, CLOSE) if searched else Rates(start, start)
        label = f"{label_of(self.policy)} via {label_of(self.router)}, {spec}"
        entry = Entry(label, self.policy, self.router, None)
        return Quest(Search(scale, start), entry, self.seed, place, sustained=False)

    def _found(self, spec: str, quest: Quest, targets: Sequence[Target]) -> FleetPlan:
        """Return the plan with the fewest GPU-hours of those that a search has tried and that meet the targets."""
        good = [probe for probe in quest.probes.values() if probe.verdict.held]
        if not good:
            return self._plan(spec, math.nan, math.nan, {t.metric: math.nan for t in targets})
        best = min(good, key=lambda probe: probe.played.record.metrics["gpu_hours"])
        scenario, _ = quest.place(best.value)
        assert scenario.autoscaler is not None
        rule = FIXED if scenario.autoscaler == f"fixed:workers={self.fixed}" else scenario.autoscaler
        known = make_autoscaler(scenario.autoscaler).info.clairvoyant
        return self._of_metrics(rule, best.played.record.metrics, targets, known)

    def _hindsight(self, first: str, targets: Sequence[Target]) -> FleetPlan:
        """Return the plan that a search finds, beginning with an autoscaler."""
        scenario = self.scenario("fixed")
        table = scenario.make_workload().sample(self.seed)
        runs = FleetRuns(scenario.make_system(), table, self.policy, self.router, self.seed)

        def cost(metrics: dict[str, float]) -> float:
            return metrics["gpu_hours"] + MISSED * sum(not target.met(metrics) for target in targets)

        _, metrics = plan_in_hindsight(runs, first, cost, step=min(STEP, self._seconds / LEAST_SPANS))
        return self._of_metrics(HINDSIGHT, metrics, targets, True)

    def _of_metrics(
        self, rule: str, metrics: dict[str, float], targets: Sequence[Target], reference: bool
    ) -> FleetPlan:
        values = {target.metric: metrics[target.metric] for target in targets}
        return self._plan(rule, metrics["gpu_hours"], metrics["ready_workers"], values, reference)

    def _plan(
        self, rule: str, hours: float, workers: float, values: dict[str, float], reference: bool = False
    ) -> FleetPlan:
        cost = None if self.price is None else hours / self._gpus * self.price
        hardware = self.load.scenario.hardware or ""
        names = hardware, label_of(self.policy), label_of(self.router)
        return FleetPlan(*names, rule, hours, workers, cost, values, reference)


def check_fleets(autoscalers: Sequence[str], startup: StartUp | None, hindsight: bool) -> None:
    """Check the arguments of plans for workers that come and go.

    Raises:
        ConfigError: an autoscaler is wrong or listed twice, or there is none while something needs one.
    """
    for spec in autoscalers:
        if make_autoscaler(spec).info.name in ("fixed", "plan"):
            raise ConfigError(f"autoscaler {spec}: the best fixed size is always there; expected a rule")
    if len(set(autoscalers)) < len(autoscalers):
        raise ConfigError(f"autoscalers {', '.join(autoscalers)}: expected all different")
    if not autoscalers and (startup is not None or hindsight):
        raise ConfigError("startup and hindsight are for workers that come and go; give --autoscaler")
