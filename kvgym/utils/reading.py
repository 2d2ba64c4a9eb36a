"""The way in for files and texts: read within a size, made plain values, with errors that say where and what.

Whatever users write passes here: YAML, JSON and arrays of ``.npz`` files, beside the tables of traces
(:mod:`kvgym.workloads.traces`). Sizes are checked before memory is taken, and nothing that is read is executed.
"""

from __future__ import annotations

import functools
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic._internal._model_construction import ModelMetaclass

from kvgym.errors import ConfigError, field_errors, shown

M = TypeVar("M", bound=BaseModel)


class _Described(ModelMetaclass):
    """Calls of the class raise errors of kvgym; validation of fields, and what contains them, is Pydantic's."""

    def __call__(cls, *arguments: Any, **fields: Any) -> Any:  # noqa: N805
        try:
            return super().__call__(*arguments, **fields)
        except ValidationError as error:
            kind: Any = cls
            wrong = field_errors(error, kind, fields)
            details = "\n".join([*wrong, f"valid fields: {', '.join(kind.model_fields)}"])
            raise ConfigError(f"{kind.__name__}: {wrong[0]}", details) from None


class Description(BaseModel, metaclass=_Described):
    """A model whose constructor raises a :class:`~kvgym.errors.ConfigError` that names the field that is wrong."""


MAX_BYTES = 64 * 2**20
"""Largest file that is read as a whole, and most that the arrays of an ``.npz`` file take, bytes."""

MAX_VALUES = 2_000_000
"""Most values of a YAML text, counted as often as its aliases repeat them."""

MAX_KEYS = 10_000
"""Most keys of one mapping of a YAML text."""

MAX_DEPTH = 64
"""How deep a YAML text may be nested; thousands of levels would overflow the stack of its parser."""


@functools.lru_cache
def shipped_texts(folder: str) -> dict[str, str]:
    """Return the YAML files that come with kvgym in a folder of ``configs``, text by name without the ending."""
    found = resources.files("kvgym.configs").joinpath(folder)
    return {
        file.name[:-5]: file.read_text("utf-8") for file in found.iterdir() if file.name.endswith(".yaml")
    }


def read_bytes(path: Path, what: str) -> bytes:
    """Return the content of a file.

    Args:
        path: the file.
        what: what it is, for messages: "recipe".

    Raises:
        ConfigError: it cannot be read, or is larger than :data:`MAX_BYTES`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise ConfigError(f"{what} {path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{what} {path}: larger than {MAX_BYTES:,} bytes; this is no such file")
    return data


def read_text(path: Path, what: str) -> str:
    """Return the text of a file; arguments and errors as of :func:`read_bytes`, or it is no UTF-8 text."""
    data = read_bytes(path, what)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{what} {path}, line {line}: not UTF-8 text; save it with that encoding") from None


# The loader in C, where PyYAML has it, reads large tables in a tenth of the time.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Plain(_Loader):  # type: ignore[misc]
    """Reads YAML; a key that stands twice in one mapping is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are all different."""
        found = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in found:
                raise yaml.MarkedYAMLError(
                    problem=f"{shown(key.value)} occurs twice", problem_mark=key.start_mark
                )
            found.add(key.value if isinstance(key.value, str) else None)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def parse_yaml(text: str, origin: str) -> Any:
    """Return what a YAML text holds: None, truth values, numbers, texts, lists, and mappings with texts as keys.

    Args:
        text: YAML.
        origin: what and which file it is, for messages.

    Raises:
        ConfigError: it is no YAML or holds something else, or more than :data:`MAX_VALUES` values.
    """
    try:
        _check_shape(text)
        content = yaml.load(text, Loader=_Plain)
        _count(content, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark is not None else ""
        raise ConfigError(f"{origin}: not valid YAML:{place} {error.problem or error.context}") from None
    except MemoryError:
        raise
    except Exception as error:  # what stands behind tags and numbers fails in many ways
        raise ConfigError(f"{origin}: not valid YAML: {error}") from None
    return content


def _check_shape(text: str) -> None:
    """Refuse what is nested too deeply, and mappings that are too large, by the events of the parser.

    Events need no stack, and those behind the first mistake are not made.
    """
    sizes: list[float] = [-math.inf]  # of the collections around, keys and values; lists do not count
    event: Any
    for event in yaml.parse(text, Loader=_Loader):
        mark: Any = event.start_mark
        if isinstance(event, yaml.CollectionEndEvent):
            sizes.pop()
            continue
        sizes[-1] += 1
        if sizes[-1] > 2 * MAX_KEYS:
            raise yaml.MarkedYAMLError(problem=f"a mapping of more than {MAX_KEYS:,} keys", problem_mark=mark)
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(0 if isinstance(event, yaml.MappingStartEvent) else -math.inf)
            if len(sizes) > MAX_DEPTH + 1:
                raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=mark)


def _count(value: Any, known: dict[int, int]) -> int:
    """Return how many values there are; aliases make that many more than the text has."""
    if value is None or isinstance(value, str | bool | int | float):
        return 1
    if id(value) in known:
        if known[id(value)] == 0:
            raise ValueError("an alias stands for something that contains it")
        return known[id(value)]
    known[id(value)] = 0
    if isinstance(value, dict):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise ValueError(f"keys must be texts, got {shown(wrong)}; put it in quotes")
        inside = list(value.values())
    elif isinstance(value, list):
        inside = value
    else:
        raise ValueError(
            f"{shown(value)} is of type {type(value).__name__}; put it in quotes to make it a text"
        )
    total = 1 + sum(_count(item, known) for item in inside)
    if total > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values, aliases included")
    known[id(value)] = total
    return total


def parse_fields(text: str, origin: str) -> dict[str, Any]:
    """Return the fields that a YAML text holds; arguments and errors as of :func:`parse_yaml`, or it is no mapping."""
    return mapping(parse_yaml(text, origin), origin)


def parse_json(text: str | bytes, origin: str, *, finite: bool = False) -> Any:
    """Return what a JSON text holds.

    Args:
        text: JSON.
        origin: what and which file it is, for messages.
        finite: refuse numbers that are not finite, which Python's JSON has.

    Raises:
        ConfigError: it is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse if finite else float)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{origin}: not valid JSON: {place}: {error.msg}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # no UTF-8, a number of thousands of digits, endless brackets
        raise ConfigError(f"{origin}: not valid JSON: {error}") from None


