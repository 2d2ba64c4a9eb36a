"""Scenarios: a deployment, a workload and the schedulers to compare on it, by name or from a YAML file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from kvgym.batch_time import BatchTimeModel, make_batch_time
from kvgym.batch_time.deployments.deployment import Hardware, RooflineHardware
from kvgym.batch_time.deployments.described import HardwareName
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError, UnknownNameError, field_errors, shown
from kvgym.experiments.caches.host_memory import HostMemorySettings
from kvgym.experiments.caches.notes import cache_notes
from kvgym.experiments.fleet.groups import Engine as Engine
from kvgym.experiments.fleet.groups import FleetSettings, Served, WorkerGroup
from kvgym.experiments.fleet.knowledge import KnowledgeSettings
from kvgym.experiments.fleet.rules import SystemSettings as SystemSettings
from kvgym.experiments.scenario_options import DEFAULT_SCENARIO as DEFAULT_SCENARIO
from kvgym.policies.routing import DEFAULT_ROUTER, Router, make_router
from kvgym.simulator.drafts.settings import make_speculation
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.recording.window import Extent, Window, parse_extent
from kvgym.simulator.system import MAX_WORKERS, System, Worker
from kvgym.utils.arguments import explained
from kvgym.utils.checks import MAX_SEEDS
from kvgym.utils.reading import Description, parse_fields, read_text, shipped_texts, validate_fields
from kvgym.utils.resources import check_memory
from kvgym.workloads.base import IntRange
from kvgym.workloads.instances import draw_capacity
from kvgym.workloads.lengths import FillLengths
from kvgym.workloads.limits import LengthLimits
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload, describe_workload, make_workload

COMPARED = ("mc_sf", "mc_benchmark", "fcfs", "alpha_greedy", "alpha_beta", "sarathi", "vllm_v1")
"""Default policies of a scenario: the schedulers of its paper, and schedulers in production use."""


class Scenario(Description):
    """A deployment, a workload and policies: JSON-able, frozen, unknown keys are rejected.

    Attributes:
        name: id.
        summary: one line; may be omitted.
        hardware: name or path of a hardware file, or a roofline, ``{model: llama3-70b, gpu: h200, tp: 4}`` with the
            options of :class:`~kvgym.batch_time.deployments.described.Described`; None if ``batch_time`` is
            given.
        engine: overhead of the engine per batch, outside the GPU: a name in the hardware file, ``"none"``, or
            figures (``base_ms``, ``per_request_ms``), see :mod:`kvgym.batch_time.hardware.overhead`; None = the
            hardware file's default, with composition ``"vidur"`` ``"none"``.
        batch_time: description of a batch-time model that replaces the hardware's, see
            :func:`kvgym.batch_time.make_batch_time`; or, with ``hardware``, its ``composition``.
        kv_capacity: KV memory in tokens; None = the hardware's. A range, ``{low: 30, high: 50}``, is drawn for every
            seed (:meth:`of_seed`); environments, capacity and tuning, which need one system for all seeds, use its
            middle.
        workload: preset name, trace file or description, see :func:`kvgym.workloads.make_workload`; in a file, the
            path of a trace is relative to the folder of that file.
        system: rules of the engine.
        workers: a number of equal workers, or groups of workers (prefill workers first); 1 = no cluster. Groups with
            ``most`` are pools of a fleet, with workers that start and stop.
        host_memory: KV memory below that of each worker; None = none.
        fleet: what these pools share; None = nothing but defaults.
        autoscaler: autoscaler of a fleet; None = the workers of the start stay.
        router: router of a cluster, which assigns requests to workers (``kvgym list routers``).
        knowledge: what routers and an autoscaler know of the workers; None = the present.
        policies: default policies of ``kvgym compare``.
        too_long: what to do with requests if prompt + output exceed the KV capacity: ``"error"``, ``"drop"`` or
            ``"clip"`` (the prompt first); both are noted.
        seeds: default number of seeds; seeds are 0, 1, …
        warm_up: measurement starts this many seconds, or requests (``"200r"``), after the first arrival, see
            :class:`kvgym.simulator.recording.window.Window`; None with None for ``cool_down`` = whole runs. Capacity,
            provisioning, bounds and environments use whole runs.
        cool_down: measurement ends this many seconds, or requests, before the last arrival.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str = ""
    hardware: HardwareName | None = None
    engine: Engine = None
    batch_time: dict[str, Any] = Field(default_factory=dict)
    kv_capacity: Annotated[int, Field(ge=2)] | IntRange | None = None
    workload: str | dict[str, Any]
    system: SystemSettings = SystemSettings()
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | tuple[WorkerGroup, ...] = 1
    host_memory: HostMemorySettings | None = None
    fleet: FleetSettings | None = None
    autoscaler: str | None = None
    router: str = DEFAULT_ROUTER
    knowledge: KnowledgeSettings | None = None
    policies: tuple[str, ...] = COMPARED
    too_long: Literal["error", "drop", "clip"] = "error"
    seeds: int = Field(default=5, ge=1, le=MAX_SEEDS)
    warm_up: Extent | None = None
    cool_down: Extent | None = None

    @field_validator("warm_up", "cool_down")
    @classmethod
    def _extent(cls, value: Extent | None, info: ValidationInfo) -> Extent | None:
        """Reject values that are neither seconds nor requests."""
        if value is not None:
            parse_extent(value, str(info.field_name))
        return value

    @field_validator("kv_capacity", mode="before")
    @classmethod
    def _range(cls, value: Any) -> Any:
        """Parse a range first, so that an error in it is named."""
        capacity = IntRange(**value) if isinstance(value, Mapping) else value
        if isinstance(capacity, IntRange) and capacity.low < 2:
            raise ValueError(f"memory must have at least 2 tokens, got low = {capacity.low}")
        return capacity

    @field_validator("workers", mode="before")
    @classmethod
    def _groups(cls, value: Any) -> Any:
        """Parse groups one by one, so that an error in one is named."""
        if not isinstance(value, list | tuple):
            return value
        groups = []
        for k, group in enumerate(value):
            try:
                groups.append(WorkerGroup.model_validate(group))
            except ValidationError as error:
                valid = ", ".join(WorkerGroup.model_fields)
                wrong = field_errors(error, WorkerGroup, group)[0]
                raise ValueError(f"group {k}: {wrong}; fields: {valid}") from None
        return tuple(groups)

    def of_seed(self, seed: int) -> Scenario:
        """Return the scenario of a seed: with a drawn memory if it is a range, else the scenario itself.

        Lengths of kind ``fill``, which fill the memory, are computed for the drawn memory.
        """
        if not isinstance(self.kv_capacity, IntRange):
            return self
        drawn = draw_capacity(self.kv_capacity, seed)
        changes: dict[str, Any] = {"kv_capacity": drawn}
        if isinstance(self.make_workload().spec.lengths, FillLengths):
            described = describe_workload(self.workload)
            lengths = {**(described.get("lengths") or {}), "kv_capacity": drawn}
            changes["workload"] = {**described, "lengths": lengths}
        return self.override(**changes)

    @property
    def _capacity(self) -> int | None:
        """The memory, or the middle of its range."""
        given = self.kv_capacity
        return (given.low + given.high) // 2 if isinstance(given, IntRange) else given

    @property
    def _num_workers(self) -> int:
        return self.workers if isinstance(self.workers, int) else sum(group.places for group in self.workers)

    @property
    def has_fleet(self) -> bool:
        """Whether workers start, stop or fail, or users give up."""
        groups = () if isinstance(self.workers, int) else self.workers
        troubled = self.fleet is not None and self.fleet.troubled
        return troubled or any(group.most is not None for group in groups)

    def make_system(self) -> System:
        """Return the system.

        Raises:
            ConfigError: the description is contradictory or incomplete.
        """
        settings = {k: v for k, v in self.system.model_dump().items() if v is not None}
        if self.system.speculation is not None:
            settings["speculation"] = make_speculation(self.system.speculation)
        if not self.has_fleet and (self.fleet or self.autoscaler):
            raise ConfigError(
                f"scenario {shown(self.name)}: fleet and autoscaler need groups of workers with most, as in "
                "workers: [{count: 2, most: 8}], or a fleet with failures or users"
            )
        if self.knowledge is not None and self.workers != 1:
            settings["knowledge"] = self.knowledge.knowledge()
        if self.host_memory is not None:
            settings["host_memory"] = self.host_memory.memory(self.served[0].loaded)
        if isinstance(self.workers, int):
            kv_capacity, model = self._worker(self.served[0], self._capacity)
            system = System(kv_capacity=kv_capacity, batch_time=model, **settings)
            if self.has_fleet:
                return dataclasses.replace(system.replicate(self.workers), fleet=self._fleet())
            return system if self.workers == 1 else system.replicate(self.workers)
        for name in ("hardware", "engine"):
            if getattr(self, name) is not None and all(_stands_alone(group) for group in self.workers):
                raise ConfigError(
                    f"scenario {shown(self.name)}: {name} = {shown(getattr(self, name))} applies to no worker, as "
                    f"all groups have their own hardware or batch_time; give the {name} to the groups"
                )
        workers: list[Worker] = []
        for group in self.workers:
            capacity = group.kv_capacity or (self._capacity if group.hardware is None else None)
            workers += [Worker(*self._worker(self._group(group), capacity), group.role)] * group.places
        if self.has_fleet:
            settings["fleet"] = self._fleet()
        return System.cluster(workers, **settings)

    def _fleet(self) -> Fleet:
        """Return the fleet that the workers are."""
        groups = (WorkerGroup(count=self.workers),) if isinstance(self.workers, int) else self.workers
        shared = self.fleet or FleetSettings()
        return shared.fleet(tuple(group.pool(shared, self._group(group).loaded) for group in groups))

    def _group(self, group: WorkerGroup) -> Served:
        """Return what a group of workers has."""
        if _stands_alone(group):
            return Served(group.hardware, group.engine, group.batch_time)
        engine = self.engine if group.engine is None else group.engine
        return Served(self.hardware, engine, {**self.batch_time, **group.batch_time})

    def _worker(self, served: Served, capacity: int | None) -> tuple[int, BatchTimeModel]:
        """Return the KV capacity and the batch-time model of a worker."""
        hardware, engine, batch_time = served
        if engine is not None and (hardware is None or "kind" in batch_time):
            raise ConfigError(
                f"scenario {shown(self.name)}: engine = {shown(engine)} needs hardware; a batch_time with a "
                "kind has its own overhead"
            )
        if hardware is None:
            if "kind" not in batch_time or capacity is None:
                raise ConfigError(
                    f"scenario {shown(self.name)} needs either hardware, or batch_time with a kind and kv_capacity"
                )
            return capacity, make_batch_time(batch_time)
        loaded = load_hardware(hardware)
        self._check_options(batch_time)
        return capacity or loaded.kv_capacity, loaded.batch_time(engine=engine, **batch_time)

    def _check_options(self, batch_time: Mapping[str, Any]) -> None:
        """Reject options that calibrated hardware does not accept."""
        if other := batch_time.keys() - {"composition"}:
            raise ConfigError(
                f"scenario {shown(self.name)}: batch_time with hardware accepts only composition, "
                f"got {', '.join(sorted(other))}; set the overhead of an engine with the field engine: a name, or "
                "base_ms and per_request_ms"
            )

    def resolved(self) -> Scenario:
        """Return the scenario with the engine of its hardware named, for records.

        Raises:
            ConfigError: the description is contradictory or incomplete.
        """
        changes: dict[str, Any] = {"engine": self.engine}
        if isinstance(self.workers, int) or not all(_stands_alone(group) for group in self.workers):
            changes["engine"] = self._engine_of(Served(self.hardware, self.engine, self.batch_time))
        if not isinstance(self.workers, int):
            changes["workers"] = tuple(
                group.model_copy(update={"engine": self._engine_of(self._group(group))})
                for group in self.workers
            )
        return self.model_copy(update=changes)

    @property
    def served(self) -> tuple[Served, ...]:
        """What every group of workers has."""
        if isinstance(self.workers, int):
            return (Served(self.hardware, self.engine, self.batch_time),)
        return tuple(self._group(group) for group in self.workers)

    def _engine_of(self, served: Served) -> Engine:
        """Return the engine of a worker, by name if it has one; None = the worker has no hardware."""
        if served.engine is not None or served.hardware is None or "kind" in served.batch_time:
            return served.engine
        self._check_options(served.batch_time)
        return load_hardware(served.hardware).default_engine(**served.batch_time)

    def make_router(self) -> Router | None:
        """Return the router, None for one worker."""
        return None if self.workers == 1 else make_router(self.router)

    @property
    def heading(self) -> str:
        """Name and, if there is one, the summary."""
        return f"{self.name}: {self.summary}" if self.summary else self.name

    @property
    def window(self) -> Window | None:
        """The measured part of a run; None = all of it."""
        if self.warm_up is None and self.cool_down is None:
            return None
        return Window(self.warm_up or 0.0, self.cool_down or 0.0)

    def make_workload(self) -> Workload:
        """Return the workload."""
        return make_workload(self.workload)

    @property
    def replays(self) -> bool:
        """Whether a trace is replayed with its own times: all seeds have the same requests."""
        spec = self.make_workload().spec
        return spec.replays and spec.arrivals is None

    def requests(self, workload: Workload, seed: int, kv_capacity: int) -> RequestTable:
        """Return the requests of a seed; those that can never be served are treated as ``too_long`` says."""
        return self.fitting(workload.sample(seed), kv_capacity)

    def fitting(self, table: RequestTable, kv_capacity: int) -> RequestTable:
        """Return requests, with those that can never be served treated as ``too_long`` says."""
        if self.too_long == "error":
            return table
        drafted = make_speculation(self.system.speculation)
        most = kv_capacity - (0 if drafted is None else drafted.memory)
        return LengthLimits(max_total_len=most, policy=self.too_long).apply(table)

    def sample(self, workload: Workload, seed: int, kv_capacity: int) -> RequestTable:
        """Return the :meth:`requests` of a seed for a comparison.

        Notes of the table mention what is not validated, requests that were changed and hardware, and a prefix cache
        that is off or finds nothing.

        Raises:
            KVGymError: the requests cannot be drawn, or do not fit into free memory.
        """
        if isinstance(workload.spec.num_requests, int):
            check_memory(workload.spec.num_requests, self._num_workers, kv_capacity)
        table = self.requests(workload, seed, kv_capacity)
        notes = [f"{hardware.description}: {hardware.kind}." for hardware in self._rooflines()]
        notes += cache_notes(table, self.system.prefix_cache, workload.spec.replays)
        return table.replace(notes=(*table.notes, *notes)) if notes else table

    def _rooflines(self) -> list[Hardware]:
        """Return the hardware of the workers that is a roofline, without measurements."""
        different = {served.hardware: served for served in self.served if "kind" not in served.batch_time}
        loaded = (served.loaded for served in different.values())
        return [hardware for hardware in loaded if isinstance(hardware, RooflineHardware)]

    def notes(self, table: RequestTable) -> tuple[str, ...]:
        """Return notes on the requests of a seed: their own notes, and which part of them is measured.

        Raises:
            ConfigError: no request is measured.
        """
        if self.window is None:
            return table.notes
        return (*table.notes, self.window.note(table, closed=self.system.sessions == "closed"))

    def override(self, **changes: Any) -> Scenario:
        """Return the scenario with some fields replaced (None = keep).

        Other hardware or another composition uses its own engine, unless one is given. A roofline without
        model or GPU takes all missing options from the scenario's hardware, which must be a roofline too.

        Raises:
            ConfigError: a field is wrong, or the roofline is incomplete.
        """
        given = {k: v for k, v in changes.items() if v is not None}
        if hardware := given.get("hardware"):
            name = HardwareName.of(hardware) if isinstance(hardware, Mapping) else HardwareName(hardware)
            if name.described:
                given = {"batch_time": {}, **given, "hardware": name.completed(self.hardware)}
        if any(
            given.get(name, getattr(self, name)) != getattr(self, name) for name in ("hardware", "batch_time")
        ):
            given = {"engine": None, **given}
        return _validate({**self.model_dump(), **given}, self.name)


