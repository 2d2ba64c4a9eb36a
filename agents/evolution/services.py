"""Random training services, drawn from families of scenarios with random places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from kvgym.agents.evolution.capacity import sustained_rate
from kvgym.agents.evolution.drawing import draw, extremes, generator, typical
from kvgym.agents.runs.config import Part
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.policies.routing import Router
from kvgym.simulator.system import System
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import describe_workload, make_workload


class Family(Part):
    """Services of one kind: a scenario with fixed or random changes (:mod:`.drawing`).

    Attributes:
        name: for records; "" = the scenario's.
        weight: share of the services, relative to the other families.
        scenario: name or file of the scenario to change.
        hardware: as in a scenario, e.g. ``{choice: [llama2-70b-a100-tp2, llama3-8b-a100-tp1]}``.
        engine: as in a scenario.
        batch_time: as in a scenario.
        kv_capacity: as in a scenario.
        workload: as in a scenario; replaces the scenario's.
        system: changed rules of the engine, e.g. ``{block_size: 16}``.
        workers: as in a scenario.
        router: as in a scenario.
        too_long: ``"drop"`` or ``"clip"`` requests that do not fit into memory.
        rate: arrivals per second of the served requests, e.g. ``{log_uniform: [8, 25]}``.
        load: the rate as a multiple of the sustained rate (:mod:`.capacity`), instead of ``rate``; without either the
            workload keeps its arrivals.
    """

    name: str = ""
    weight: float = Field(default=1.0, gt=0)
    scenario: str = OVERLOAD_SCENARIO
    hardware: Any = None
    engine: Any = None
    batch_time: Any = None
    kv_capacity: Any = None
    workload: Any = None
    system: dict[str, Any] = Field(default_factory=dict)
    workers: Any = None
    router: Any = None
    too_long: Literal["drop", "clip"] = "drop"
    rate: Any = None
    load: Any = None

    def check(self, place: str, *, clusters: bool = False, fleets: bool = False) -> None:
        """Check everything that the family can draw.

        Args:
            place: path in the configuration, for messages.
            clusters: whether every service needs several workers.
            fleets: whether every service needs workers that start and stop.

        Raises:
            ConfigError: a value is wrong; the message has its place.
        """
        if self.rate is not None and self.load is not None:
            raise ConfigError(f"{place}: rate and load are both given; choose one of them")
        for name in ("rate", "load"):
            given = getattr(self, name)
            for value in extremes(given, f"{place}.{name}"):
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if given is not None and not (number and 0 < value < math.inf):
                    raise ConfigError(
                        f"{place}.{name}: expected a number > 0, or a range of such; got {shown(value)}"
                    )
        for drawn in extremes(self._random(), place):
            try:
                scenario = self._scenario(drawn)
                system, workload = scenario.make_system(), make_workload(scenario.workload)
                if self.load is not None and system.num_prefill_workers:
                    raise ConfigError(
                        "load is not defined for separate prefill and decode workers; give a rate"
                    )
                if (self.load or self.rate) and not math.isfinite(workload.mean_rate):
                    raise ConfigError("the workload has no rate to change; use e.g. Poisson arrivals")
                scenario.make_router()
                if clusters and len(system.all_workers) == 1:
                    raise ConfigError("a service has one worker and nothing to route; give workers, e.g. 4")
                if fleets and system.fleet is None:
                    raise ConfigError(
                        "a service has nothing to scale; give workers with most, as in [{count: 2, most: 8}]"
                    )
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None

    def draw(self, seed: int, index: int) -> tuple[Scenario, dict[str, float]]:
        """Return the scenario of a service, and its ``rate`` or ``load`` if given."""
        place = f"families.{index}"
        return self._scenario(draw(self._random(), seed, place)), draw(self._wanted(), seed, place)

    def typical(self) -> Scenario:
        """Return a service in the middle of the family, with its rate in the workload."""
        scenario = self._scenario(typical(self._random()))
        rate = self._rate(typical(self._wanted()), scenario.make_system(), self.typical_requests())
        if rate is None:
            return scenario
        return scenario.override(workload={**describe_workload(scenario.workload), "rate": rate})

    def environment(self) -> dict[str, Any]:
        """Return arguments of an environment for a service in the middle of the family, with one worker."""
        found = typical(self._random())
        found.pop("workers", None), found.pop("router", None)
        rate = self._rate(
            typical(self._wanted()), self._scenario(found).make_system(), self.typical_requests()
        )
        return {"scenario": self.scenario, **found, **({} if rate is None else {"rate": rate})}

    def typical_requests(self) -> RequestTable:
        """Return the requests of a service in the middle of the family, at the rate of its workload."""
        scenario = self._scenario(typical(self._random()))
        return scenario.sample(scenario.make_workload(), 0, scenario.make_system().usable_capacity)

    def _wanted(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rate", "load") if getattr(self, name) is not None}

    @staticmethod
    def _rate(wanted: Mapping[str, float], system: System, table: RequestTable) -> float | None:
        """Return arrivals per second, None to keep the workload's."""
        if "load" in wanted:
            return wanted["load"] * sustained_rate(system, table)
        return wanted.get("rate")

    def _random(self) -> dict[str, Any]:
        """Return the fields with random places, without the rate."""
        names = ("hardware", "engine", "batch_time", "kv_capacity", "workload", "workers", "router", "system")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _scenario(self, drawn: Mapping[str, Any]) -> Scenario:
        base = load_scenario(self.scenario)
        system = {**base.system.model_dump(), **drawn.get("system", {})}
        return base.override(**{**drawn, "system": system, "too_long": self.too_long})


