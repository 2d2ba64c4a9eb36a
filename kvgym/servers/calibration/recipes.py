"""Recipes: the inputs of a calibration, including numbers that profiles do not contain."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvgym.batch_time.hardware.kv_capacity import check_tensor_parallel, kv_capacity
from kvgym.batch_time.hardware.overhead import NO_ENGINE, EngineOverhead, check_engine, engines_of
from kvgym.batch_time.hardware.presets import GPUS, MODELS
from kvgym.batch_time.hardware.shapes import GPU, Dtype, ModelShape, require_plain
from kvgym.errors import UnknownNameError
from kvgym.simulator.system import MAX_CAPACITY
from kvgym.utils.reading import parse_fields, read_text, validate_fields


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ProfileFile(_Section):
    """One CSV file, or some of its rows.

    Attributes:
        file: path, relative to the folder of the profiles.
        where: required values by column, in addition to those that follow from the recipe.
    """

    file: str = Field(min_length=1, pattern=r"^[^\x00]+$")
    where: dict[str, float | str] = {}


class ProfileFiles(_Section):
    """The profiles of a recipe; a file without conditions may be given as a path.

    Attributes:
        linear: token operators.
        attention: prefill and decode attention.
        all_reduce: collectives; needed with more than one GPU.
        devices_per_node: GPUs of the collective in one machine; None = all of them.
        kv_cache_size: meaning of that column in the attention file: ``"cached"``, cached tokens of each request,
            without its new ones; ``"batch"``, keys of all requests together, with new ones.
        any_tensor_parallel: accept files without a column of the degree, as measured at the recipe's degree.
    """

    linear: ProfileFile
    attention: ProfileFile
    all_reduce: ProfileFile | None = None
    devices_per_node: int | None = Field(default=None, gt=0)
    kv_cache_size: Literal["cached", "batch"] = "cached"
    any_tensor_parallel: bool = False

    @field_validator("linear", "attention", "all_reduce", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value


class KVCapacity(_Section):
    """Tokens of KV cache: a number with its origin, or the arguments of :func:`kv_capacity`.

    Attributes:
        tokens: the number; None = computed.
        origin: its source.
        memory_fraction: share of the device memory that the engine may use.
        activation_reserve_gib: GiB per GPU for activations, workspaces and the CUDA context.
        block_size: tokens per block.
    """

    tokens: int | None = Field(default=None, ge=2, le=MAX_CAPACITY)
    origin: str = ""
    memory_fraction: float = 0.9
    activation_reserve_gib: float = 2.0
    block_size: int = 16

    @model_validator(mode="after")
    def _origin(self) -> KVCapacity:
        if (self.tokens is None) != (not self.origin):
            raise ValueError("tokens and origin go together")
        return self


class Recipe(_Section):
    """What to calibrate.

    Attributes:
        name: name of the hardware file.
        description: one line.
        source: source of the profiles, with licence.
        profiles: the CSV files.
        model: shape; in the file a full shape or the name of a preset.
        gpu: data-sheet values; in the file all values or the name of a preset.
        weights: type of the weights of the blocks; None = the model's, usually 16-bit.
        kv_dtype: type of the cache entries; None = the model's, usually 16-bit.
        tensor_parallel: number of GPUs.
        kv_capacity: tokens of KV cache.
        engine: default engine, a name in ``engines`` or of kvgym.
        engines: overhead of further engines outside the GPU, by name.
        method: 2 = as described in docs/calibration.md; 1 = as kvgym's own files were made, which results rest on: rows
            are held out wherever the draw puts them, and prefill attention is concave.
    """

    name: str = Field(pattern=r"^\w[\w.-]*$")
    description: str = Field(max_length=100)
    source: str
    profiles: ProfileFiles
    model: ModelShape
    gpu: GPU
    weights: Dtype | None = None
    kv_dtype: Dtype | None = None
    tensor_parallel: int = Field(default=1, gt=0)
    kv_capacity: KVCapacity = KVCapacity()
    engine: str = NO_ENGINE
    engines: dict[str, EngineOverhead] = {}
    method: Literal[1, 2] = 2

    @property
    def served(self) -> ModelShape:
        """The model with the recipe's types of weights and cache."""
        types = {"weight_dtype": self.weights, "kv_dtype": self.kv_dtype}
        return self.model.model_copy(
            update={name: dtype for name, dtype in types.items() if dtype is not None}
        )

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        require_plain(self.model, "calibration", types=True)
        check_tensor_parallel(self.model, self.tensor_parallel)
        if self.gpu.num_sms is None:
            raise ValueError(
                "gpu.num_sms is needed: the number of multiprocessors over which kernels run in waves"
            )
        if (self.profiles.all_reduce is None) != (self.tensor_parallel == 1):
            raise ValueError("profiles.all_reduce must name a file if and only if tensor_parallel > 1")
        check_engine(self.engine, {**engines_of(self.tensor_parallel), **self.engines})
        return self

    def capacity(self) -> tuple[int, str]:
        """Return the tokens of KV cache and their origin.

        Raises:
            ConfigError: the weights leave no memory.
        """
        given = self.kv_capacity
        if given.tokens is not None:
            return given.tokens, given.origin
        tokens = kv_capacity(
            self.gpu,
            self.served,
            tensor_parallel=self.tensor_parallel,
            memory_fraction=given.memory_fraction,
            activation_reserve=given.activation_reserve_gib * 2**30,
            block_size=given.block_size,
        )
        return tokens, (
            f"computed by kvgym.batch_time.kv_capacity: {given.memory_fraction:.0%} of the memory less the weights "
            f"and {given.activation_reserve_gib:g} GiB per GPU, in blocks of {given.block_size}"
        )


def recipe_names() -> list[str]:
    """Return the names of kvgym's own recipes, one for each of its hardware files."""
    folder = resources.files("kvgym.configs").joinpath("recipe")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe.

    Args:
        name_or_path: one of :func:`recipe_names`, or the path of a YAML file (it ends in ``.yaml`` or ``.yml``, or
            is a :class:`~pathlib.Path`). The default of ``name`` in the file is the name of the file.

    Raises:
        UnknownNameError: no such recipe, model preset or GPU preset.
        ConfigError: the file cannot be read or a field is wrong; the message names file and field.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
        return parse_recipe(read_text(path, "recipe"), str(path), path.stem)
    if name_or_path not in recipe_names():
        raise UnknownNameError("recipe", name_or_path, recipe_names())
    item = resources.files("kvgym.configs").joinpath("recipe").joinpath(f"{name_or_path}.yaml")
    return parse_recipe(item.read_text("utf-8"), f"{name_or_path}.yaml", name_or_path)


def parse_recipe(text: str, origin: str, name: str) -> Recipe:
    """Parse the text of a recipe.

    Args:
        text: YAML.
        origin: name of the file, for messages.
        name: default name of the recipe.

    Raises:
        UnknownNameError: an unknown model or GPU.
        ConfigError: a wrong field; the message names file and field.
    """
    origin = f"recipe {origin}"
    filled = {"name": name, **parse_fields(text, origin)}
    if isinstance(filled.get("model"), str):
        filled["model"] = MODELS.find(filled["model"])
    if isinstance(filled.get("gpu"), str):
        filled["gpu"] = GPUS.find(filled["gpu"])
    return validate_fields(Recipe, filled, origin)
