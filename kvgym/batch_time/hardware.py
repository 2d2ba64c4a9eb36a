"""Hardware files: a model on GPUs, with its calibrated tables, KV capacity and where they come from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvgym.batch_time.held_out import Comparison, FitError, HeldOut, compare_held_out, fit_errors
from kvgym.batch_time.overhead import NO_ENGINE, NONE, EngineOverhead, check_engine, parse_overhead
from kvgym.batch_time.profile import COMPOSITIONS, ProfileBatchTime
from kvgym.batch_time.shapes import GPU, ModelShape
from kvgym.batch_time.tables import ProfileTables
from kvgym.batch_time.yaml_files import parse_fields, read_text, validate_fields
from kvgym.errors import ConfigError, UnknownNameError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hardware(_Section):
    """A model served on GPUs as one worker.

    Attributes:
        name: name of the file.
        description: one line.
        source: where the measurements come from, with licence.
        date: day of the calibration, ISO 8601.
        gpu: data-sheet figures.
        tensor_parallel: GPUs that the model is split over.
        model: shape of the model.
        kv_capacity: tokens of KV cache.
        kv_capacity_origin: where that figure comes from.
        engine: name in ``engines`` of the one that is taken unless another is asked for.
        engines: what engines add to a batch outside the GPU, by name; ``"none"`` is always one.
        valid_range: measured (low, high) by quantity.
        fit_error: by operator group, what the tables make of the held-out rows.
        tables: calibrated operator tables.
        held_out: measurements that the tables were not fitted to.
    """

    name: str
    description: str
    source: str
    date: str
    gpu: GPU
    tensor_parallel: int = Field(gt=0)
    model: ModelShape
    kv_capacity: int = Field(gt=0)
    kv_capacity_origin: str
    engine: str
    engines: dict[str, EngineOverhead]
    valid_range: dict[str, tuple[float, float]]
    fit_error: dict[str, FitError]
    tables: ProfileTables
    held_out: HeldOut

    @model_validator(mode="after")
    def _consistent(self) -> Hardware:
        if self.tables.num_layers != self.model.num_layers:
            raise ValueError(
                f"tables.num_layers is {self.tables.num_layers}, model.num_layers {self.model.num_layers}"
            )
        if (self.tables.all_reduce is None) != (self.tensor_parallel == 1):
            raise ValueError("tables.all_reduce must be given exactly where tensor_parallel > 1")
        check_engine(self.engine, self.engines)
        return self

    def measured_errors(self) -> dict[str, FitError]:
        """Return the errors of the tables on the held-out rows, by operator group; ``fit_error`` says the same."""
        return fit_errors(self.tables, self.held_out)

    def comparisons(self) -> dict[str, Comparison]:
        """Return predicted and measured milliseconds of the held-out rows, by operator group."""
        return compare_held_out(self.tables, self.held_out)

    @property
    def all_engines(self) -> dict[str, EngineOverhead]:
        """What engines add to a batch, by name, ``"none"`` included."""
        return {**self.engines, NO_ENGINE: self.engines.get(NO_ENGINE, NONE)}

    def overhead(self, engine: str | None = None) -> EngineOverhead:
        """Return what an engine adds to a batch.

        Args:
            engine: name; None = the file's own choice.

        Raises:
            UnknownNameError: the file has no engine of that name.
        """
        name = self.engine if engine is None else engine
        if name not in self.all_engines:
            raise UnknownNameError(f"engine of hardware {self.name}", name, self.all_engines)
        return self.all_engines[name]

    def default_engine(self, composition: str = "kvgym") -> str:
        """Return the engine that is taken where none is asked for: with composition "vidur" ``"none"``.

        Raises:
            UnknownNameError: an unknown composition.
        """
        if composition not in COMPOSITIONS:
            raise UnknownNameError("composition", composition, COMPOSITIONS)
        return NO_ENGINE if composition == "vidur" else self.engine

    def batch_time(
        self, *, composition: str = "kvgym", engine: str | Mapping[str, Any] | None = None
    ) -> ProfileBatchTime:
        """Return the batch-time model of this hardware.

        Args:
            composition: one of :data:`~kvgym.batch_time.profile.COMPOSITIONS`.
            engine: what the engine adds outside the GPU: a name in ``engines``, ``"none"``, or the fields of an
                :class:`~kvgym.batch_time.overhead.EngineOverhead` (``{"base_ms": 5, "per_request_ms": 0.1}``).
                None = the file's ``engine``; with composition ``"vidur"``, which counts none, ``"none"``.

        Raises:
            UnknownNameError: an unknown composition or engine.
            ConfigError: ``engine`` is neither, or the fields of an overhead are wrong.
        """
        if isinstance(engine, Mapping):
            overhead, name = parse_overhead(engine), None
        else:
            name = self.default_engine(composition) if engine is None else engine
            if not isinstance(name, str):
                raise ConfigError(
                    f"engine = {name!r}; expected a name or figures, {{base_ms: …, per_request_ms: …}}"
                )
            overhead = self.overhead(name)
        return ProfileBatchTime(
            self.tables,
            composition=composition,
            overhead=overhead,
            engine=name,
            source=self.source,
            valid_range=self.valid_range,
            hardware=self.name,
        )


def _files() -> dict[str, str]:
    folder = resources.files("kvgym.configs").joinpath("hardware")
    if not folder.is_dir():
        return {}
    items = sorted(folder.iterdir(), key=lambda item: item.name)
    return {item.name[:-5]: item.read_text("utf-8") for item in items if item.name.endswith(".yaml")}


@functools.lru_cache(maxsize=1)
def _descriptions() -> dict[str, str]:
    found = {}
    for name, text in _files().items():
        line = next((part for part in text.splitlines() if part.startswith("description:")), "")
        found[name] = str((yaml.safe_load(line) or {}).get("description", ""))
    return found


def hardware_names() -> dict[str, str]:
    """Return the names of the hardware files that come with kvgym, with a description each."""
    return dict(_descriptions())


def load_hardware(name_or_path: str | Path) -> Hardware:
    """Read a hardware file.

    Args:
        name_or_path: one of :func:`hardware_names`, or the path of a YAML file (it ends in ``.yaml`` or
            ``.yml``, or is a :class:`~pathlib.Path`).

    Raises:
        UnknownNameError: no file of that name comes with kvgym.
        ConfigError: the file cannot be read or a field is wrong; the message names file and field.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        return _load_path(Path(name_or_path))
    return _load_name(name_or_path)


@functools.lru_cache(maxsize=16)
def _load_name(name: str) -> Hardware:
    item = resources.files("kvgym.configs").joinpath("hardware", f"{name}.yaml")
    if name not in _descriptions():
        raise UnknownNameError("hardware", name, _descriptions())
    return parse_hardware(item.read_text("utf-8"), f"{name}.yaml")


def _load_path(path: Path) -> Hardware:
    text = read_text(path, "hardware file")
    hardware = parse_hardware(text, str(path))
    return hardware.model_copy(update={"name": str(path)})


def parse_hardware(text: str, origin: str) -> Hardware:
    """Parse the text of a hardware file.

    Args:
        text: YAML.
        origin: name of the file, for messages.

    Raises:
        ConfigError: naming file and field.
    """
    origin = f"hardware file {origin}"
    return validate_fields(Hardware, parse_fields(text, origin), origin)
