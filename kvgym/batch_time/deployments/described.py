"""Hardware described by a model, a GPU and their number: with measured kernels, or as a roofline."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, WrapValidator

from kvgym.batch_time.deployments.deployment import (
    Hardware,
    KernelHardware,
    RooflineHardware,
    checked_hardware,
)
from kvgym.batch_time.hardware.kv_capacity import KV_CONTEXT, kv_capacity
from kvgym.batch_time.hardware.overhead import EngineOverhead
from kvgym.batch_time.hardware.presets import GPUS, MODELS, Presets, is_path
from kvgym.batch_time.hardware.shapes import GPU, Dtype, ModelShape
from kvgym.batch_time.models.roofline import ASSUMED_SHARES
from kvgym.batch_time.operators.assembly import BALANCE
from kvgym.batch_time.operators.files import load_operators, operator_gpus
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.utils.reading import Description, validate_fields
from kvgym.utils.specs import parse_spec


class Described(Description, ABC):
    """The fields that both kinds of described hardware have.

    Attributes:
        model: preset, YAML file or shape.
        gpu: preset, YAML file or data-sheet figures.
        tp: number of GPUs that the model is split over.
        weights: type of the weights; None = the model's, usually 16-bit.
        kv_dtype: type of the cache entries; None = 16-bit.
        memory_fraction: share of the device memory that the engine may use.
        reserve_gib: GiB per GPU for activations, workspaces and the driver's context.
        kv_context: tokens of a request, for which the KV of layers with a sliding window is counted; see
            :func:`~kvgym.batch_time.hardware.kv_capacity.kv_capacity`.
        description: one line; None = composed from the other fields.
        engine: default engine, a name in ``engines`` or of kvgym.
        engines: overhead of further engines outside the GPU, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]

    model: str | ModelShape
    gpu: str | GPU
    tp: int = 1
    weights: Dtype | None = None
    kv_dtype: Dtype | None = None
    memory_fraction: float = 0.9
    reserve_gib: float = 2.0
    kv_context: int = KV_CONTEXT
    description: str | None = None
    engine: str = "vllm-2026"
    engines: dict[str, EngineOverhead] = {}  # noqa: RUF012

    @abstractmethod
    def hardware(self, name: str) -> Hardware:
        """Return the hardware.

        Args:
            name: its name.

        Raises:
            UnknownNameError: an unknown model or GPU.
            ConfigError: the model does not fit, or cannot be split over this number of GPUs.
        """

    @property
    def ranks(self) -> int:
        """Groups of GPUs with requests of their own."""
        return 1

    @property
    def layout(self) -> str:
        """How the model is spread over the GPUs, to append to their number."""
        return ""

    def _common(self, name: str) -> dict[str, Any]:
        """Return the fields of the hardware that do not depend on its kind."""
        gpu, model = GPUS.find(self.gpu), MODELS.find(self.model)
        types = {"weight_dtype": self.weights, "kv_dtype": self.kv_dtype}
        model = model.model_copy(update={field: dtype for field, dtype in types.items() if dtype is not None})
        tokens = kv_capacity(
            gpu,
            model,
            tensor_parallel=self.tp,
            data_parallel=self.ranks,
            memory_fraction=self.memory_fraction,
            activation_reserve=self.reserve_gib * 2**30,
            context=self.kv_context,
        )
        windowed = model.kv_layers(self.kv_context) < model.num_layers
        counted = f", KV of requests of {self.kv_context:,} tokens" if windowed else ""
        return {
            "name": name,
            "description": self.description
            or f"{model.name} on {self.tp * self.ranks} x {gpu.name}{self.layout}, {_stored_types(model)}{counted}",
            "gpu": gpu,
            "tensor_parallel": self.tp,
            "model": model,
            "kv_capacity": tokens,
            "kv_capacity_origin": (
                f"computed by kvgym.batch_time.kv_capacity: {self.memory_fraction:.0%} of the memory less the weights "
                f"and {self.reserve_gib:g} GiB per GPU, in blocks of 16{counted}; not validated"
            ),
            "engine": self.engine,
            "engines": self.engines,
        }


class Roofline(Described):
    """Hardware from data sheets: attainable shares of FLOP/s and bandwidth; see :class:`Described`.

    Attributes:
        compute_efficiency: attainable share of the peak FLOP/s; None = the GPU's, or 0.6 if not measured.
        memory_efficiency: attainable share of the memory bandwidth; None = the GPU's, or 0.8 if not measured.
    """

    kind = "roofline"

    compute_efficiency: float | None = Field(default=None, gt=0, le=1)
    memory_efficiency: float | None = Field(default=None, gt=0, le=1)

    def hardware(self, name: str) -> RooflineHardware:
        """Return the hardware; see :meth:`Described.hardware`."""
        common = self._common(name)
        given = (self.compute_efficiency, self.memory_efficiency)
        attained = common["gpu"].efficiencies(common["model"].weight_dtype)
        shares = [own or share for own, share in zip(given, attained or ASSUMED_SHARES, strict=True)]
        measured = attained is not None and given == (None, None)
        return RooflineHardware(
            **common,
            source=(
                f"{shares[0]:.0%} of the peak FLOP/s and {shares[1]:.0%} of the bandwidth "
                f"{'as measured matrix products attain' if measured else 'are assumptions'}; "
                f"model: {_source(MODELS, self.model)}; GPU: {_source(GPUS, self.gpu)}"
            ),
            compute_efficiency=shares[0],
            memory_efficiency=shares[1],
        )


