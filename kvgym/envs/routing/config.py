"""Configuration of the routing environment: JSON-able keyword arguments, validated once."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field

from kvgym.envs.routing.features import ROUTING_SETTINGS
from kvgym.envs.scheduling.config import EnvConfig, check_names, validated
from kvgym.envs.scheduling.drawing import episode_horizon
from kvgym.envs.scheduling.tables import REWARD_TERMS
from kvgym.errors import ConfigError, shown
from kvgym.experiments.fleet.groups import WorkerGroup
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.scenario_options import OVERLOAD_SCENARIO
from kvgym.simulator.system import System
from kvgym.utils.reading import Description
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

INFORMATION = {
    "predicted_length": "predicted_output_len",
    "length_interval": "predicted_low",
    "true_length": "output_len",
    "class": "class_id",
    "slo": "",
}
"""Information about requests that can be revealed, and the column of the request table that it requires."""


class RoutingConfig(Description):
    """Keyword arguments of ``kvgym/Route-v0``.

    Attributes:
        scenario: name or YAML file of the base scenario; the fields below override it.
        workers: number of equal workers or groups of workers, see
            :class:`~kvgym.experiments.scenario.Scenario`; None = 4, or the scenario's if that is a cluster.
        policy: the scheduler on every worker, a compiled one (``kvgym list policies``), with hyperparameters as
            in ``"alpha_greedy:alpha=0.3"``.
        hardware: name or file of calibrated hardware.
        engine: engine on that hardware: its name, ``"none"``, or its figures.
        batch_time: description of a batch-time model, or options of the hardware's model.
        kv_capacity: KV memory of a worker, tokens.
        block_size: tokens of a memory block.
        workload: preset or description.
        num_requests: requests per episode.
        rate: requests per second of the whole cluster. None = the workload's, times the number of workers if the
            scenario has only one worker and no trace with its own times.
        system: engine settings that override the scenario's (``first_token``, ``transfer_latency``, ...).
        observation: ``"flat"`` Box, ``"dict"`` of Boxes, or ``"rllib"``: dict of observations and mask.
        information: information about requests revealed to the agent, subset of :data:`INFORMATION`; the workers'
            scheduler gets all that it needs regardless.
        reward: weight of each reward term, see :data:`kvgym.envs.scheduling.tables.REWARD_TERMS`.
        reward_scale: terms are divided by this; None = requests per episode, so that the undiscounted return
            of the latency term is minus the mean end-to-end latency in seconds.
        horizon: seconds after which an episode is truncated; None = the scenario's, else ten times the nominal
            arrival span plus 600 s.
        stall_limit: consecutive decisions of a worker without a new token after which an episode is truncated;
            None = the scenario's.
        time_scale: scale of features that are times, seconds: x is observed as x / (x + scale).
        caches: whether the agent observes the prefix caches, and how fast each worker is. It switches prefix caches on;
            give a workload with common prefixes, such as ``"coding-agent"``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    scenario: str = OVERLOAD_SCENARIO
    workers: Annotated[int, Field(ge=2)] | tuple[WorkerGroup, ...] | None = None
    policy: str = "mc_sf"
    hardware: str | None = None
    engine: str | dict[str, Any] | None = None
    batch_time: dict[str, Any] | None = None
    kv_capacity: int | None = Field(default=None, ge=2)
    block_size: int | None = Field(default=None, ge=1)
    workload: str | dict[str, Any] | None = None
    num_requests: int | None = Field(default=None, ge=1)
    rate: float | None = Field(default=None, gt=0)
    system: dict[str, Any] = Field(default_factory=dict)
    observation: Literal["flat", "dict", "rllib"] = "flat"
    information: tuple[str, ...] = ("predicted_length",)
    reward: dict[str, float] = Field(default_factory=lambda: {"latency": 1.0})
    reward_scale: float | None = Field(default=None, gt=0)
    horizon: float | None = Field(default=None, gt=0)
    stall_limit: int | None = Field(default=None, ge=1)
    time_scale: float = Field(default=10.0, gt=0)
    caches: bool = True

    @classmethod
    def of(cls, **arguments: Any) -> RoutingConfig:
        """Validate keyword arguments.

        Raises:
            ConfigError: an argument is invalid; the error names it and the valid ones.
        """
        config = validated(cls, arguments)
        check_names("information", config.information, INFORMATION)
        check_names("reward term", config.reward, REWARD_TERMS)
        return config

    def make_scenario(self) -> Scenario:
        """Return the cluster scenario with the overrides of this configuration.

        Raises:
            ConfigError: no request has a choice between workers.
        """
        names = (
            "scenario",
            "hardware",
            "engine",
            "batch_time",
            "kv_capacity",
            "block_size",
            "workload",
            "num_requests",
            "rate",
            "system",
        )
        base = EnvConfig.of(**{name: getattr(self, name) for name in names}).make_scenario()
        alone = base.workers == 1
        workers: Any = self.workers if self.workers is not None else 4 if alone else base.workers
        if isinstance(workers, tuple):
            workers = [group.model_dump() for group in workers]
        scenario = base.override(workers=workers)
        if self.caches and scenario.system.prefix_cache == "off":
            rules = {**scenario.system.model_dump(), "prefix_cache": "computed"}
            scenario = scenario.override(system=rules)
        system = scenario.make_system()
        if system.host_memory is not None:
            raise ConfigError("environments do not have host_memory; leave it out of their scenarios")
        if system.fleet is not None:
            raise ConfigError(
                "kvgym/Route-v0 routes in clusters with fixed workers; expected groups without most, or kvgym/Scale-v0"
            )
        if system.knowledge is not None:
            raise ConfigError("kvgym/Route-v0 shows the present to one agent; expected no knowledge")
        count, prefill = len(system.all_workers), system.num_prefill_workers
        if max(prefill, count - prefill) < 2:
            raise ConfigError(f"{count} workers, {prefill} of them for prefill, leave no choice to a router")
        rate = scenario.make_workload().spec.mean_rate  # NaN for a trace with its own times
        if alone and self.rate is None and np.isfinite(rate) and rate > 0:
            assert isinstance(scenario.workload, dict)
            scenario = scenario.override(workload={**scenario.workload, "rate": rate * count})
        return scenario

    def make_system(self, scenario: Scenario, workload: Workload, episode_requests: int) -> System:
        """Return the cluster of the episodes, with a horizon so that every episode ends."""
        system = scenario.make_system()
        horizon = episode_horizon(self.horizon, system, workload, episode_requests)
        limit = self.stall_limit if self.stall_limit is not None else system.stall_limit
        return replace(system, horizon=horizon, stall_limit=limit)

    def make_settings(self, system: System, episode_requests: int, mean_rate: float) -> np.ndarray:
        """Return the settings the compiled code reads, dtype ROUTING_SETTINGS, shape (1,)."""
        settings = np.zeros(1, ROUTING_SETTINGS)
        s = settings[0]
        smallest = float(system.batch_time(num_decodes=1, decode_context=1))
        s["time_scale"] = self.time_scale
        s["duration_scale"] = max(smallest, 1e-6)
        s["rate_scale"] = mean_rate if np.isfinite(mean_rate) and mean_rate > 0 else 1.0
        s["reward_scale"] = self.reward_scale if self.reward_scale is not None else max(episode_requests, 1)
        s["weights"] = [self.reward.get(name, 0.0) for name in REWARD_TERMS]
        for field, name in (
            ("show_predicted", "predicted_length"),
            ("show_interval", "length_interval"),
            ("show_output", "true_length"),
            ("show_class", "class"),
            ("show_slo", "slo"),
        ):
            s[field] = name in self.information
        return settings

    def check_information(self, table: RequestTable) -> None:
        """Check that the requests have the information to be revealed.

        Raises:
            ConfigError: they do not.
        """
        for name in self.information:
            column = INFORMATION[name]
            if column and getattr(table, column) is None:
                raise ConfigError(
                    f"information has {shown(name)}, but the requests have no {column}; leave it out of information "
                    "or choose a workload that provides it"
                )
