"""Descriptions of rooflines: a model, a GPU and their number, data types, and attainable shares of the data sheet.

>>> roofline_text({"model": "Llama-3-70B", "gpu": "h200", "tp": 4})
'roofline:model=llama3-70b,gpu=h200,tp=4'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, Field

from kvgym.batch_time.deployments.deployment import RooflineHardware, checked_hardware
from kvgym.batch_time.hardware.kv_capacity import kv_capacity
from kvgym.batch_time.hardware.overhead import EngineOverhead
from kvgym.batch_time.hardware.presets import GPUS, MODELS, Presets
from kvgym.batch_time.hardware.shapes import GPU, Dtype, ModelShape
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.utils.reading import Description, validate_fields
from kvgym.utils.specs import parse_spec

ROOFLINE = "roofline"
"""Name of such hardware in specs, and ``kind`` in files."""

ASSUMED = EngineOverhead(base_ms=3.0, source="an assumption, of no engine")


class Roofline(Description):
    """The fields of a roofline.

    Attributes:
        model: preset, YAML file or shape.
        gpu: preset, YAML file or data-sheet figures.
        tp: number of GPUs that the model is split over.
        weights: type of the weights; None = the model's, usually 16-bit.
        kv_dtype: type of the cache entries; None = 16-bit.
        memory_fraction: share of the device memory that the engine may use.
        reserve_gib: GiB per GPU for activations, workspaces and the driver's context.
        compute_efficiency: attainable share of the peak FLOP/s.
        memory_efficiency: attainable share of the memory bandwidth.
        description: one line; None = composed from the other fields.
        engine: default engine, a name in ``engines``.
        engines: overhead of engines outside the GPU, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str | ModelShape
    gpu: str | GPU
    tp: int = 1
    weights: Dtype | None = None
    kv_dtype: Dtype | None = None
    memory_fraction: float = 0.9
    reserve_gib: float = 2.0
    compute_efficiency: float = Field(default=0.6, gt=0, le=1)
    memory_efficiency: float = Field(default=0.8, gt=0, le=1)
    description: str | None = None
    engine: str = "assumed"
    engines: dict[str, EngineOverhead] = {"assumed": ASSUMED}  # noqa: RUF012

    def hardware(self, name: str) -> RooflineHardware:
        """Return the hardware.

        Args:
            name: its name.

        Raises:
            UnknownNameError: an unknown model or GPU.
            ConfigError: the model does not fit, or cannot be split over this number of GPUs.
        """
        gpu, model = GPUS.find(self.gpu), MODELS.find(self.model)
        types = {"weight_dtype": self.weights, "kv_dtype": self.kv_dtype}
        model = model.model_copy(update={field: dtype for field, dtype in types.items() if dtype is not None})
        tokens = kv_capacity(
            gpu,
            model,
            tensor_parallel=self.tp,
            memory_fraction=self.memory_fraction,
            activation_reserve=self.reserve_gib * 2**30,
        )
        served = [
            f"{dtype} {what}"
            for dtype, what in ((self.weights, "weights"), (self.kv_dtype, "cache"))
            if dtype
        ]
        return RooflineHardware(
            name=name,
            description=self.description or ", ".join([f"{model.name} on {self.tp} x {gpu.name}", *served]),
            source=(
                f"{self.compute_efficiency:.0%} of the peak FLOP/s and {self.memory_efficiency:.0%} "
                f"of the bandwidth are assumptions; model: {_source(MODELS, self.model)}; "
                f"GPU: {_source(GPUS, self.gpu)}"
            ),
            gpu=gpu,
            tensor_parallel=self.tp,
            model=model,
            kv_capacity=tokens,
            kv_capacity_origin=(
                f"computed by kvgym.batch_time.kv_capacity: {self.memory_fraction:.0%} of the memory less the weights "
                f"and {self.reserve_gib:g} GiB per GPU, in blocks of 16; not validated"
            ),
            engine=self.engine,
            engines=self.engines,
            compute_efficiency=self.compute_efficiency,
            memory_efficiency=self.memory_efficiency,
        )


OPTIONS = tuple(name for name in Roofline.model_fields if name not in ("description", "engine", "engines"))
"""Options in one-line descriptions of rooflines."""


def _source(presets: Presets[Any], given: str | BaseModel) -> str:
    return (presets.source(given) if isinstance(given, str) else "") or "figures as given"


def is_roofline(hardware: object) -> TypeGuard[str]:
    """Return whether a name of hardware describes a roofline."""
    return isinstance(hardware, str) and hardware.partition(":")[0] == ROOFLINE


def roofline_options(text: str) -> dict[str, Any]:
    """Parse the one-line description of a roofline into options.

    Raises:
        ConfigError: it does not have the form ``roofline:model=…,gpu=…``, or has other options.
    """
    return _checked(parse_spec(text, "hardware")[1])


def roofline_text(options: Mapping[str, Any]) -> str:
    """Return the one-line description for options, in canonical order and spelling; None values are omitted.

    Raises:
        UnknownNameError: an unknown option, model or GPU.
    """
    given = _checked(options)
    for name, presets in (("model", MODELS), ("gpu", GPUS)):
        if name in given:
            given[name] = presets.name(str(given[name]))
    text = ",".join(f"{name}={given[name]}" for name in OPTIONS if given.get(name) is not None)
    return f"{ROOFLINE}:{text}"


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if name not in OPTIONS:
            raise UnknownNameError("option of a roofline", name, OPTIONS)
        if isinstance(value, Mapping | list):
            raise ConfigError(
                f"roofline: {name} = {shown(value)}; write it into a YAML file and give its path"
            )
    return dict(options)


def completed(hardware: str, base: str | None) -> str:
    """Fill in the options that a roofline lacks from another one; other hardware is returned unchanged.

    Raises:
        ConfigError: model or GPU is missing, and the other hardware is not a roofline.
    """
    if not is_roofline(hardware):
        return hardware
    given = roofline_options(hardware)
    if missing := [name for name in ("model", "gpu") if name not in given]:
        if base is None or not is_roofline(base):
            raise ConfigError(
                f"hardware {shown(hardware)}: {' and '.join(missing)} missing; a roofline needs a model and a "
                "GPU, as in --model llama3-70b --gpu h200 --tp 4 (kvgym list models, kvgym list gpus)"
            )
        given = {**roofline_options(base), **given}
    return roofline_text(given)


def describe_roofline(text: str) -> RooflineHardware:
    """Return the hardware of a one-line description.

    Raises:
        UnknownNameError: an unknown option, model or GPU.
        ConfigError: options are missing or wrong, or the model does not fit.
    """
    name = completed(text, None)
    where = f"hardware {shown(text)}"
    return checked_hardware(validate_fields(Roofline, roofline_options(name), where).hardware(name), where)
