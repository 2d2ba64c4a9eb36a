"""What a scenario is made of, as pairs of a term and its description: for reports and lists."""

from __future__ import annotations

from typing import Any

from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.batch_time.deployments.load import hardware_label, load_hardware
from kvgym.errors import KVGymError
from kvgym.experiments.scenario import Scenario, WorkerGroup
from kvgym.workloads.base import IntRange

Row = tuple[str, str]


def hardware_of(scenario: Scenario) -> Hardware | None:
    """Return the hardware of a scenario, or None where it has none (any more)."""
    if scenario.hardware is None:
        return None
    try:
        return load_hardware(scenario.hardware)
    except KVGymError:
        return None


def what_serves(scenario: Scenario) -> list[Row]:
    """Return hardware, batch times, engine and, where they are told in groups, workers."""
    rows = []
    hardware = hardware_of(scenario)
    if hardware is not None:
        rows.append(("Hardware", f"{hardware.name}: {hardware.description}"))
        rows.append(("Batch time", f"{hardware.kind}; {hardware.source}"))
        rows.append(("Engine", _engine(scenario, hardware)))
    else:
        model = scenario.hardware or scenario.batch_time
        if model:
            rows.append(("Batch time", model if isinstance(model, str) else flat(model)))
    workers = scenario.resolved().workers
    if not isinstance(workers, int):
        rows.append(("Workers", "; ".join(map(_group, workers))))
    return rows


def memory(scenario: Scenario, capacity: int | None) -> list[Row]:
    """Return the KV memory of a worker.

    Args:
        scenario: the scenario.
        capacity: tokens, where no range is drawn from; None = not known, and no row.
    """
    blocks = f", in blocks of {scenario.system.block_size}" if scenario.system.block_size > 1 else ""
    given = scenario.kv_capacity
    if isinstance(given, IntRange):
        text = f"{given.low:,} to {given.high:,} tokens{blocks}, drawn with each seed"
        return [("KV capacity", text)]
    return [] if capacity is None else [("KV capacity", f"{capacity:,} tokens{blocks}")]


def rules(scenario: Scenario) -> list[Row]:
    """Return the rules of the engine."""
    return [("Engine rules", flat({k: v for k, v in scenario.system.model_dump().items() if v is not None}))]


def _engine(scenario: Scenario, hardware: Hardware) -> str:
    """Return what the engine adds to a batch, and what that was compared with."""
    resolved = scenario.resolved()
    name, overhead = hardware.chosen_engine(resolved.engine, **resolved.batch_time)
    checked = overhead.validated or "not validated against a running engine"
    return f"{f'{name}: ' if name else ''}{overhead.formula()} outside the GPU; {checked}"


def _group(group: WorkerGroup) -> str:
    """Return a group of workers in a few words: what it has of its own, and its engine."""
    model = hardware_label(group.hardware) or flat(group.batch_time)
    engine = group.engine if isinstance(group.engine, str) else flat(group.engine or {})
    parts = (f"{group.count} {group.role}", model, f"engine {engine}" if engine else "")
    return ", ".join(filter(None, parts))


def flat(value: Any) -> str:
    """Return nested options in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} = {flat(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flat(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
