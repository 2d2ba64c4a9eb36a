"""Reading YAML files, those that come with kvgym and others, with errors that name file and field."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from kvgym.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


@functools.lru_cache
def shipped_texts(folder: str) -> dict[str, str]:
    """Return the YAML files that come with kvgym in a folder of ``configs``, text by name without the ending."""
    found = resources.files("kvgym.configs").joinpath(folder)
    return {
        file.name[:-5]: file.read_text("utf-8") for file in found.iterdir() if file.name.endswith(".yaml")
    }


def read_text(path: Path, what: str) -> str:
    """Return the text of a file.

    Args:
        path: the file.
        what: what it is, for messages: "recipe".

    Raises:
        ConfigError: it cannot be read, or is no UTF-8 text.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path}: not UTF-8 text") from None


def parse_fields(text: str, origin: str) -> dict[str, Any]:
    """Return the fields that a YAML text holds.

    Args:
        text: YAML.
        origin: what and which file it is, for messages.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not valid YAML: {error}") from None
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
        ConfigError: naming the first field that is wrong.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        valid = f"; fields: {', '.join(kind.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{origin}: field {place}: {first['msg']}{valid}") from None
