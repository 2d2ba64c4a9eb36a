"""Errors that name the wrong argument of a public function, built from its annotations after a call has failed.

Annotations are read only after an exception, so that a call costs nothing more and every value that works is accepted.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from kvgym.errors import ConfigError, KVGymError, shown

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

_LONGEST_NAME = 255
"""Longest name of a file or folder, characters."""

_MOST_ELEMENTS = 1000
"""Most elements of a sequence that are checked."""


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: replace an exception by a ConfigError if an argument has the wrong type.

    Too many, missing or unknown arguments raise TypeError, as for any function, and errors of kvgym pass unchanged.
    """

    @functools.wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except (KVGymError, MemoryError):
            raise
        except Exception as error:
            wrong = _wrong_argument(function, arguments, named)
            if wrong is None:
                raise
            raise ConfigError(f"{wrong} ({type(error).__name__}: {error})") from error

    return called


def explained_class(cls: C) -> C:
    """Class decorator: the constructor is :func:`explained`."""
    cls.__init__ = explained(cls.__init__)  # type: ignore[misc]
    return cls


def check_fields(made: Any) -> None:
    """Check the fields of a dataclass instance against their annotations.

    Raises:
        ConfigError: the first field that does not fit.
    """
    scope = vars(sys.modules[type(made).__module__])
    for field in dataclasses.fields(made):
        value, text = getattr(made, field.name), str(field.type)
        if not _fits(value, text, scope) or (text in ("int", "float") and isinstance(value, bool | np.bool_)):
            raise ConfigError(f"{type(made).__name__}: {field.name} = {shown(value)}; expected {text}")


def _wrong_argument(function: Callable[..., Any], arguments: Any, named: Mapping[str, Any]) -> str | None:
    """Return the message about the first argument that does not fit its annotation, None if all fit."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*arguments, **named).arguments
    except TypeError:
        return None
    scope = getattr(function, "__globals__", {})
    what = function.__qualname__.removesuffix(".__init__")
    for name, value in bound.items():
        parameter = signature.parameters[name]
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        if not variadic and annotation is not parameter.empty and not _fits(value, text, scope):
            return f"{what}: {name} = {shown(value)}; expected {' '.join(text.split())}"
    return None


def _fits(value: Any, annotation: str, scope: Mapping[str, Any]) -> bool:
    """Return whether a value fits an annotation; True if that cannot be decided."""
    if "Path" in annotation and isinstance(value, str | os.PathLike):
        name = os.fspath(value)
        if "\0" in str(name) or max(map(len, re.split(r"[/\\]", str(name)))) > _LONGEST_NAME:
            return False  # not a valid file name
    return any(_fits_one(value, form, scope) for form in _parts(annotation, "|"))


def _fits_one(value: Any, form: str, scope: Mapping[str, Any]) -> bool:
    name, _, inside = form.partition("[")
    name, parameters = name.rpartition(".")[2], _parts(inside.removesuffix("]"), ",") if inside else []
    if name in ("Any", "object", "T"):
        return True
    if name == "bool":
        return isinstance(value, bool | np.bool_)
    if name == "None":
        return value is None
    if name == "Literal":
        return isinstance(value, str) and value in [part.strip("\"'") for part in parameters]
    if name in ("Annotated", "Optional", "ClassVar"):
        return (name == "Optional" and value is None) or _fits(value, parameters[0], scope)
    if name == "int":
        return isinstance(value, int | np.integer)
    if name == "float":
        return isinstance(value, int | float | np.number) and not math.isnan(value)
    if name in ("ArrayLike", "NDArray", "ndarray", "Floats", "Times", "Lengths", "Ids"):
        return _is_numbers(value)
    if name == "Callable":
        return callable(value)
    if name == "Path":
        return isinstance(value, os.PathLike)
    if name in ("Mapping", "dict"):
        return isinstance(value, Mapping)
    if name in ("Iterable", "Sequence", "Collection", "list", "tuple", "set", "frozenset"):
        return _is_collection(value, name, parameters, scope)
    return _is_named(value, name, form, scope)


def _is_collection(value: Any, name: str, parameters: list[str], scope: Mapping[str, Any]) -> bool:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return False
    if isinstance(value, np.ndarray) and not value.ndim:
        return False
    if name in ("Sequence", "list", "tuple") and not isinstance(value, Sequence | np.ndarray):
        return False
    if not parameters or not isinstance(value, Sequence | np.ndarray):
        return True
    element = parameters[0]
    fixed = name == "tuple" and parameters[-1] != "..."
    if fixed and len(value) != len(parameters):
        return False
    kinds = parameters if fixed else [element] * min(len(value), _MOST_ELEMENTS)
    return all(_fits(item, kind, scope) for item, kind in zip(value, kinds, strict=False))


def _is_numbers(value: Any) -> bool:
    """Return whether a value can be converted to an array of numbers."""
    try:
        array = np.asarray(value)
        return array.dtype.kind in "biuf" and not np.isnan(array).any()
    except Exception:  # a user's object may raise anything
        return False


def _is_named(value: Any, name: str, form: str, scope: Mapping[str, Any]) -> bool:
    """Return whether a value is an instance of a class; by name if only type checkers import the class."""
    found = scope.get(name, getattr(typing, name, None) or __builtins_of(scope).get(name))
    if isinstance(found, type):
        return isinstance(value, found)
    if found is not None:  # a type alias
        text = inspect.formatannotation(found) if not isinstance(found, str) else found
        return True if text.rpartition(".")[2] == name or "~" in text else _fits(value, text, scope)
    if not re.fullmatch(r"[A-Z]\w+", name):
        return True
    return any(base.__name__ == name for base in type(value).__mro__)


def __builtins_of(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    held = scope.get("__builtins__", {})
    return held if isinstance(held, Mapping) else vars(held)


def _parts(text: str, separator: str) -> list[str]:
    """Split an annotation at separators outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