class Kernels(Described):
    """Hardware from the measured kernels of its GPU; see :class:`Described`.

    Attributes:
        operators: operator tables: a GPU's preset or an ``.npz`` file; None = those of ``gpu``.
        dp: groups of ``tp`` GPUs with requests of their own, one worker together; for mixtures of experts, which are
            spread over all groups.
        ep: groups of GPUs with whole experts of their own, as many as all GPUs at most; 1 = each expert is split over
            all GPUs.
        balance: load of the experts, a distribution of the tables.
        collective_scale: factor of the measured collectives, for links of another speed.
    """

    kind = "kernels"

    operators: str | None = None
    dp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    balance: str = BALANCE
    collective_scale: float = Field(default=1.0, gt=0)

    @property
    def ranks(self) -> int:
        """Groups of GPUs with requests of their own."""
        return self.dp

    @property
    def layout(self) -> str:
        """How the model is spread over the GPUs, to append to their number."""
        attention = f", attention in {self.dp} groups" if self.dp > 1 else ""
        return attention + (f", experts in {self.ep} groups" if self.ep > 1 else "")

    def _check_layout(self, model: ModelShape) -> None:
        experts, gpus = model.experts, self.tp * self.dp
        if self.dp > 1 and experts is None:
            raise ConfigError(
                f"dp = {self.dp}: {model.name} is dense, so groups of GPUs would have nothing in common; use dp: 1 and "
                "several workers (--workers)"
            )
        if self.ep > 1 and (experts is None or gpus % self.ep or experts.count % self.ep):
            of = f"the {experts.count} experts of {model.name}" if experts else f"{model.name}, a dense model"
            raise ConfigError(f"ep = {self.ep}: it must divide the {gpus} GPUs (tp x dp) and {of}")

    def hardware(self, name: str) -> KernelHardware:
        """Return the hardware; see :meth:`Described.hardware`.

        Raises:
            ConfigError: there are no operator tables of the GPU, or ``dp`` or ``ep`` does not suit the model.
            UnknownNameError: an unknown load of experts.
        """
        operators = self.operators
        if operators is None:
            operators = GPUS.name(self.gpu) if isinstance(self.gpu, str) else ""
            if operators not in operator_gpus():
                raise ConfigError(
                    f"no kernels were measured on GPU {shown(self.gpu)}, only on {', '.join(operator_gpus())}; use "
                    "roofline:model=…,gpu=…, or name a file of operator tables: operators=FILE.npz"
                )
        self._check_layout(MODELS.find(self.model))
        tables = load_operators(operators)
        known = tables.balances()
        if known and self.balance not in known:
            raise UnknownNameError("load of experts", self.balance, known)
        return KernelHardware(
            **self._common(name),
            source=(
                f"kernels: {tables.source}; model: {_source(MODELS, self.model)}; "
                f"GPU: {_source(GPUS, self.gpu)}"
            ),
            operators=operators,
            data_parallel=self.dp,
            expert_parallel=self.ep,
            balance=self.balance,
            collective_scale=self.collective_scale,
        )


KINDS: dict[str, type[Described]] = {kind.kind: kind for kind in (Kernels, Roofline)}
"""Kinds of described hardware: names in specs, and ``kind`` in files."""

OPTIONS = {
    name: tuple(field for field in kind.model_fields if field not in ("description", "engine", "engines"))
    for name, kind in KINDS.items()
}
"""Options in one-line descriptions, by kind."""

_ALL_OPTIONS = tuple(dict.fromkeys(name for names in OPTIONS.values() for name in names))
_NAMES = {"roofline": "a roofline", "kernels": "hardware with measured kernels", None: "hardware"}


def _stored_types(model: ModelShape) -> str:
    """Return the types of weights and cache, which are always stated: a cache is not of the weights' type by itself."""
    usual = f"{8 * model.dtype_bytes:g}-bit"
    weights, cache = model.weight_dtype or usual, model.kv_dtype or usual
    return f"{weights} weights and KV cache" if weights == cache else f"{weights} weights, {cache} KV cache"


def _source(presets: Presets[Any], given: str | BaseModel) -> str:
    return (presets.source(given) if isinstance(given, str) else "") or "figures as given"


