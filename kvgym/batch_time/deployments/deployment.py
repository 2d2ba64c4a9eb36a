"""Hardware that serves a model: GPUs, KV capacity and engine overhead, with calibrated tables or as a roofline."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from kvgym.batch_time.hardware.held_out import Comparison, FitError, HeldOut, compare_held_out, fit_errors
from kvgym.batch_time.hardware.operator_tables import ProfileTables
from kvgym.batch_time.hardware.overhead import (
    NO_ENGINE,
    EngineOverhead,
    check_engine,
    engines_of,
    parse_overhead,
)
from kvgym.batch_time.hardware.shapes import GPU, ModelShape
from kvgym.batch_time.models.calibrated import COMPOSITIONS, ProfileBatchTime
from kvgym.batch_time.models.data_parallel import DataParallelBatchTime
from kvgym.batch_time.models.kernels import KernelBatchTime, KernelTables
from kvgym.batch_time.models.roofline import RooflineBatchTime
from kvgym.batch_time.operators.assembly import Assembly
from kvgym.batch_time.operators.files import load_operators
from kvgym.batch_time.operators.tables import OperatorTables
from kvgym.errors import ConfigError, UnknownNameError, shown
from kvgym.simulator.batch_time import BatchTimeModel
from kvgym.simulator.system import MAX_CAPACITY
from kvgym.utils.checks import check_text
from kvgym.utils.reading import Description

NOT_VALIDATED = "roofline, not validated"
"""Label of all results from a roofline."""


class Hardware(Description, ABC):
    """A model served on GPUs as one worker.

    Attributes:
        name: name of the file, or the description of a roofline.
        description: one line.
        source: source of the figures, with licence.
        gpu: data-sheet figures.
        tensor_parallel: number of GPUs that the model is split over.
        model: shape of the model.
        kv_capacity: tokens of KV cache.
        kv_capacity_origin: source of that number.
        engine: default engine, a name in ``all_engines``.
        engines: overhead of engines of its own, by name, in addition to or instead of
            :data:`~kvgym.batch_time.hardware.overhead.ENGINES`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    description: str
    source: str
    gpu: GPU
    tensor_parallel: int = Field(gt=0)
    model: ModelShape
    kv_capacity: int = Field(ge=2, le=MAX_CAPACITY)
    kv_capacity_origin: str
    engine: str
    engines: dict[str, EngineOverhead] = {}  # noqa: RUF012

    @model_validator(mode="after")
    def _engine_is_named(self) -> Hardware:
        check_engine(self.engine, self.all_engines)
        return self

    @property
    @abstractmethod
    def kind(self) -> str:
        """Origin of its batch times: ``"calibrated"`` or :data:`NOT_VALIDATED`."""

    @property
    @abstractmethod
    def kernels(self) -> str:
        """Origin of its kernels in a few words, for the line above a table."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the worker."""
        return self.tensor_parallel

    @property
    def adds_layers(self) -> bool:
        """Whether an engine's time per layer counts: small kernels were not measured."""
        return True

    @property
    def all_engines(self) -> dict[str, EngineOverhead]:
        """Overhead of engines by name: those of kvgym, and its own."""
        return {**engines_of(self.tensor_parallel), **self.engines}

    def overhead(self, engine: str | None = None) -> EngineOverhead:
        """Return the overhead of an engine.

        Args:
            engine: name; None = the default engine.

        Raises:
            UnknownNameError: there is no engine of that name.
        """
        name = self.engine if engine is None else engine
        if name not in self.all_engines:
            raise UnknownNameError(f"engine of hardware {self.name}", name, self.all_engines)
        return self.all_engines[name]

    @abstractmethod
    def default_engine(self, composition: str = "kvgym") -> str:
        """Return the default engine for a composition.

        Raises:
            UnknownNameError: an unknown composition.
            ConfigError: a composition for a roofline, which has none.
        """

    def chosen_engine(
        self, engine: str | Mapping[str, Any] | None = None, composition: str = "kvgym"
    ) -> tuple[str | None, EngineOverhead]:
        """Return an engine's name (None if it has none) and its overhead; arguments as for :meth:`batch_time`."""
        default = self.default_engine(composition)
        if isinstance(engine, Mapping):
            return None, parse_overhead(engine)
        name = default if engine is None else engine
        if not isinstance(name, str):
            raise ConfigError(
                f"engine = {shown(name)}; expected a name or figures, {{base_ms: …, per_request_ms: …}}"
            )
        return name, self.overhead(name)

    @abstractmethod
    def batch_time(
        self, *, composition: str = "kvgym", engine: str | Mapping[str, Any] | None = None
    ) -> BatchTimeModel:
        """Return the batch-time model of this hardware.

        Args:
            composition: one of :data:`~kvgym.batch_time.models.calibrated.COMPOSITIONS`, how tables are summed.
            engine: engine overhead: a name in :attr:`all_engines`, or the fields of an
                :class:`~kvgym.batch_time.hardware.overhead.EngineOverhead` (``{"base_ms": 5, "per_request_ms": 0.1}``).
                None = the default engine; ``"none"`` with composition ``"vidur"``, which has no overhead.

        Raises:
            UnknownNameError: an unknown composition or engine.
            ConfigError: ``engine`` has another type or wrong fields, or a composition for a roofline.
        """