class Services(Part):
    """A distribution of services.

    Attributes:
        families: at least one.
    """

    families: tuple[Family, ...] = Field(min_length=1)

    def check(self, place: str = "services", *, clusters: bool = False, fleets: bool = False) -> None:
        """Check all families.

        Args:
            place: path in the configuration, for messages.
            clusters: whether every service needs several workers.
            fleets: whether every service needs workers that start and stop.

        Raises:
            ConfigError: a value is wrong; the message has its place.
        """
        for i, family in enumerate(self.families):
            family.check(f"{place}.families.{i}", clusters=clusters, fleets=fleets)

    def draw(self, seed: int) -> Service:
        """Return the service of a seed; equal seeds give equal bits.

        Args:
            seed: non-negative; for the description, the requests and the policy.

        Raises:
            ConfigError: no request of the service fits into its memory.
        """
        shares = list(itertools.accumulate(f.weight for f in self.families))
        place = generator(seed, "family").random() * shares[-1]
        index = next((i for i, share in enumerate(shares) if place < share), len(shares) - 1)
        family = self.families[index]
        scenario, wanted = family.draw(seed, index)
        system, workload = scenario.make_system(), scenario.make_workload()
        sampled = workload.sample(seed)
        limits = LengthLimits(max_total_len=system.usable_capacity, policy=family.too_long)
        table = limits.apply(sampled)
        name = family.name or family.scenario
        if not len(table):
            raise ConfigError(
                f"services of family {shown(name)}, seed {seed}: no request fits into {system.usable_capacity:,} "
                "tokens; draw shorter prompts and outputs, or give limits to the workload"
            )
        rate = workload.mean_rate * len(table) / len(sampled)
        target = family._rate(wanted, system, table)
        if target is not None:
            table, rate = table.faster(target / rate), target
        return Service(seed, name, scenario, wanted.get("load"), rate, system, scenario.make_router(), table)


@dataclass(frozen=True)
class Service:
    """A random service, ready to run.

    Attributes:
        seed: its seed.
        family: name of its family.
        scenario: its description, without the rate.
        load: drawn multiple of the sustained rate; None if the family has no load.
        rate: arrivals per second of the requests in ``table``.
        system: worker or cluster.
        router: of a cluster.
        table: the requests.
    """

    seed: int
    family: str
    scenario: Scenario
    load: float | None
    rate: float
    system: System
    router: Router | None
    table: RequestTable

    @property
    def description(self) -> dict[str, Any]:
        """Description of the service, JSON-able."""
        return {
            "seed": self.seed, "family": self.family, "load": self.load, "rate": self.rate,
            "scenario": self.scenario.model_dump(mode="json"),
        }  # fmt: skip