def _stands_alone(group: WorkerGroup) -> bool:
    """Whether a group of workers takes neither hardware nor engine from the scenario."""
    return group.hardware is not None or "kind" in group.batch_time


def scenario_names() -> dict[str, str]:
    """Return the scenarios that come with kvgym and their summaries, the default scenario first."""
    names = sorted(shipped_texts("scenario"), key=lambda name: (name != DEFAULT_SCENARIO, name))
    return {name: _load_name(name).summary for name in names}


@explained
def load_scenario(name_or_path: str | Path) -> Scenario:
    """Return a scenario by name, or from a YAML file (a path, or a name ending in .yaml or .yml).

    Raises:
        UnknownNameError: no scenario with that name comes with kvgym.
        ConfigError: the file cannot be read or a field is wrong.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        return _parse(read_text(path, "scenario file"), str(path), path.stem, path.parent)
    return _load_name(name_or_path)


@functools.lru_cache(maxsize=64)
def _load_name(name: str) -> Scenario:
    if name not in shipped_texts("scenario"):
        raise UnknownNameError("scenario", name, shipped_texts("scenario"))
    return _parse(shipped_texts("scenario")[name], f"{name}.yaml", name)


def _parse(text: str, origin: str, name: str, folder: Path | None = None) -> Scenario:
    content = {"name": name, **parse_fields(text, f"scenario file {origin}")}
    return _validate(content if folder is None else located(content, folder), origin)


def located(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the fields of a scenario from a file, ready for :class:`Scenario`.

    The path of a trace is relative to the folder of the file. Its requests are the same under every seed, so the
    default is one seed.

    Args:
        content: the fields.
        folder: folder of the file.

    Raises:
        ConfigError: the workload mixes forms.
    """
    source = content.get("workload")
    workload = describe_workload(source) if isinstance(source, str | Mapping) else {}
    lengths = workload.get("lengths")
    if not isinstance(lengths, Mapping) or lengths.get("kind") != "trace" or "path" not in lengths:
        return dict(content)
    workload["lengths"] = {**lengths, "path": str(folder / str(lengths["path"]))}
    seeds = {} if "arrivals" in workload or lengths.get("mode") == "resample" else {"seeds": 1}
    return {**seeds, **content, "workload": workload}


def _validate(content: Mapping[str, Any], origin: str) -> Scenario:
    return validate_fields(Scenario, content, f"scenario {origin}")
