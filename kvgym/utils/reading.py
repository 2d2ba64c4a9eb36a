"""Readers for users' files and texts: size limits, plain values, errors with the position.

All input except tables (:mod:`kvgym.workloads.traces.source`) is read here: YAML, JSON and arrays of ``.npz`` files.
Sizes are checked before memory is allocated, and nothing in a file is executed.
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
    """Metaclass that turns validation errors of constructors into errors of kvgym; Pydantic validates fields."""

    def __call__(cls, *arguments: Any, **fields: Any) -> Any:  # noqa: N805
        try:
            return super().__call__(*arguments, **fields)
        except ValidationError as error:
            kind: Any = cls
            wrong = field_errors(error, kind, fields)
            details = "\n".join([*wrong, f"valid fields: {', '.join(kind.model_fields)}"])
            raise ConfigError(f"{kind.__name__}: {wrong[0]}", details) from None


class Description(BaseModel, metaclass=_Described):
    """A model with a constructor that raises a :class:`~kvgym.errors.ConfigError` that names the wrong field."""


MAX_BYTES = 64 * 2**20
"""Largest file, and largest total size of the arrays in an ``.npz`` file, bytes."""

MAX_VALUES = 2_000_000
"""Most values in a YAML text; values repeated by aliases count each time."""

MAX_KEYS = 10_000
"""Most keys of one mapping in a YAML text."""

MAX_DEPTH = 64
"""Deepest nesting of a YAML text; thousands of levels would overflow the parser's stack."""


@functools.lru_cache
def shipped_texts(folder: str) -> dict[str, str]:
    """Return the texts of kvgym's YAML files in a folder of ``configs``, by file name without the suffix."""
    found = resources.files("kvgym.configs").joinpath(folder)
    return {
        file.name[:-5]: file.read_text("utf-8") for file in found.iterdir() if file.name.endswith(".yaml")
    }


def read_bytes(path: Path, what: str) -> bytes:
    """Return the content of a file.

    Args:
        path: the file.
        what: kind of file, for messages: "recipe".

    Raises:
        ConfigError: it cannot be read, or is larger than :data:`MAX_BYTES`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        raise ConfigError(f"{what} {path}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{what} {path}: larger than {MAX_BYTES:,} bytes; this is not a {what}")
    return data


def read_text(path: Path, what: str) -> str:
    """Return the text of a UTF-8 file; arguments and errors as for :func:`read_bytes`, also for other encodings."""
    data = read_bytes(path, what)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{what} {path}, line {line}: not UTF-8 text; save it with that encoding") from None


# The C loader, if PyYAML has it, reads large tables in a tenth of the time.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Plain(_Loader):  # type: ignore[misc]
    """YAML loader that refuses duplicate keys in a mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping; raise an error if a key occurs twice."""
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
    """Parse a YAML text into None, booleans, numbers, strings, lists, and mappings with string keys.

    Args:
        text: YAML.
        origin: kind and name of the file, for messages.

    Raises:
        ConfigError: invalid YAML, other types, or more than :data:`MAX_VALUES` values.
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
    except Exception as error:  # tags and numbers fail in many ways
        raise ConfigError(f"{origin}: not valid YAML: {error}") from None
    return content


def _check_shape(text: str) -> None:
    """Refuse deep nesting and large mappings, using the parser's events.

    Events need no stack, and parsing stops at the first error.
    """
    sizes: list[float] = [-math.inf]  # keys and values of each enclosing mapping; -inf for lists
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
    """Return the number of values, with those repeated by aliases."""
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
    """Parse a YAML text that must be a mapping; arguments and errors as for :func:`parse_yaml`."""
    return mapping(parse_yaml(text, origin), origin)


def parse_json(text: str | bytes, origin: str, *, finite: bool = False) -> Any:
    """Parse a JSON text.

    Args:
        text: JSON.
        origin: kind and name of the file, for messages.
        finite: refuse NaN and infinities, which Python's JSON parser accepts.

    Raises:
        ConfigError: invalid JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse if finite else float)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{origin}: not valid JSON: {place}: {error.msg}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not UTF-8, a number of thousands of digits, too many brackets
        raise ConfigError(f"{origin}: not valid JSON: {error}") from None


def _refuse(text: str) -> None:
    raise ValueError(f"the number {text}; all numbers must be finite")


def mapping(content: Any, origin: str) -> dict[str, Any]:
    """Return the content if it is a mapping.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{origin}: must be a mapping of fields, got {type(content).__name__}")
    return content


def validate_fields(kind: type[M], fields: Mapping[str, Any], origin: str) -> M:
    """Build a model from fields.

    Args:
        kind: class of the model.
        fields: values by name.
        origin: kind and name of the file they come from, for messages.

    Raises:
        ConfigError: names the first wrong field; the details name all wrong and all valid fields.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        wrong = field_errors(error, kind, fields, "field ")
        details = "\n".join([*wrong, f"valid fields: {', '.join(kind.model_fields)}"])
        raise ConfigError(f"{origin}: {wrong[0]}", details) from None


def check_archive(path: Path, what: str) -> None:
    """Check that a zip file unpacks to no more than its own size, as archives without compression do.

    Args:
        path: the file.
        what: kind of file, for messages.

    Raises:
        ConfigError: it cannot be read, is not a zip file, or would unpack to more than its size.
    """
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            announced = sum(member.file_size for member in archive.infolist())
    except Exception as error:  # damaged archives fail in many ways
        raise ConfigError(f"{what} {path}: cannot be read, or damaged: {error}") from None
    if announced > size:
        raise ConfigError(
            f"{what} {path}: {size:,} bytes that would unpack to {announced:,}; this is not a {what}"
        )


def read_arrays(path: Path, what: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name.

    Args:
        path: the file.
        what: kind of file, for messages.

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
    """Yield the arrays of an archive; sizes in directory and headers are checked before anything is unpacked."""
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
