"""Names and descriptions of scenarios: in a line, or as pairs of a term and its description."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvgym.batch_time.deployments.deployment import Hardware
from kvgym.batch_time.deployments.load import hardware_label, load_hardware
from kvgym.batch_time.hardware.checkpoints import checkpoint_name
from kvgym.errors import KVGymError
from kvgym.experiments.disaggregation import describe_roles
from kvgym.experiments.fleet.groups import WorkerGroup
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.scenario_options import RULES
from kvgym.workloads.base import IntRange
from kvgym.workloads.describing import describe_requests

Row = tuple[str, str]
"""A term and its description."""

_SHOWN = 3  # engines named above a table


def name_of(changed: Scenario, base: Scenario) -> str:
    """Return a name for a modified scenario.

    With other hardware or another batch-time model, it is named after these and its workload, as the old name may no
    longer fit; otherwise the old name gets the suffix ``-changed``.
    """
    if (changed.hardware, changed.batch_time) == (base.hardware, base.batch_time):
        return f"{base.name}-changed"
    return f"{served_name(changed)}-{_plain(changed.make_workload().spec.name)}"


def served_name(scenario: Scenario) -> str:
    """Return the hardware or roofline as ``llama3-8b-a100-tp1``; without any, the kind of batch-time model."""
    hardware = scenario.hardware
    if hardware is None:
        return str(scenario.batch_time.get("kind", "?"))
    if not hardware.described:
        return _plain(hardware)
    given = hardware.options
    parts = [_plain(str(given[name])) for name in ("model", "gpu")]
    types = [
        f"{prefix}{given[name]}" for name, prefix in (("weights", ""), ("kv_dtype", "kv-")) if name in given
    ]
    return "-".join([*parts, f"tp{given.get('tp', 1)}", *types])


def _plain(name: str) -> str:
    """Return a name; for a file, without folder and extension; for a ``config.json`` that of its checkpoint."""
    path = Path(name)
    if path.suffix == ".json":
        return checkpoint_name(name)
    return path.stem if path.suffix in (".yaml", ".yml", ".csv", ".jsonl", ".parquet") else name


def describe_hardware(scenario: Scenario) -> str:
    """Return hardware and memory in a few words."""
    system = scenario.make_system()
    where = hardware_label(scenario.hardware) or scenario.batch_time.get("kind") or _of_groups(scenario)
    blocks = f" in blocks of {system.block_size}" if system.block_size > 1 else ""
    blocks += f", prefix cache in units of {system.prefix_unit}" if system.prefix_unit else ""
    memory = scenario.kv_capacity
    capacity = (
        f"{memory.low:,} to {memory.high:,}" if isinstance(memory, IntRange) else f"{system.kv_capacity:,}"
    )
    return f"{where} (M = {capacity}{blocks})"


def with_engine(scenario: Scenario) -> str:
    """Return the engine of a scenario to append to a text: ``, engine early-2024``, or its figures; "" for none."""
    engine = scenario.resolved().engine
    if isinstance(engine, dict):
        figures = {name: value for name, value in engine.items() if isinstance(value, float | int)}
        return ", engine " + ", ".join(f"{name} = {value:g}" for name, value in figures.items())
    return "" if engine is None else f", engine {engine}"


def engine_line(*scenarios: Scenario) -> str:
    """Return engine and kernels: ``engine vllm-2024: 1 ms per batch, 2024; kernels calibrated on A100 80GB``.

    Those of scenarios, or groups of workers, that differ follow each other; "" without hardware.
    """
    found = []
    for served in [workers for scenario in scenarios for workers in scenario.served]:
        if (hardware := served.loaded) is not None:
            name, overhead = hardware.chosen_engine(served.engine, **served.batch_time)
            figures = overhead.formula(layers=hardware.adds_layers)
            figures += f", {overhead.year}" if overhead.year is not None else ""
            found.append(f"engine {f'{name}: ' if name else ''}{figures}; {hardware.kernels}")
    different = list(dict.fromkeys(found))
    more = [f"{len(different) - _SHOWN} others"] if len(different) > _SHOWN else []
    return " | ".join([*different[:_SHOWN], *more])


_WRITTEN = {"next_iteration": "KV of a token an iteration later", "at_once": "KV of a token at once"}
_CACHES = {
    "off": "",
    "scheduled": ", prefix cache",
    "computed": ", prefix cache of computed blocks",
    "radix": ", prefix cache in a tree",
}


def rules_of(scenario: Scenario) -> str:
    """Return the rules of the engine in a few words: ``paper rules``, or what an eviction does.

    With an engine's rules it also says when KV is written, and names the prefix cache.
    """
    rules = scenario.system.model_dump()
    for name, settings in RULES.items():
        own = {field: value for field, value in settings.items() if field != "output_kv"}
        if own.items() <= rules.items():
            cache = _CACHES[rules["prefix_cache"]]
            return (
                f"engine rules: {_WRITTEN[rules['output_kv']]}{cache}"
                if name == "engine"
                else f"{name} rules"
            )
    return f"an eviction: progress {rules['progress_on_evict']}, requeue {rules['requeue']}"


def _speculation(scenario: Scenario) -> str:
    """Return the speculation of a scenario as the end of its rules, "" without it."""
    given = scenario.system.speculation
    named = given if isinstance(given, str) else flat(given or {})
    return f", speculation {named}" if given else ""


def titled(heading: str, *scenarios: Scenario) -> str:
    """Return the heading of a table, with engine, kernels and rules in a second line."""
    rules = " | ".join(dict.fromkeys(rules_of(one) + _speculation(one) for one in scenarios))
    return f"{heading}\n{'; '.join(filter(None, (engine_line(*scenarios), rules)))}"


def _of_groups(scenario: Scenario) -> str:
    """Return the hardware of groups of workers."""
    groups = () if isinstance(scenario.workers, int) else scenario.workers
    found = (hardware_label(group.hardware) or group.batch_time.get("kind") for group in groups)
    return " and ".join(dict.fromkeys(filter(None, found))) or "?"


def describe_cluster(scenario: Scenario, routers: Sequence[str] = ()) -> str:
    """Return the number of workers, their roles and their router, with a colon; "" for a single worker.

    Args:
        scenario: the scenario.
        routers: the routers that are compared; empty = the scenario's own.
    """
    count, several = len(scenario.make_system().all_workers), len(routers) > 1
    if count == 1:
        return ""
    router = f"{len(routers)} routers" if several else (*routers, scenario.router)[0]
    known = "" if scenario.knowledge is None else f" ({scenario.knowledge.knowledge().text})"
    return f"{_ranges(scenario) or describe_roles(scenario) or f'{count} workers'}, {router}{known}: "


def _ranges(scenario: Scenario) -> str:
    """Return the ranges of the pools of a fleet in words; "" without one."""
    if not scenario.has_fleet:
        return ""
    system = scenario.make_system()
    fleet, roles = system.fleet, [worker.role for worker in system.workers]
    assert fleet is not None
    names = [role if role != "mixed" else "workers" for role in roles]
    starts = [fleet.pool_of.index(g) for g in range(len(fleet.pools))]
    spans = (
        f"{p.least} to {p.most} {names[k]}" if p.least < p.most else f"{p.most} {names[k]}"
        for p, k in zip(fleet.pools, starts, strict=True)
    )
    return f"fleet of {', '.join(spans)}"


def describe_scenario(scenario: Scenario, routers: Sequence[str] = ()) -> str:
    """Return a scenario in a line: its hardware and its requests.

    Args:
        scenario: the scenario.
        routers: the routers that are compared; empty = the scenario's own.
    """
    requests = describe_requests(scenario.make_workload())
    return f"{describe_cluster(scenario, routers)}{describe_hardware(scenario)}, {requests}"


def hardware_of(scenario: Scenario) -> Hardware | None:
    """Return the hardware of a scenario, None if it has none or its file is missing."""
    if scenario.hardware is None:
        return None
    try:
        return load_hardware(scenario.hardware)
    except KVGymError:
        return None


def hardware_rows(scenario: Scenario) -> list[Row]:
    """Return hardware, batch times, engine and groups of workers."""
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
    if separate := describe_roles(scenario):
        rows.append(("Separate workers", separate))
    return rows


def memory_rows(scenario: Scenario, capacity: int | None) -> list[Row]:
    """Return the KV memory of a worker.

    Args:
        scenario: the scenario.
        capacity: tokens, unless drawn from a range; None = unknown, and no row.
    """
    system = scenario.system
    blocks = f", in blocks of {system.block_size}" if system.block_size > 1 else ""
    if system.prefix_cache != "off":
        blocks += f", with a prefix cache in units of {system.prefix_block or system.block_size}"
    if scenario.host_memory is not None:
        sizes = [
            f"{given.tokens:,} tokens" if given.gib is None else f"{given.gib:g} GiB"
            for given in scenario.host_memory.tiers
        ]
        blocks += f", and {sizes[0]} of host memory below it"
        blocks += "".join(f" with a store of {size}" for size in sizes[1:])
    drawn = scenario.kv_capacity
    if isinstance(drawn, IntRange):
        text = f"{drawn.low:,} to {drawn.high:,} tokens{blocks}, drawn with each seed"
        return [("KV capacity", text)]
    return [] if capacity is None else [("KV capacity", f"{capacity:,} tokens{blocks}")]


def rule_rows(scenario: Scenario) -> list[Row]:
    """Return the rules of the engine."""
    rules = {k: v for k, v in scenario.system.model_dump().items() if v is not None}
    if scenario.system.prefix_cache == "off":
        del rules["prefix_cache"], rules["cache_staleness"]
    if scenario.system.sessions == "open":
        del rules["sessions"]
    if scenario.system.cache_rule == "lru":
        del rules["cache_rule"]
    return [("Engine rules", flat(rules))]


def _engine(scenario: Scenario, hardware: Hardware) -> str:
    """Return the overhead of the engine per batch, and its validation."""
    resolved = scenario.resolved()
    name, overhead = hardware.chosen_engine(resolved.engine, **resolved.batch_time)
    checked = overhead.validated or "not validated against a running engine"
    figures = overhead.formula(layers=hardware.adds_layers)
    return f"{f'{name}: ' if name else ''}{figures}; {checked}"


def _group(group: WorkerGroup) -> str:
    """Return a group of workers in a few words: count, role, hardware and engine."""
    model = hardware_label(group.hardware) or flat(group.batch_time)
    engine = group.engine if isinstance(group.engine, str) else flat(group.engine or {})
    count = str(group.count) if group.most is None else f"{group.least} to {group.most}"
    parts = (f"{count} {group.role}", model, f"engine {engine}" if engine else "")
    return ", ".join(filter(None, parts))


def flat(value: Any) -> str:
    """Return nested options in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{k} = {flat(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flat(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
