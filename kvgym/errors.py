"""Exceptions of kvgym. Every error that a user can cause derives from :class:`KVGymError`.

A message is one short line; more, such as all valid names, is in ``error.details``.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import pickle
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

__all__ = [
    "ConfigError",
    "ContractError",
    "InformationError",
    "InvalidDecisionError",
    "KVGymError",
    "KernelError",
    "LivelockError",
    "NumbaVersionError",
    "OutOfBoundsError",
    "RunError",
    "TraceFormatError",
    "UnknownNameError",
    "UserCodeError",
    "WorkloadError",
]

LIMIT = 300
"""Longest message, characters."""


def shown(value: object, limit: int = 80) -> str:
    """Return the ``repr`` of a value for a message, cut in the middle if it is longer than ``limit``."""
    try:
        text = repr(value)
    except Exception:  # integers with thousands of digits raise, and users' classes may raise anything
        text = f"a value of type {type(value).__name__}"
    return cut(text, limit)


def some(names: Iterable[object], limit: int = 120) -> str:
    """Return names separated by commas; only the first ones if all would exceed ``limit`` characters."""
    known = [cut(str(name), 40) for name in names]
    if len(", ".join(known)) <= limit:
        return ", ".join(known)
    count = next(k for k in range(len(known), -1, -1) if len(", ".join(known[:k])) <= limit)
    return f"{', '.join(known[:count])}, … ({len(known)} in all)"


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return known names that resemble an unknown one, as a question; empty if there are none."""
    name, known = str(name)[:100], list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    close = close or ([other for other in known if name in other][:3] if len(name) > 2 else [])
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""


_CONTROLS = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
}


def printable(text: str) -> str:
    """Return a text without control characters of terminals; line breaks and tabs stay.

    Escape becomes the symbol ␛, and likewise others that have a symbol in Unicode.
    """
    return text.translate(_CONTROLS)