H = TypeVar("H", bound=Hardware)

_EXTREMES: dict[str, tuple[int, ...]] = {
    "num_prefills": (0, 1, 0, 64, 64),
    "prefill_tokens": (0, 1, 0, 2**20, 2**20),
    "prefill_context": (0, 0, 0, 0, 2**26),
    "prefill_squares": (0, 1, 0, 2**34, 2**34),
    "prefill_products": (0, 0, 0, 0, 2**40),
    "num_decodes": (1, 0, 4096, 0, 4096),
    "decode_context": (1, 0, 2**31, 0, 2**31),
    "draft_tokens": (0, 0, 2**16, 0, 2**16),
}
"""Small and large batches; their durations must be finite."""


def checked_hardware(hardware: H, where: str) -> H:
    """Return the hardware if its batches take a finite time.

    Args:
        hardware: the hardware.
        where: kind and name of the file that describes it, for messages.

    Raises:
        ConfigError: they do not, because its numbers are too large or too small.
    """
    try:
        with np.errstate(all="ignore"):
            seconds = np.asarray(hardware.batch_time()(**_EXTREMES), np.float64)
    except ArithmeticError:  # whole numbers of hundreds of digits
        seconds = np.array([np.nan])
    bad = ~(np.isfinite(seconds) & (seconds >= 0))
    if bad.any():
        raise ConfigError(
            f"{where}: a batch would take {seconds[bad.argmax()]:g} s; check for numbers that are far too large or too "
            "small, or in another unit"
        )
    return hardware


class CalibratedHardware(Hardware):
    """Hardware with measured operators: tables, and their errors on held-out measurements.

    Attributes:
        date: day of the calibration, ISO 8601.
        valid_range: measured (low, high) by quantity.
        fit_error: errors of the tables on held-out rows, by operator group.
        tables: calibrated operator tables.
        held_out: measurements that the tables were not fitted to.
        doubts: columns of the profiles with implausible times, a line each.
    """

    date: str
    valid_range: dict[str, tuple[float, float]]
    fit_error: dict[str, FitError]
    tables: ProfileTables
    held_out: HeldOut
    doubts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> CalibratedHardware:
        if self.tables.num_layers != self.model.num_layers:
            raise ValueError(
                f"tables.num_layers is {self.tables.num_layers}, model.num_layers {self.model.num_layers}"
            )
        if (self.tables.all_reduce is None) != (self.tensor_parallel == 1):
            raise ValueError("tables.all_reduce must be given if and only if tensor_parallel > 1")
        return self

    @property
    def kind(self) -> str:
        """Origin of its batch times."""
        return "calibrated with implausible times" if self.doubts else "calibrated"

    @property
    def kernels(self) -> str:
        """Origin of its kernels."""
        return f"kernels calibrated on {self.gpu.name}"

    @property
    def adds_layers(self) -> bool:
        """Whether an engine's time per layer counts: the files have all kernels."""
        return False

    def measured_errors(self) -> dict[str, FitError]:
        """Compute the errors of the tables on the held-out rows, by operator group; equal to ``fit_error``."""
        return fit_errors(self.tables, self.held_out)

    def comparisons(self) -> dict[str, Comparison]:
        """Return predicted and measured milliseconds of the held-out rows, by operator group."""
        return compare_held_out(self.tables, self.held_out)

    def default_engine(self, composition: str = "kvgym") -> str:
        """Return the default engine; ``"none"`` with composition "vidur".

        Raises:
            UnknownNameError: an unknown composition.
        """
        check_text(composition, "composition", "a text")
        if composition not in COMPOSITIONS:
            raise UnknownNameError("composition", composition, COMPOSITIONS)
        return NO_ENGINE if composition == "vidur" else self.engine

    def batch_time(
        self, *, composition: str = "kvgym", engine: str | Mapping[str, Any] | None = None
    ) -> ProfileBatchTime:
        """Return the batch-time model of the tables; see :meth:`Hardware.batch_time`."""
        name, overhead = self.chosen_engine(engine, composition)
        return ProfileBatchTime(
            self.tables,
            composition=composition,
            overhead=overhead,
            engine=name,
            source=self.source,
            valid_range=self.valid_range,
            hardware=self.name,
            device=self.gpu.device,
        )


