"""Configuration of the scaling environment: JSON-able keyword arguments, validated once."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from kvgym.envs.scheduling.config import EnvConfig, validated
from kvgym.envs.scheduling.drawing import episode_horizon
from kvgym.errors import ConfigError, shown
from kvgym.experiments.fleet.choices import with_fleet
from kvgym.experiments.fleet.groups import StartUp, WorkerGroup
from kvgym.experiments.scenario import Scenario
from kvgym.policies.routing import DEFAULT_ROUTER, Router, make_router
from kvgym.simulator.system import System
from kvgym.utils.reading import Description
from kvgym.utils.seeding import stream
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

SCENARIO = "scale-day"
"""The default scenario."""

INTERVAL = 30.0
"""Seconds between actions, unless the scenario or an argument says otherwise."""

FLEET = "1-8"
"""Workers of a scenario without a fleet."""


class ScalingConfig(Description):
    """Keyword arguments of ``kvgym/Scale-v0``.

    Attributes:
        scenario: name or YAML file of the base scenario; the fields below override it.
        workers: groups of workers, those with ``most`` as pools of the fleet, see
            :class:`~kvgym.experiments.scenario.Scenario`; None = the scenario's.
        fleet: fewest and most workers of equal ones, as in ``"1-8"``; None = the scenario's fleet, or ``"1-8"`` if it
            has none.
        startup: start-up time: seconds, ``"prepared"``, ``"cold"``, or a median and a sigma; None = the scenario's.
        control: seconds between actions; None = the scenario's, or 30 s.
        router: the router, a compiled one (``kvgym list routers``); None = the scenario's.
        policy: the scheduler on every worker, a compiled one (``kvgym list policies``); None = the scenario's first.
        hardware: name or file of calibrated hardware.
        engine: engine on that hardware: its name, ``"none"``, or its figures.
        batch_time: description of a batch-time model, or options of the hardware's model.
        kv_capacity: KV memory of a worker, tokens.
        block_size: tokens of a memory block.
        workload: preset or description.
        num_requests: requests of the load.
        rate: requests per second of the whole fleet; None = the workload's.
        system: engine settings that override the scenario's.
        window: seconds of the load in an episode, which begins at a random time of it; None, or a load that is not
            longer = all of it.
        day: seconds of a day, for the time of day in the observation; None = the period of the arrivals, or 86,400 s.
        action: ``"change"`` of each pool's target, or ``"target"``.
        step: m: an action changes a target by -m … m workers.
        observation: ``"flat"`` Box, ``"dict"`` of Boxes, or ``"rllib"``: dict of observations and mask.
        reward_scale: rewards are divided by this; 1 = GPU-hours, so that the undiscounted return is minus
            ``fleet_cost``. The cost of the best fixed size makes returns of fleets comparable.
        horizon: seconds after which an episode is truncated; None = the scenario's, else ten times the nominal
            arrival span plus 600 s.
        stall_limit: consecutive decisions of a worker without a new token after which an episode is truncated;
            None = the scenario's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scenario: str = SCENARIO
    workers: tuple[WorkerGroup, ...] | None = None
    fleet: str | None = None
    startup: StartUp | None = None
    control: float | None = Field(default=None, gt=0)
    router: str | None = None
    policy: str | None = None
    hardware: str | None = None
    engine: str | dict[str, Any] | None = None
    batch_time: dict[str, Any] | None = None
    kv_capacity: int | None = Field(default=None, ge=2)
    block_size: int | None = Field(default=None, ge=1)
    workload: str | dict[str, Any] | None = None
    num_requests: int | None = Field(default=None, ge=1)
    rate: float | None = Field(default=None, gt=0)
    system: dict[str, Any] = Field(default_factory=dict)
    window: Annotated[float, Field(gt=0)] | None = 3600.0
    day: float | None = Field(default=None, gt=0)
    action: Literal["change", "target"] = "change"
    step: int = Field(default=4, ge=1, le=100)
    observation: Literal["flat", "dict", "rllib"] = "flat"
    reward_scale: float = Field(default=1.0, gt=0)
    horizon: float | None = Field(default=None, gt=0)
    stall_limit: int | None = Field(default=None, ge=1)

    @classmethod
    def of(cls, **arguments: Any) -> ScalingConfig:
        """Validate keyword arguments.

        Raises:
            ConfigError: an argument is invalid; the error names it and the valid ones.
        """
        return validated(cls, arguments)

    def make_scenario(self) -> Scenario:
        """Return the scenario of the fleet, with the overrides of this configuration.

        Raises:
            ConfigError: it has no fleet that can be scaled.
        """
        names = (
            "scenario", "hardware", "engine", "batch_time", "kv_capacity", "block_size", "workload", "num_requests",
            "rate", "system",
        )  # fmt: skip
        scenario = EnvConfig.of(**{name: getattr(self, name) for name in names}).make_scenario()
        if self.workers is not None:
            scenario = scenario.override(workers=[group.model_dump() for group in self.workers])
        size = FLEET if self.fleet is None and not scenario.has_fleet else self.fleet
        scenario = with_fleet(scenario, size, None, None)
        shared = {} if scenario.fleet is None else scenario.fleet.model_dump()
        given = {"startup": self.startup, "control": self.control}
        shared |= {name: value for name, value in given.items() if value is not None}
        shared["control"] = shared.get("control") or INTERVAL
        scenario = scenario.override(fleet=shared, router=self.router or scenario.router or DEFAULT_ROUTER)
        if scenario.system.sessions != "open":
            raise ConfigError(
                f"sessions = {shown(scenario.system.sessions)}; kvgym/Scale-v0 needs arrivals that do not depend on "
                "the fleet: expected open"
            )
        return scenario

    def make_router(self, scenario: Scenario) -> Router:
        """Return the router.

        Raises:
            ConfigError: it is not compiled.
        """
        router = make_router(scenario.router or DEFAULT_ROUTER)
        count = len(scenario.make_system().all_workers)
        router.reset(count, np.random.SeedSequence(0))
        if router.compiled_rule(count) is None:
            raise ConfigError(
                f"router {shown(router.info.name)} is plain Python; this environment needs a compiled one"
            )
        return router

    def make_system(self, scenario: Scenario, workload: Workload, episode_requests: int) -> System:
        """Return the fleet of the episodes, with a horizon so that every episode ends."""
        system = scenario.make_system()
        horizon = episode_horizon(self.horizon, system, workload, episode_requests)
        limit = self.stall_limit if self.stall_limit is not None else system.stall_limit
        return replace(system, horizon=horizon, stall_limit=limit)

    def day_of(self, workload: Workload) -> float:
        """Return the seconds of a day of the load."""
        arrivals = workload.spec.arrivals
        period = getattr(getattr(arrivals, "base", arrivals), "period", None)
        return float(self.day or period or 86_400.0)

    def stretch(self, table: RequestTable, seed: int) -> tuple[RequestTable, float]:
        """Return the requests of an episode, and when in the load it begins, seconds.

        Args:
            table: the requests of the load.
            seed: of the episode.
        """
        arrival = table.arrival_time
        span = float(arrival[-1]) if len(arrival) else 0.0
        if self.window is None or span <= self.window:
            return table, 0.0
        begin = float(stream(seed, "load").uniform(0.0, span - self.window))
        inside = slice(*np.searchsorted(arrival, [begin, begin + self.window]).tolist())
        chosen = table.select(inside)
        rates = None if table.rates is None else table.rates.later(begin)
        return chosen.replace(arrival_time=chosen.arrival_time - begin).with_rates(rates), begin