def _refuse(text: str) -> None:
    raise ValueError(f"the number {text}; all numbers must be finite")


def mapping(content: Any, origin: str) -> dict[str, Any]:
    """Return what has been read if it is a mapping.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{origin}: must be a mapping of fields, got {type(content).__name__}")
    return content


def validate_fields(kind: type[M], fields: Mapping[str, Any], origin: str) -> M:
    """Return the model that fields describe.

    Args:
        kind: of the model.
        fields: by name.
        origin: what and which file they come from, for messages.

    Raises:
        ConfigError: naming the first field that is wrong; the details name all, and the valid ones.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        wrong = field_errors(error, kind, fields, "field ")
        details = "\n".join([*wrong, f"valid fields: {', '.join(kind.model_fields)}"])
        raise ConfigError(f"{origin}: {wrong[0]}", details) from None


def check_archive(path: Path, what: str) -> None:
    """Check that a zip file holds no more than its own size, as those do whose members are stored as they are.

    Args:
        path: the file.
        what: what it is, for messages.

    Raises:
        ConfigError: it cannot be read or is no zip file, or would take more memory than it has bytes.
    """
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            announced = sum(member.file_size for member in archive.infolist())
    except Exception as error:  # damaged archives fail in many ways
        raise ConfigError(f"{what} {path}: cannot be read, or damaged: {error}") from None
    if announced > size:
        raise ConfigError(
            f"{what} {path}: {size:,} bytes that would take {announced:,} unpacked; this is no such file"
        )


def read_arrays(path: Path, what: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name.

    Args:
        path: the file.
        what: what it is, for messages.

    Raises:
        ConfigError: it cannot be read, is damaged, holds objects, or takes more than :data:`MAX_BYTES` unpacked.
    """
    data = read_bytes(path, what)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return dict(_arrays(archive))
    except MemoryError:
        raise
    except Exception as error:  # damaged archives fail in many ways
        raise ConfigError(f"{what} {path}: not an .npz file, or a damaged one: {error}") from None


def _arrays(archive: zipfile.ZipFile) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of an archive; what members and headers announce is checked before anything is unpacked."""
    announced = sum(member.file_size for member in archive.infolist())
    if announced > MAX_BYTES:
        raise ValueError(f"it would take {announced:,} bytes unpacked; at most {MAX_BYTES:,} are read")
    for member in archive.infolist():
        data = archive.read(member)
        file = io.BytesIO(data)
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or size != len(data) - file.tell():
            raise ValueError(f"array {member.filename} announces {shape} of {dtype}, which it does not hold")
        values = np.frombuffer(data, dtype, offset=file.tell())
        yield (
            member.filename.removesuffix(".npy"),
            values.reshape(shape, order="F" if fortran else "C").copy(),
        )