class HardwareName(str):
    """A name of hardware: a file's, or one line of options for a model and a GPU, which are parsed once.

    >>> HardwareName.of({"model": "Llama-3-70B", "gpu": "h200", "tp": 4})
    'kernels:model=llama3-70b,gpu=h200,tp=4'
    """

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> HardwareName:
        """Return the line of options, in canonical order and spelling; None values are omitted.

        Without a ``kind``, a GPU that has operator tables gives ``"kernels"``, another one a roofline. Without a GPU
        the line has no kind.

        Raises:
            UnknownNameError: an unknown kind, option, model or GPU.
        """
        given = {name: value for name, value in options.items() if value is not None}
        kind = given.pop("kind", None)
        for name, presets in (("model", MODELS), ("gpu", GPUS)):
            if isinstance(given.get(name), str):
                given[name] = presets.name(given[name])
        if kind is None and ("gpu" in given or "operators" in given):
            measured = given.get("gpu") in operator_gpus() and not set(given) - set(OPTIONS["kernels"])
            kind = "kernels" if measured or "operators" in given else "roofline"
        _check_options(kind, given)
        text = ",".join(f"{name}={given[name]}" for name in _ALL_OPTIONS if name in given)
        return cls(text if kind is None else f"{kind}:{text}")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Describe a field: a text, or a mapping of options."""

        def parse(value: Any, handler: Callable[[Any], str]) -> HardwareName:
            if isinstance(value, HardwareName):
                return value
            return cls.of(value) if isinstance(value, Mapping) else cls(handler(value))

        return handler.generate_schema(Annotated[str, WrapValidator(parse)])

    @property
    def described(self) -> bool:
        """Whether it is a line of options, with its kind or without."""
        kind, colon, _ = self.partition(":")
        return kind in KINDS if colon else self.partition("=")[0].strip() in _ALL_OPTIONS

    @functools.cached_property
    def options(self) -> Mapping[str, Any]:
        """The options of a line, with its kind as ``kind`` if it names one.

        Raises:
            ConfigError: it does not have the form ``kernels:model=…,gpu=…``, or has other options.
        """
        if ":" not in self.partition("=")[0]:
            return parse_spec(f"hardware:{self}", "hardware")[1]
        kind, options = parse_spec(self, "hardware")
        _check_options(kind, options)
        return {"kind": kind, **options}

    def completed(self, base: str | None = None) -> HardwareName:
        """Fill in the options that it lacks from another name; a file is returned unchanged.

        Raises:
            ConfigError: model or GPU is missing, and the other hardware is not described.
        """
        if not self.described:
            return self
        if missing := [name for name in ("model", "gpu") if name not in self.options]:
            other = HardwareName(base or "")
            if not other.described:
                raise ConfigError(
                    f"hardware {shown(self)}: {' and '.join(missing)} missing; it needs a model and a GPU, as in "
                    "--model llama3-70b --gpu h200 --tp 4 (kvgym list models, kvgym list gpus)"
                )
            return other.replaced(self.options)
        return HardwareName.of(self.options)

    def replaced(self, changes: Mapping[str, Any]) -> HardwareName:
        """Return a line with some options replaced.

        The kind stays, but for two cases: ``changes`` have one, or they have another GPU. Then it is the kind of the
        GPU, unless this line is a roofline although its GPU has tables.

        Raises:
            UnknownNameError: an unknown option, model or GPU.
        """
        options = dict(self.completed().options)
        forced = options["kind"] == "roofline" and options["gpu"] in operator_gpus()
        if "kind" in changes:
            options = {name: value for name, value in options.items() if name in OPTIONS[changes["kind"]]}
        elif "gpu" in changes and not forced:
            del options["kind"]
        return HardwareName.of({**options, **changes})

    def hardware(self) -> Hardware:
        """Return the hardware of a line of options.

        Raises:
            UnknownNameError: an unknown option, model or GPU.
            ConfigError: options are missing or wrong, or the model does not fit.
        """
        name, where = self.completed(), f"hardware {shown(self)}"
        if "operators" in name.options or any(is_path(str(name.options[part])) for part in ("model", "gpu")):
            return parse_described(name.options, where, name)  # files may have changed
        return _of_presets(name, where)


def _check_options(kind: str | None, options: Mapping[str, Any]) -> None:
    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of hardware", kind, KINDS)
    valid = _ALL_OPTIONS if kind is None else OPTIONS[kind]
    for name, value in options.items():
        if name not in valid:
            raise UnknownNameError(f"option of {_NAMES[kind]}", name, valid)
        if isinstance(value, Mapping | list):
            raise ConfigError(
                f"{_NAMES[kind]}: {name} = {shown(value)}; write it into a YAML file and give its path"
            )


@functools.lru_cache(maxsize=64)
def _of_presets(name: HardwareName, where: str) -> Hardware:
    """Return the hardware of a line without files, so that its kernels are assembled once."""
    return parse_described(name.options, where, name)


def parse_described(fields: Mapping[str, Any], where: str, name: str) -> Hardware:
    """Return the hardware of fields with a ``kind``.

    Args:
        fields: the fields.
        where: their origin, for messages.
        name: name of the hardware.

    Raises:
        UnknownNameError: an unknown model or GPU.
        ConfigError: a wrong field, or the model does not fit.
    """
    kind = KINDS[fields["kind"]]
    given = {field: value for field, value in fields.items() if field != "kind"}
    return checked_hardware(validate_fields(kind, given, where).hardware(name), where)
