"""Apply options to a scenario."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvgym.batch_time.deployments.described import HardwareName
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.experiments.describing import describe_scenario, name_of
from kvgym.experiments.disaggregation import link_settings, roles, split_workers
from kvgym.experiments.fleet.choices import with_fleet
from kvgym.experiments.fleet.knowledge import with_knowledge
from kvgym.experiments.scenario import Scenario, SystemSettings, load_scenario
from kvgym.experiments.scenario_options import RULES, UNCHANGED, ScenarioOptions
from kvgym.utils.specs import parse_spec
from kvgym.workloads.inference_perf import SUFFIXES, read_specification
from kvgym.workloads.workload import describe_workload


def build_scenario(
    scenario: str | Scenario, options: ScenarioOptions = UNCHANGED, /, **fields: Any
) -> Scenario:
    """Return a scenario with options applied.

    Args:
        scenario: a scenario, its name or file.
        options: the options.
        **fields: fields of :class:`~kvgym.experiments.scenario_options.ScenarioOptions` that replace those of
            ``options``.

    Raises:
        ConfigError: options contradict each other, or a value is out of range.
        UnknownNameError: the scenario does not exist.
    """
    options = replace(options, **fields)
    base = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    if options.too_long not in ("error", "drop", "clip"):
        raise ConfigError(f"too_long = {options.too_long}: valid are error, drop, clip")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"workers = {options.workers}: expected a whole number ≥ 1")
    groups = split_workers(base, options)
    alone = options.fleet is None and (groups or options.workers or base.workers) == 1
    for name in ("router", "router_view", "routers", "scrape"):
        if alone and getattr(options, name) is not None:
            raise ConfigError(
                f"{name} = {shown(getattr(options, name))} needs a cluster; add workers, as in workers = 4"
            )
    if options.workload is not None and options.trace is not None:
        raise ConfigError("workload and trace exclude each other: a trace is the workload")
    if options.engine is not None and options.batch_time is not None:
        raise ConfigError("engine and batch_time exclude each other: an engine is part of the hardware's")
    if options.horizon is not None and not options.horizon > 0:
        raise ConfigError(f"horizon = {options.horizon}: expected seconds > 0")
    if options.block_size is not None and options.block_size < 1:
        raise ConfigError(f"block_size = {options.block_size}: expected a whole number of tokens ≥ 1")
    updated = _cached(base, options, _change_workload(_change_system(base, options, groups), options))
    if updated != base:
        name = options.trace.stem if options.trace is not None else name_of(updated, base)
        updated = updated.model_copy(update={"name": name, "summary": describe_scenario(updated)})
    return updated


def _change_system(base: Scenario, options: ScenarioOptions, groups: list[dict[str, Any]] | None) -> Scenario:
    """Return a scenario with other hardware, memory, engine rules, workers, link or window."""
    changed = _change_workers(base, options, groups)
    changed = with_fleet(changed, options.fleet, options.startup, options.autoscaler)
    changed = with_knowledge(changed, options.router_view, options.routers, options.scrape)
    if options.link is None and options.hardware is None and any(roles(base)):
        return changed  # the scenario has its own link
    settings = link_settings(changed, options.link)
    return changed.override(system={**changed.system.model_dump(), **settings}) if settings else changed


def _change_workers(
    base: Scenario, options: ScenarioOptions, groups: list[dict[str, Any]] | None
) -> Scenario:
    """Return a scenario with other hardware, memory, engine rules, workers or window."""
    hardware, kv_capacity, engine = options.hardware, options.kv_capacity, options.engine
    changes: dict[str, Any] = {
        "hardware": hardware, "kv_capacity": kv_capacity, "workers": groups or options.workers,
        "router": options.router, "warm_up": options.warm_up, "cool_down": options.cool_down,
    }  # fmt: skip
    if engine is not None:
        changes["engine"] = parse_spec(f"engine:{engine}", "engine")[1] if "=" in engine else engine
    settings = {name: getattr(options, name, None) for name in SystemSettings.model_fields}
    settings["speculation"] = options.speculate
    given = {name: value for name, value in settings.items() if value is not None}
    rules = _rules(base, options)
    if options.host_memory is not None:
        changes["host_memory"] = {"gib": options.host_memory}
        given = {"prefix_cache": "scheduled", **given}
    if "prefix_block" in given or "cache_rule" in given:
        as_engine = rules.get("output_kv") == "next_iteration" and "cache_rule" not in given
        given = {"prefix_cache": "scheduled" if as_engine else "computed", **given}
    if given := {**rules, **given}:
        changes["system"] = {**base.system.model_dump(), **given}
        if given.get("prefix_cache") == "off":
            changes["system"].update(prefix_block=None, cache_rule=given.get("cache_rule", "lru"))
    if hardware is not None and "kind" in base.batch_time:
        changes["batch_time"] = {}
    updated = base.override(**changes)
    if options.batch_time is not None:
        kind, settings = parse_spec(options.batch_time, "batch-time model")
        on_hardware = updated.model_copy(update={} if hardware is None else {"kv_capacity": kv_capacity})
        capacity = kv_capacity or on_hardware.make_system().kv_capacity
        updated = updated.override(batch_time={"kind": kind, **settings}, kv_capacity=capacity)
        return updated.model_copy(update={"hardware": None, "engine": None})
    if hardware is not None and kv_capacity is None:
        return updated.model_copy(update={"kv_capacity": None})
    return updated


def _rules(base: Scenario, options: ScenarioOptions) -> dict[str, Any]:
    """Return the rules that the options choose: by name, or for a roofline in a scenario that does not state any."""
    if options.rules is not None:
        if options.rules not in RULES:
            raise UnknownNameError("rules", options.rules, RULES)
        return RULES[options.rules]
    if not HardwareName(options.hardware or "").described or (base.hardware and base.hardware.described):
        return {}
    stated = base.system.model_fields_set if "system" in base.model_fields_set else set()
    engine = RULES["engine"]
    if any(
        getattr(base.system, name) != value
        for name, value in engine.items()
        if name in stated - {"block_size"}
    ):
        return {}
    return {name: value for name, value in engine.items() if name not in stated}


def _cached(base: Scenario, options: ScenarioOptions, changed: Scenario) -> Scenario:
    """Return a scenario with the engine's prefix cache if it was given the engine's rules and requests share hashes."""
    given = (options.prefix_cache, options.prefix_block, options.cache_rule, options.host_memory)
    stated = any(value is not None for value in given) or "prefix_cache" in base.system.model_fields_set
    if stated or _rules(base, options).get("output_kv") != "next_iteration" or not _has_hashes(changed):
        return changed
    return changed.override(system={**changed.system.model_dump(), "prefix_cache": "scheduled"})


def _has_hashes(scenario: Scenario) -> bool:
    """Return whether the requests have block hashes, which say what they share."""
    workload = scenario.make_workload()
    recorded = workload.trace is not None and workload.spec.replays and "hashes" in workload.trace.extra
    return workload.spec.prefixes is not None or recorded


def _change_workload(base: Scenario, options: ScenarioOptions) -> Scenario:
    """Return a scenario with another workload, or with parts of its workload changed."""
    own = describe_workload(base.workload)
    source = dict(own)
    if options.workload is not None:
        source = describe_workload(options.workload)
    elif options.trace is not None:
        specified = options.trace.suffix.lower() in SUFFIXES
        source = (
            read_specification(options.trace)
            if specified
            else describe_workload({"trace": str(options.trace)})
        )
    before = dict(source)
    _set_trace_options(
        source,
        format=None if options.trace_format == "auto" else options.trace_format,
        columns=None if options.columns is None else parse_columns(options.columns),
        time_unit=options.time_unit,
        rate_scale=None if options.rate_scale == 1.0 else options.rate_scale,
        shared_prefix=options.shared_prefix,
    )
    if options.rate is not None:
        source["rate"] = options.rate
    for name in ("ttft_slo", "tbt_slo", "e2e_slo"):
        seconds = getattr(options, name)
        if seconds is not None:
            if not 0 < seconds < math.inf:
                raise ConfigError(f"{name} = {seconds}: expected seconds > 0")
            source[name] = seconds
    if options.num_requests is not None:
        source.pop("duration", None)
        source["num_requests"] = options.num_requests
    if options.predictions is not None:
        kind, settings = parse_spec(options.predictions, "prediction")
        source["predictions"] = {"kind": kind, **settings}
    if any(source.get(name) != before.get(name) for name in ("lengths", "rate", "num_requests", "duration")):
        source.pop("description", None)  # it may no longer be true
    return base.override(workload=source if source != own else None, too_long=options.too_long)


def _set_trace_options(source: dict[str, Any], **options: Any) -> None:
    """Apply trace options to the description of a workload; None leaves a field unchanged.

    Raises:
        ConfigError: the workload is not a trace.
    """
    given = {name: value for name, value in options.items() if value is not None}
    lengths = source.get("lengths") or {}
    if not given:
        return
    if lengths.get("kind") != "trace":
        where = ", ".join("trace_format" if name == "format" else name for name in given)
        hint = "; use rate (--rate) for other workloads" if "rate_scale" in given else ""
        raise ConfigError(
            f"{where}: only for traces, and this workload is not a trace; give one with trace (--trace){hint}"
        )
    if "columns" in given:
        given["columns"] = {**(lengths.get("columns") or {}), **given["columns"]}
    source["lengths"] = {**lengths, **given}


def parse_columns(text: str) -> dict[str, str]:
    """Parse ``arrival=NAME,prompt=NAME``.

    Raises:
        ConfigError: the text has another form, or a column is named twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        key, _, name = (piece.strip() for piece in part.partition("="))
        if not key or not name or key in found:
            wrong = "is given twice" if key in found else "is not column=name"
            raise ConfigError(
                f"columns {shown(text)}: {shown(part.strip())} {wrong}; write "
                "arrival=timestamp,prompt=input_tokens,output=…"
            )
        found[key] = name
    return found
