"""Batch-time models: the duration of an iteration as a function of its load; hardware files and calibration.

>>> model = make_batch_time({"kind": "affine", "constant": 0.02, "per_context_token": 1e-6})
>>> round(model(num_decodes=4, decode_context=3996), 6)
0.024

One module per model; their contract is in :mod:`kvgym.simulator.batch_time`.
May import :mod:`kvgym.simulator` and what is below it; may be imported from :mod:`kvgym.kernels` and above.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from kvgym.batch_time.deployments.deployment import (
    CalibratedHardware,
    Hardware,
    KernelHardware,
    RooflineHardware,
)
from kvgym.batch_time.deployments.described import Kernels, Roofline
from kvgym.batch_time.deployments.load import hardware_names, load_calibrated, load_hardware
from kvgym.batch_time.hardware.kv_capacity import kv_capacity
from kvgym.batch_time.hardware.operator_tables import ProfileTables
from kvgym.batch_time.hardware.overhead import NO_ENGINE, NONE, EngineOverhead, parse_overhead
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.batch_time.models._checks import validated
from kvgym.batch_time.models.affine import AffineBatchTime
from kvgym.batch_time.models.calibrated import COMPOSITIONS, ProfileBatchTime
from kvgym.batch_time.models.kernels import KernelBatchTime
from kvgym.batch_time.models.piecewise import PiecewiseBatchTime
from kvgym.batch_time.models.roofline import RooflineBatchTime
from kvgym.batch_time.models.tile import TileBatchTime
from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.errors import ConfigError, shown
from kvgym.simulator.batch_time import LOAD_FIELDS, BatchTimeModel, batch_time_kernel
from kvgym.utils.arguments import explained
from kvgym.utils.registry import Registry

__all__ = [
    "BATCH_TIMES",
    "COMPOSITIONS",
    "GPU",
    "GPUS",
    "LOAD_FIELDS",
    "MODELS",
    "AffineBatchTime",
    "BatchTimeModel",
    "CalibratedHardware",
    "EngineOverhead",
    "Hardware",
    "KernelBatchTime",
    "KernelHardware",
    "Kernels",
    "ModelShape",
    "PiecewiseBatchTime",
    "ProfileBatchTime",
    "ProfileTables",
    "Roofline",
    "RooflineBatchTime",
    "RooflineHardware",
    "TileBatchTime",
    "UnitBatchTime",
    "batch_time_kernel",
    "hardware_names",
    "kv_capacity",
    "load_calibrated",
    "load_hardware",
    "make_batch_time",
]

BATCH_TIMES: Registry[Callable[..., BatchTimeModel]] = Registry("batch-time model")
"""Constructors of batch-time models by kind; their arguments are the keys of a specification."""

BATCH_TIMES.add("unit", UnitBatchTime)
BATCH_TIMES.add("affine", AffineBatchTime)
BATCH_TIMES.add("wait", AffineBatchTime.from_wait)
BATCH_TIMES.add("piecewise", PiecewiseBatchTime)
BATCH_TIMES.add("threshold", PiecewiseBatchTime.from_threshold)
BATCH_TIMES.add("roofline", RooflineBatchTime)
BATCH_TIMES.add("tile", TileBatchTime)


@BATCH_TIMES.register("kernels")
def _kernels(hardware: str, engine: str | Mapping[str, Any] | None = None) -> BatchTimeModel:
    found = load_hardware(hardware)
    if not isinstance(found, KernelHardware):
        raise ConfigError(
            f"batch time 'kernels': hardware {shown(hardware)} has no measured kernels: {found.kind}"
        )
    return found.batch_time(engine=engine)


@BATCH_TIMES.register("profile")
def _profile(
    hardware: str | None = None,
    composition: str = "kvgym",
    engine: str | Mapping[str, Any] | None = None,
    tables: Mapping[str, Any] | None = None,
    source: str = "",
    valid_range: Mapping[str, Any] | None = None,
) -> BatchTimeModel:
    if (hardware is None) == (tables is None):
        raise ConfigError("batch time 'profile' needs either hardware (a name or path) or tables, not both")
    if hardware is not None:
        return load_calibrated(hardware).batch_time(composition=composition, engine=engine)
    if isinstance(engine, str) and engine != NO_ENGINE:
        raise ConfigError(
            f"batch time 'profile' with tables: engine = {shown(engine)} names an engine of a hardware file; give its "
            "values, {base_ms: …, per_request_ms: …}, or 'none'"
        )
    return ProfileBatchTime(
        validated(ProfileTables, "tables", tables or {}),
        composition=composition,
        overhead=parse_overhead(engine) if isinstance(engine, Mapping) else NONE,
        source=source,
        valid_range={name: (float(low), float(high)) for name, (low, high) in (valid_range or {}).items()},
    )


@explained
def make_batch_time(spec: Mapping[str, Any]) -> BatchTimeModel:
    """Build a batch-time model from a specification of plain values.

    Args:
        spec: ``{"kind": <name in BATCH_TIMES>, **arguments}``; the result of :meth:`BatchTimeModel.spec` builds an
            equal model.

    Raises:
        ConfigError: ``kind`` is missing, or an argument is unknown, missing or wrong.
        UnknownNameError: an unknown kind.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("kind"), str):
        raise ConfigError(
            f"a batch-time model needs 'kind', one of: {', '.join(BATCH_TIMES)}; got {shown(spec)}"
        )
    build = BATCH_TIMES[spec["kind"]]
    arguments = {key: value for key, value in spec.items() if key != "kind"}
    known = list(inspect.signature(build).parameters)
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ConfigError(
            f"batch time {shown(spec['kind'])}: unknown key {', '.join(map(shown, unknown))}; "
            f"valid: {', '.join(known) or 'none'}"
        )
    try:
        return build(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"batch time {shown(spec['kind'])}: {error}; valid keys: {', '.join(known)}"
        ) from None
