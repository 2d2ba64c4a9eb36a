"""What changed scenarios are called, and scenarios in a line: by what they are, not by what they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvgym.batch_time.deployments.load import hardware_label
from kvgym.batch_time.deployments.roofline_spec import is_roofline, roofline_options
from kvgym.experiments.scenario import Scenario
from kvgym.workloads.base import IntRange
from kvgym.workloads.describing import describe_requests


def name_of(changed: Scenario, base: Scenario) -> str:
    """Return the name of a scenario that was made from another one.

    With other hardware, or another batch-time model, it is named by that and its workload, as what the other is named
    by may be gone; else it is the other one, changed.
    """
    if (changed.hardware, changed.batch_time) == (base.hardware, base.batch_time):
        return f"{base.name}-changed"
    return f"{_served_name(changed)}-{_plain(changed.make_workload().spec.name)}"


def _served_name(scenario: Scenario) -> str:
    """Return hardware as shipped files are named, ``llama3-8b-a100-tp1``, a roofline too; else the kind of model."""
    hardware = scenario.hardware
    if hardware is None:
        return str(scenario.batch_time.get("kind", "?"))
    if not is_roofline(hardware):
        return _plain(hardware)
    given = roofline_options(hardware)
    parts = [_plain(str(given[name])) for name in ("model", "gpu")]
    return "-".join(
        [*parts, f"tp{given.get('tp', 1)}", *([str(given["weights"])] if "weights" in given else [])]
    )


def _plain(name: str) -> str:
    """Return a name, of a file without folder and ending."""
    path = Path(name)
    return path.stem if path.suffix in (".yaml", ".yml", ".csv", ".jsonl", ".parquet") else name


def describe_hardware(scenario: Scenario) -> str:
    """Return what serves: hardware, memory, engine."""
    system = scenario.make_system()
    where = hardware_label(scenario.hardware) or scenario.batch_time.get("kind") or _of_groups(scenario)
    engine = with_engine(scenario) if isinstance(scenario.workers, int) else ""
    blocks = f" in blocks of {system.block_size}" if system.block_size > 1 else ""
    memory = scenario.kv_capacity
    capacity = (
        f"{memory.low:,} to {memory.high:,}" if isinstance(memory, IntRange) else f"{system.kv_capacity:,}"
    )
    return f"{where} (M = {capacity}{blocks}{engine})"


def with_engine(scenario: Scenario) -> str:
    """Return the engine of a scenario, to go on with: ``, engine early-2024``, or its figures; "" for none."""
    engine = scenario.resolved().engine
    if isinstance(engine, dict):
        figures = {name: value for name, value in engine.items() if isinstance(value, float | int)}
        return ", engine " + ", ".join(f"{name} = {value:g}" for name, value in figures.items())
    return "" if engine is None else f", engine {engine}"


def _of_groups(scenario: Scenario) -> str:
    """Return what workers have that are told in groups."""
    groups = () if isinstance(scenario.workers, int) else scenario.workers
    found = (hardware_label(group.hardware) or group.batch_time.get("kind") for group in groups)
    return " and ".join(dict.fromkeys(filter(None, found))) or "?"


def describe_cluster(scenario: Scenario, routers: Sequence[str] = ()) -> str:
    """Return how many workers there are and who routes, with a colon; "" for a single worker.

    Args:
        scenario: the scenario.
        routers: those that are compared, if not the scenario's own.
    """
    count, several = len(scenario.make_system().all_workers), len(routers) > 1
    if count == 1:
        return ""
    router = f"{len(routers)} routers" if several else (*routers, scenario.router)[0]
    return f"{count} workers, {router}: "


def describe_scenario(scenario: Scenario, routers: Sequence[str] = ()) -> str:
    """Return a scenario in a line: what serves which requests.

    Args:
        scenario: the scenario.
        routers: those that are compared, if not the scenario's own.
    """
    requests = describe_requests(scenario.make_workload())
    return f"{describe_cluster(scenario, routers)}{describe_hardware(scenario)}, {requests}"
