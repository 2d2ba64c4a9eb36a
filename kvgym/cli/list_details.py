"""All that is known of one scenario or one kind of hardware, as pairs of a term and its description."""

from __future__ import annotations

from typing import Any

from kvgym.batch_time.deployments.deployment import CalibratedHardware
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.experiments.describing import memory, rules, what_serves
from kvgym.experiments.scenario import load_scenario
from kvgym.workloads.describing import describe_spec
from kvgym.workloads.spec import WorkloadSpec

Row = tuple[str, str]

_SHOWN_CLASSES = 4


def scenario_facts(name: str) -> list[Row]:
    """Return what a scenario is: what serves, requests, rules, and what is compared on it.

    Args:
        name: of a scenario that comes with kvgym, or a file.

    Raises:
        ConfigError: there is none, or it is contradictory.
    """
    scenario = load_scenario(name)
    system, spec = scenario.make_system(), scenario.make_workload().spec
    memories = sorted({worker.kv_capacity for worker in system.all_workers})
    rows = [("What it is", scenario.summary), *what_serves(scenario)]
    if len(memories) == 1:
        rows += memory(scenario, memories[0])
    else:
        rows.append(("KV capacity", f"{' or '.join(f'{tokens:,}' for tokens in memories)} tokens, by worker"))
    count = len(system.all_workers)
    if isinstance(scenario.workers, int):
        rows.append(("Workers", f"{count}"))
    if count > 1:
        rows.append(("Router", scenario.router))
    rows.append(("Workload", describe_spec(spec)))
    rows += [(f"- {term.replace('_', ' ')}", text) for term, text in _parts(spec).items()]
    rows += rules(scenario)
    rows.append(("Requests too long", scenario.too_long))
    if scenario.window is not None:
        rows.append(
            ("Measured", f"from {scenario.warm_up or 0} on, to {scenario.cool_down or 0} before the end")
        )
    return [*rows, ("Policies", ", ".join(scenario.policies)), ("Seeds", str(scenario.seeds))]


def hardware_facts(name: str) -> list[Row]:
    """Return what hardware is, where its figures are from, and how far they can be trusted.

    Args:
        name: of hardware that comes with kvgym, a file, or the description of a roofline.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    hardware = load_hardware(name)
    rows = [
        ("What it is", hardware.description),
        ("Batch time", hardware.kind),
        ("Model", _model(hardware.model)),
        ("GPU", f"{hardware.tensor_parallel} x {_gpu(hardware.gpu)}"),
        ("KV tokens", f"{hardware.kv_capacity:,}: {hardware.kv_capacity_origin}"),
        ("Source", hardware.source),
    ]
    if isinstance(hardware, CalibratedHardware):
        rows.append(("Calibrated on", hardware.date))
    for engine, overhead in hardware.all_engines.items():
        usual = " (unless another is asked for)" if engine == hardware.engine else ""
        checked = overhead.validated or "not validated against a running engine"
        source = f"; {overhead.source}" if overhead.source else ""
        rows.append((f"Engine {engine}", f"{overhead.formula()}{usual}; {checked}{source}"))
    if isinstance(hardware, CalibratedHardware):
        rows += [
            (
                f"Error {group.replace('_', ' ')}",
                f"{error.median:.1%} in the median, {error.p95:.1%} at p95 of {error.rows:,} rows held out",
            )
            for group, error in hardware.fit_error.items()
        ]
        rows += [
            (f"Measured {quantity.replace('_', ' ')}", f"{low:,.0f} to {high:,.0f}")
            for quantity, (low, high) in hardware.valid_range.items()
        ]
    return rows


def _parts(spec: WorkloadSpec) -> dict[str, str]:
    """Return what a workload has, without what its description says in any case."""
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
    return {name: _told(value) for name, value in parts.items()}


def _told(value: Any) -> str:
    """Return a part of a workload in one line: its kind, and the rest in brackets."""
    if isinstance(value, list):
        return "; ".join(map(_told, value))
    if not isinstance(value, dict):
        return f"{value:g}" if isinstance(value, float) else str(value)
    inside = ", ".join(f"{key} = {_told(x)}" for key, x in value.items() if key != "kind")
    kind = value.get("kind", "")
    return f"{kind} ({inside})" if kind and inside else kind or inside


def _model(model: ModelShape) -> str:
    """Return the shape of a model."""
    heads = "latent attention" if model.latent else f"{model.num_kv_heads} KV heads"
    mixture = model.experts
    experts = f", {mixture.per_token} of {mixture.count} experts" if mixture else ""
    return (
        f"{model.name}: {model.num_layers} layers of width {model.hidden:,}, {model.num_heads} heads, {heads}"
        f"{experts}; {model.weights / 1e9:.1f} B weights, {model.weight_bytes / 2**30:,.1f} GiB; "
        f"{model.kv_bytes_per_token / 1024:.1f} KiB of KV per token"
    )


def _gpu(gpu: GPU) -> str:
    """Return the figures of a GPU."""
    return (
        f"{gpu.name}: {gpu.peak_flops / 1e12:,.0f} TFLOP/s of 16 bit, {gpu.memory / 2**30:,.1f} GiB, "
        f"{gpu.memory_bandwidth / 1e12:.2f} TB/s, {gpu.link_bandwidth / 1e9:,.0f} GB/s to the others"
    )