class UntabledHardware(Hardware):
    """Hardware without operator tables of its own model, so without compositions."""

    def default_engine(self, composition: str = "kvgym") -> str:
        """Return the default engine.

        Raises:
            ConfigError: a composition other than the default, which only tables have.
        """
        if composition != "kvgym":
            raise ConfigError(
                f"hardware {self.name}: composition = {shown(composition)} is for calibrated tables of one model only"
            )
        return self.engine


class Assembled(NamedTuple):
    """Kernels of a model on its GPUs.

    Attributes:
        tables: the kernels.
        replaced: what the GPU's tables lack, by what replaces it.
    """

    tables: KernelTables
    replaced: Mapping[str, Sequence[str]]


class KernelHardware(UntabledHardware):
    """Hardware with the measured kernels of its GPU, see :mod:`kvgym.batch_time.deployments.described`.

    Attributes:
        operators: operator tables, the name of a GPU's preset or an ``.npz`` file.
        data_parallel: groups of GPUs with requests of their own.
        expert_parallel: groups of GPUs with whole experts of their own.
        balance: load of the experts.
        collective_scale: factor of the measured collectives.
    """

    operators: str
    data_parallel: int
    expert_parallel: int
    balance: str
    collective_scale: float

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the worker."""
        return self.tensor_parallel * self.data_parallel

    @functools.cached_property
    def operator_tables(self) -> OperatorTables:
        """Operator tables of the GPU."""
        return load_operators(self.operators)

    @property
    def kind(self) -> str:
        """Origin of its batch times, and what the roofline replaces."""
        return f"measured kernels, {self.operator_tables.measured}{self._replaced}"

    @property
    def kernels(self) -> str:
        """Origin of its kernels."""
        return f"kernels measured with {self.operator_tables.measured} on {self.gpu.name}{self._replaced}"

    @property
    def _replaced(self) -> str:
        """What the roofline replaces, to append to a text."""
        overhead = self.overhead()
        replaced = self._assembled(overhead.library, overhead.fused_quantisation).replaced
        return "".join(f"; {name} for {' and '.join(what)}" for name, what in replaced.items())

    @functools.cached_property
    def _assemblies(self) -> dict[tuple[str, bool], Assembled]:
        return {}

    def _assembled(self, library: str, fused_quantisation: bool) -> Assembled:
        """Return the kernels of an engine, which are assembled once."""
        if (found := self._assemblies.get((library, fused_quantisation))) is not None:
            return found
        assembly = Assembly(
            self.operator_tables,
            self.gpu,
            self.model,
            self.tensor_parallel,
            data_parallel=self.data_parallel,
            expert_parallel=self.expert_parallel,
            balance=self.balance,
            collective_scale=self.collective_scale,
            library=library,
            fused_quantisation=fused_quantisation,
        )
        found = self._assemblies[library, fused_quantisation] = Assembled(
            assembly.tables(), assembly.replaced
        )
        return found

    def batch_time(
        self, *, composition: str = "kvgym", engine: str | Mapping[str, Any] | None = None
    ) -> KernelBatchTime | DataParallelBatchTime:
        """Return the sum of the kernels; see :meth:`Hardware.batch_time`."""
        name, overhead = self.chosen_engine(engine, composition)
        tables = self._assembled(overhead.library, overhead.fused_quantisation).tables
        rank = KernelBatchTime(
            tables,
            overhead=overhead,
            hardware=self.name,
            engine=name,
            device=self.gpu.device,
            source=self.operator_tables.source,
            valid_range={"tokens": (1.0, float(tables.linear[0][-1]))},
        )
        return (
            rank if tables.shared is None else DataParallelBatchTime(rank, self.data_parallel, tables.shared)
        )


class RooflineHardware(UntabledHardware):
    """Hardware described by data sheets and the model's shape only.

    See :mod:`kvgym.batch_time.deployments.described`.

    Attributes:
        compute_efficiency: attainable share of the peak FLOP/s.
        memory_efficiency: attainable share of the memory bandwidth.
    """

    compute_efficiency: float
    memory_efficiency: float

    @property
    def kind(self) -> str:
        """Origin of its batch times."""
        return NOT_VALIDATED

    @property
    def kernels(self) -> str:
        """Origin of its kernels."""
        return f"kernels: {NOT_VALIDATED}"

    def batch_time(
        self, *, composition: str = "kvgym", engine: str | Mapping[str, Any] | None = None
    ) -> RooflineBatchTime:
        """Return the roofline; see :meth:`Hardware.batch_time`."""
        _, overhead = self.chosen_engine(engine, composition)
        return RooflineBatchTime(
            self.gpu,
            self.model,
            tensor_parallel=self.tensor_parallel,
            compute_efficiency=self.compute_efficiency,
            memory_efficiency=self.memory_efficiency,
            small_kernels_ms=overhead.per_layer_ms,
            asynchronous=overhead.asynchronous,
            api_time=overhead.api_ms / 1e3,
            overhead=overhead.base_ms / 1e3,
            overhead_per_request=overhead.per_request_ms / 1e3,
        )