def cut(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, cut in the middle, as mistake and expectation are at its ends."""
    tail = limit // 3
    return text if len(text) <= limit else f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"


class KVGymError(Exception):
    """Base of all errors raised by kvgym.

    Attributes:
        details: what the message had no room for, on several lines; empty if the message is complete.

    Args:
        message: the mistake and the valid values. Line breaks become spaces; a message longer than :data:`LIMIT` is cut
            in the middle and kept whole in the details. Control characters are replaced in both, see
            :func:`printable`.
        details: the attribute.
    """

    details: str = ""

    def __init__(self, message: object = "", details: str = "") -> None:
        whole = str(message)
        whole = whole if whole.isprintable() else printable(whole)
        short = cut(" ".join(whole.split()) if "\n" in whole else whole, LIMIT)
        super().__init__(short)
        self.details = printable(details) or ("" if short == whole else whole)


class ConfigError(KVGymError, ValueError):
    """A configuration value, option or argument is wrong."""


class ContractError(KVGymError, AssertionError):
    """A policy fails a conformance check, see :mod:`kvgym.policies.contract`."""


class UnknownNameError(ConfigError):
    """A name is not in a registry."""

    def __init__(self, kind: str, name: str, known: Iterable[str], others: str = "") -> None:
        """Build the message, with the closest names first; all valid ones are in the details.

        Args:
            kind: what was looked up, e.g. ``"policy"``.
            name: the name that was not found.
            known: all valid names.
            others: what is accepted other than names, e.g. ``"a YAML file"``.
        """
        name, names = name if isinstance(name, str) else shown(name), sorted(known)
        hint = suggestion(name, names)
        more = f"; or {others}" if others else ""
        message = f"unknown {kind} {shown(name)}.{hint and ' ' + hint} Valid names: {some(names)}{more}."
        super().__init__(message, f"valid names: {', '.join(names)}{more}")
        self._arguments = (kind, name, names, others)

    def __reduce__(self) -> tuple[type[UnknownNameError], tuple[str, str, list[str], str]]:
        """Pickle, as process pools do with exceptions."""
        return type(self), self._arguments


class KernelError(KVGymError):
    """A kernel uses a field that does not exist, or Python that cannot be compiled."""


class NumbaVersionError(KVGymError, ImportError):
    """kvgym does not run with the installed Numba; the message names the versions that work."""


class WorkloadError(KVGymError, ValueError):
    """A workload is malformed or cannot be served by the configured system."""


class TraceFormatError(WorkloadError):
    """A trace file is malformed; the message names file, line, column and what was expected."""


class RunError(KVGymError):
    """A run ended early.

    Attributes:
        result: from :func:`kvgym.simulate`, the :class:`~kvgym.policies.runner.SimulationResult` up to the error, with
            ``completed=False``; else None. It is pickled with the error, or dropped if it cannot be pickled (e.g. for a
            policy defined in a function).
    """

    result: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, as process pools do with exceptions; a result that cannot be pickled must not hide the error."""
        try:
            packed = pickle.dumps(self.result)
        except Exception:  # objects of policies may raise anything
            packed = pickle.dumps(None)
        return _unpickled, (type(self), (*self.args, self.details), packed)


def _unpickled(kind: type[RunError], arguments: tuple[Any, ...], packed: bytes) -> RunError:
    error = kind(*arguments)
    with contextlib.suppress(Exception):  # the policy's module may be unknown here
        error.result = pickle.loads(packed)
    return error


class InvalidDecisionError(RunError):
    """A policy returned a decision that the worker cannot execute; see :class:`RunError` for the result so far."""


class InformationError(KVGymError):
    """A policy read information that it did not declare in ``needs``."""


class LivelockError(RunError):
    """A run cannot end because the policy makes no progress; see :class:`RunError` for the result so far."""


class UserCodeError(RunError):
    """A policy, router, observer, batch-time model or plugin from outside kvgym raised an exception.

    The message names its function and line, ``error.details`` is the traceback.
    """


class OutOfBoundsError(KVGymError):
    """Compiled code accessed an array out of bounds; only the checked build (``KVGYM_DEBUG=1``) detects it."""


MOST_FIELDS = 200
"""Most mistakes of a description that are reported."""


def field_errors(
    error: ValidationError, model: type[BaseModel], given: Mapping[str, Any], word: str = ""
) -> list[str]:
    """Return the mistakes in the fields of a description, a sentence for each wrong field.

    If a field takes several forms, the sentence names them all. At most :data:`MOST_FIELDS` mistakes are reported.

    Args:
        error: the validation error.
        model: the class of the description.
        given: the description.
        word: prefix of field names.

    Returns:
        ``field: what is wrong (got value)``, nested fields as ``outer.inner``; without a field for the description as a
        whole.
    """
    by_place: dict[tuple[Any, ...], list[Any]] = {}
    items = error.errors(include_url=False)
    for item in itertools.islice(items, MOST_FIELDS):
        by_place.setdefault(_place(item, given), []).append(item)
    messages = {place: _message(place, items, model) for place, items in by_place.items()}
    left = len(items) - MOST_FIELDS
    return [
        *(
            f"{word}{'.'.join(map(str, place))}: {message}" if place else message
            for place, message in messages.items()
        ),
        *([f"and {left:,} more mistakes"] if left > 0 else []),
    ]


def _place(item: Any, given: Any) -> tuple[Any, ...]:
    """Return the path of an error, without the names that pydantic gives to the forms of a field."""
    place = []
    for part in item["loc"]:
        inside = isinstance(given, Mapping) and part in given
        if inside or (isinstance(given, list | tuple) and isinstance(part, int) and 0 <= part < len(given)):
            place.append(part)
            given = given[part]
        elif item["type"] == "missing" and part == item["loc"][-1]:
            place.append(part)
    return tuple(place)


def _message(place: Sequence[Any], items: list[Any], model: type[BaseModel]) -> str:
    """Return the mistake in one field."""
    own = [item for item in items if item["type"] == "value_error"]  # sentences of our own validators
    forms = [] if own else _forms(_type_at(place, model))
    if own:
        return str(own[0]["msg"]).removeprefix("Value error, ")
    first = items[0]
    if first["type"] == "union_tag_invalid":
        context = first["ctx"]
        tag = shown(context["tag"])
        return f"{context['discriminator']} is {tag}, valid are: {context['expected_tags']}"
    if first["type"] == "extra_forbidden":
        fields = [name for found in _models_in(_type_at(place[:-1], model)) for name in found.model_fields]
        hint = suggestion(place[-1], fields) if place else ""
        return f"there is no such field; {hint and f'd{hint[1:]} '}valid there: {some(fields)}"
    whole = len(items) > 1 or first["type"] in ("tuple_type", "list_type", "dict_type")
    message = f"expected {' or '.join(forms)}" if whole and forms else first["msg"]
    return message if first["type"] == "missing" else f"{message} (got {shown(first['input'])})"


def _models_in(annotation: Any) -> list[Any]:
    """Return the model classes in a type."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [found for inside in get_args(annotation) for found in _models_in(inside)]


def _type_at(place: Sequence[Any], kind: Any) -> Any:
    """Return the type at a path of a description, None if unknown."""
    for part in place:
        kind = _inside(kind, part)
    return kind


def _inside(kind: Any, part: Any) -> Any:
    """Return the type of a field, entry or element; the union over all forms that have it."""
    if hasattr(kind, "model_fields"):
        field = kind.model_fields.get(part)
        if field is None:
            return None
        return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return arguments[1]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return arguments[0]
    found = [form for form in (_inside(argument, part) for argument in arguments) if form is not None]
    return Union[tuple(found)] if found else None  # noqa: UP007


def _forms(kind: Any) -> list[str]:
    """Return descriptions of the forms that a type takes."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return [form for argument in arguments for form in _forms(argument)]
    if origin is Annotated:
        rules = [rule for meta in arguments[1:] for rule in getattr(meta, "metadata", [meta])]
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        bounds = [f"{sign} {getattr(r, n):g}" for r in rules for n, sign in signs.items() if hasattr(r, n)]
        return [" ".join([form, " and ".join(bounds)]).strip() for form in _forms(arguments[0])]
    if origin is Literal:
        return [f"one of {', '.join(map(repr, arguments))}"]
    if hasattr(kind, "model_fields"):
        return [f"a mapping of {', '.join(kind.model_fields)}"]
    if origin in (tuple, list):
        count = f" of {len(arguments)}" if origin is tuple and Ellipsis not in arguments else ""
        return [f"a list{count}, each {form}" for form in _forms(arguments[0])[:1]] or [f"a list{count}"]
    if origin is dict:
        return [f"a mapping, each value {form}" for form in _forms(arguments[1])[:1]] or ["a mapping"]
    words = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        dict: "a mapping",
    }
    named = words.get(origin or kind)
    return [named] if named else []
