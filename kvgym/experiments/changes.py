"""Scenarios with some things changed, by the names that the command line and sweeps know them by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from kvgym.errors import ConfigError, shown
from kvgym.experiments.naming import describe_scenario, name_of
from kvgym.experiments.scenario import Scenario, load_scenario
from kvgym.utils.specs import parse_spec
from kvgym.window import Extent
from kvgym.workloads.workload import describe_workload


def build_scenario(
    scenario: str | Scenario,
    *,
    hardware: str | None = None,
    engine: str | None = None,
    batch_time: str | None = None,
    kv_capacity: int | None = None,
    block_size: int | None = None,
    workload: str | None = None,
    trace: Path | None = None,
    trace_format: str = "auto",
    columns: str | None = None,
    time_unit: str | None = None,
    rate_scale: float = 1.0,
    rate: float | None = None,
    num_requests: int | None = None,
    predictions: str | None = None,
    ttft_slo: float | None = None,
    tbt_slo: float | None = None,
    too_long: str = "error",
    workers: int | None = None,
    router: str | None = None,
    horizon: float | None = None,
    warm_up: Extent | None = None,
    cool_down: Extent | None = None,
) -> Scenario:
    """Return a scenario with some things changed; None = as they are.

    Args:
        scenario: a scenario, its name or file.
        hardware: another hardware, with its own engine and KV capacity unless they are given too; or what is different
            about the scenario's roofline, ``"roofline:tp=8"``.
        engine: name of an engine in the hardware file, ``"none"``, or figures as in ``"base_ms=5"``.
        batch_time: spec of a batch-time model instead of the hardware's, ``"affine:constant=0.02"``.
        kv_capacity: KV memory, tokens.
        block_size: tokens of a block of it.
        workload: a preset instead of the scenario's workload.
        trace: file to replay instead.
        trace_format: format of it, or of the scenario's own trace; so with the next three.
        columns: names of its columns, ``"arrival=ts,prompt=input_tokens,output=output_tokens"``; those of the scenario
            that are not named stay.
        time_unit: unit of its times, ``"ms"`` for example.
        rate_scale: how many times as fast it is replayed.
        rate: requests per second.
        num_requests: number of requests, of a trace the first ones.
        predictions: spec of what schedulers know of output lengths, ``"noisy:epsilon=0.5"``.
        ttft_slo: target of the time to first token of every request, seconds.
        tbt_slo: target of the time between tokens of every request, seconds.
        too_long: see :class:`~kvgym.experiments.scenario.Scenario`; ``"error"`` also where the scenario differs.
        workers: number of equal workers.
        router: which of them serves a request.
        horizon: seconds after which a run stops.
        warm_up: how much is not measured at the beginning of a run, ``30`` or ``"200r"``.
        cool_down: the same at its end.

    Raises:
        ConfigError: something does not go together or is out of range.
        UnknownNameError: there is no such scenario.
    """
    base = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    if too_long not in ("error", "drop", "clip"):
        raise ConfigError(f"too_long = {too_long}: valid are error, drop, clip")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers}: expected a whole number ≥ 1")
    if router is not None and (base.workers if workers is None else workers) == 1:
        raise ConfigError(f"router = {shown(router)} goes with a cluster; add workers, 4 say")
    if workload is not None and trace is not None:
        raise ConfigError("workload and trace exclude each other: a trace is the workload")
    changes: dict[str, Any] = {
        "hardware": hardware, "kv_capacity": kv_capacity, "workers": workers, "router": router, "warm_up": warm_up,
        "cool_down": cool_down,
    }  # fmt: skip
    if engine is not None:
        if batch_time is not None:
            raise ConfigError("engine and batch_time exclude each other: an engine is part of the hardware's")
        changes["engine"] = parse_spec(f"engine:{engine}", "engine")[1] if "=" in engine else engine
    if horizon is not None and not horizon > 0:
        raise ConfigError(f"horizon = {horizon}: expected seconds > 0")
    if block_size is not None and block_size < 1:
        raise ConfigError(f"block_size = {block_size}: expected a whole number of tokens ≥ 1")
    rules = {"horizon": horizon, "block_size": block_size}
    if given := {name: value for name, value in rules.items() if value is not None}:
        changes["system"] = {**base.system.model_dump(), **given}
    if hardware is not None and "kind" in base.batch_time:
        changes["batch_time"] = {}
    updated = base.override(**changes)
    if batch_time is not None:
        kind, options = parse_spec(batch_time, "batch-time model")
        on_hardware = updated.model_copy(update={} if hardware is None else {"kv_capacity": kv_capacity})
        capacity = kv_capacity or on_hardware.make_system().kv_capacity
        updated = updated.override(batch_time={"kind": kind, **options}, kv_capacity=capacity)
        updated = updated.model_copy(update={"hardware": None, "engine": None})
    elif hardware is not None and kv_capacity is None:
        updated = updated.model_copy(update={"kv_capacity": None})
    source = describe_workload(base.workload if workload is None else workload)
    if trace is not None:
        source = describe_workload({"trace": str(trace)})
    before = dict(source)
    _tell_of_trace(
        source,
        format=None if trace_format == "auto" else trace_format,
        columns=None if columns is None else parse_columns(columns),
        time_unit=time_unit,
        rate_scale=None if rate_scale == 1.0 else rate_scale,
    )
    if rate is not None:
        source["rate"] = rate
    for name, seconds in (("ttft_slo", ttft_slo), ("tbt_slo", tbt_slo)):
        if seconds is not None:
            if not 0 < seconds < math.inf:
                raise ConfigError(f"{name} = {seconds}: expected seconds > 0")
            source[name] = seconds
    if num_requests is not None:
        source.pop("duration", None)
        source["num_requests"] = num_requests
    if predictions is not None:
        kind, options = parse_spec(predictions, "prediction")
        source["predictions"] = {"kind": kind, **options}
    if any(source.get(name) != before.get(name) for name in ("lengths", "rate", "num_requests", "duration")):
        source.pop("description", None)  # it may say what holds no longer
    updated = updated.override(
        workload=source if source != describe_workload(base.workload) else None, too_long=too_long
    )
    if updated != base:
        name = trace.stem if trace is not None else name_of(updated, base)
        updated = updated.model_copy(update={"name": name, "summary": describe_scenario(updated)})
    return updated


def _tell_of_trace(source: dict[str, Any], **told: Any) -> None:
    """Put what is told of a trace (None = nothing) into the description of the workload that it is.

    Raises:
        ConfigError: the workload is no trace.
    """
    given = {name: value for name, value in told.items() if value is not None}
    lengths = source.get("lengths") or {}
    if not given:
        return
    if lengths.get("kind") != "trace":
        where = ", ".join("trace_format" if name == "format" else name for name in given)
        hint = "; use rate (--rate) with other workloads" if "rate_scale" in given else ""
        raise ConfigError(
            f"{where}: for traces, and this workload is none; give one with trace (--trace){hint}"
        )
    if "columns" in given:
        given["columns"] = {**(lengths.get("columns") or {}), **given["columns"]}
    source["lengths"] = {**lengths, **given}


def parse_columns(text: str) -> dict[str, str]:
    """Read ``arrival=NAME,prompt=NAME``.

    Raises:
        ConfigError: it is not of that form, or a column is named twice.
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
