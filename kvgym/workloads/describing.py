"""One-line descriptions of workloads, including changed presets."""

from __future__ import annotations

import math

from kvgym.workloads.presets import PRESETS
from kvgym.workloads.spec import WorkloadSpec
from kvgym.workloads.workload import Workload


def describe_requests(workload: Workload) -> str:
    """Return name, rate and number of requests, if they are known before requests are drawn."""
    return _name_rate_count(workload.spec.name, workload.mean_rate, workload.size)


def describe_spec(spec: WorkloadSpec) -> str:
    """Return the description of a workload; for a changed preset its rate and size, and the changed fields."""
    count = spec.num_requests if isinstance(spec.num_requests, int) else None
    numbers = _name_rate_count(spec.name, spec.mean_rate, count)
    if spec.name not in PRESETS or spec.description not in ("", PRESETS[spec.name].description):
        return spec.description or numbers
    preset = PRESETS[spec.name]
    changed = [
        name
        for name in WorkloadSpec.model_fields
        if name != "description" and getattr(spec, name) != getattr(preset, name)
    ]
    return f"{numbers}; changed from the preset: {', '.join(changed)}" if changed else preset.description


def _name_rate_count(name: str, rate: float, count: int | None) -> str:
    known = [name]
    if math.isfinite(rate):
        known.append(f"{rate:.3g} requests/s" if rate < 1000 else f"{rate:,.0f} requests/s")
    if count is not None:
        known.append(f"{count:,} requests")
    return ", ".join(known)
