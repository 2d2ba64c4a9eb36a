"""Details of a scenario or of hardware, as pairs of a term and its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgym.batch_time.deployments.deployment import CalibratedHardware, KernelHardware
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.experiments.describing import hardware_rows, memory_rows, rule_rows
from kvgym.experiments.scenario import load_scenario
from kvgym.workloads.describing import describe_spec
from kvgym.workloads.spec import WorkloadSpec

Row = tuple[str, str]

_SHOWN_CLASSES = 4


def scenario_facts(name: str) -> list[Row]:
    """Return the details of a scenario: hardware, requests, engine rules and compared policies.

    Args:
        name: name of a scenario that comes with kvgym, or a file.

    Raises:
        ConfigError: the scenario does not exist, or is contradictory.
    """
    scenario = load_scenario(name)
    system, spec = scenario.make_system(), scenario.make_workload().spec
    memories = sorted({worker.kv_capacity for worker in system.all_workers})
    rows = [("What it is", scenario.summary), *hardware_rows(scenario)]
    if len(memories) == 1:
        rows += memory_rows(scenario, memories[0])
    else:
        rows.append(("KV capacity", f"{' or '.join(f'{tokens:,}' for tokens in memories)} tokens, by worker"))
    count = len(system.all_workers)
    if isinstance(scenario.workers, int):
        rows.append(("Workers", f"{count}"))
    if count > 1:
        rows.append(("Router", scenario.router))
    rows.append(("Workload", describe_spec(spec)))
    rows += [(f"- {term.replace('_', ' ')}", text) for term, text in _parts(spec).items()]
    rows += rule_rows(scenario)
    rows.append(("Requests longer than memory", scenario.too_long))
    if scenario.window is not None:
        rows.append(
            (
                "Measured",
                f"from {scenario.warm_up or 0} after the start to {scenario.cool_down or 0} before the end",
            )
        )
    return [*rows, ("Policies", ", ".join(scenario.policies)), ("Seeds", str(scenario.seeds))]


def hardware_facts(name: str) -> list[Row]:
    """Return the details of hardware: figures, sources and errors.

    Args:
        name: name of hardware that comes with kvgym, a file, or a roofline.

    Raises:
        ConfigError: the hardware does not exist, or is wrong.
    """
    hardware = load_hardware(name)
    rows = [
        ("What it is", hardware.description),
        ("Batch time", hardware.kind),
        ("Model", _model(hardware.model)),
        ("GPU", f"{hardware.num_gpus} x {_gpu(hardware.gpu)}"),
        ("KV tokens", f"{hardware.kv_capacity:,}: {hardware.kv_capacity_origin}"),
        ("Source", hardware.source),
    ]
    errors: Mapping[str, Any] = {}
    if isinstance(hardware, CalibratedHardware):
        rows.append(("Calibrated on", hardware.date))
        errors = {group: error.model_dump() for group, error in hardware.fit_error.items()}
    if isinstance(hardware, KernelHardware):
        rows.append(("Kernels fitted on", hardware.operator_tables.date))
        errors = hardware.operator_tables.fit_error
    for engine, overhead in hardware.all_engines.items():
        default = " (default)" if engine == hardware.engine else ""
        checked = overhead.validated or "not validated against a running engine"
        source = f"; {overhead.source}" if overhead.source else ""
        rows.append(
            (
                f"Engine {engine}",
                f"{overhead.formula(layers=hardware.adds_layers)}{default}; {checked}{source}",
            )
        )
    rows += [
        (
            f"Error {group.replace('_', ' ')}",
            f"median {error['median']:.1%}, p95 {error['p95']:.1%} over {error['rows']:,} held-out rows",
        )
        for group, error in errors.items()
    ]
    if isinstance(hardware, CalibratedHardware):
        rows += [
            (f"Measured {quantity.replace('_', ' ')}", f"{low:,.0f} to {high:,.0f}")
            for quantity, (low, high) in hardware.valid_range.items()
        ]
    return rows


def _parts(spec: WorkloadSpec) -> dict[str, str]:
    """Return the parts of a workload that its description does not contain."""
    given = spec.model_dump(mode="json", exclude_none=True)
    usual = {name: field.default for name, field in WorkloadSpec.model_fields.items()}
    left_out = {"name", "description", *(("num_requests",) if isinstance(spec.num_requests, int) else ())}
    parts = {
        name: value
        for name, value in given.items()
        if name not in left_out and getattr(spec, name) != usual[name]
    }
    if len(spec.classes) > _SHOWN_CLASSES:
        parts["classes"] = f"{len(spec.classes)} of them"
    return {name: _part_text(value) for name, value in parts.items()}


def _part_text(value: Any) -> str:
    """Return a part of a workload in one line: its kind, with the rest in brackets."""
    if isinstance(value, list):
        return "; ".join(map(_part_text, value))
    if not isinstance(value, dict):
        return f"{value:g}" if isinstance(value, float) else str(value)
    inside = ", ".join(f"{key} = {_part_text(x)}" for key, x in value.items() if key != "kind")
    kind = value.get("kind", "")
    return f"{kind} ({inside})" if kind and inside else kind or inside


def _model(model: ModelShape) -> str:
    """Return the shape of a model."""
    heads = "latent attention" if model.latent else f"{model.num_kv_heads} KV heads"
    mixture = model.experts
    experts = f", {mixture.per_token} of {mixture.count} experts" if mixture else ""
    window = f", {model.window.label}" if model.window else ""
    return (
        f"{model.name}: {model.num_layers} layers of width {model.hidden:,}{window}, "
        f"{model.num_heads} heads, {heads}{experts}; {model.weights / 1e9:.1f} B weights, "
        f"{model.weight_bytes / 2**30:,.1f} GiB; "
        f"{model.kv_bytes_per_token / 1024:.1f} KiB of KV per token"
    )


def _gpu(gpu: GPU) -> str:
    """Return the figures of a GPU."""
    return (
        f"{gpu.name}: {gpu.peak_flops / 1e12:,.0f} TFLOP/s (16-bit), {gpu.memory / 2**30:,.1f} GiB, "
        f"{gpu.memory_bandwidth / 1e12:.2f} TB/s, {gpu.link_bandwidth / 1e9:,.0f} GB/s to other GPUs"
    )
