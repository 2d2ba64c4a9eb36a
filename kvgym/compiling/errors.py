"""One-line errors for kernels that Numba cannot compile, instead of a page of types."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvgym.errors import KernelError

_LONGEST = 120
"""Most characters quoted from Numba's message."""


def _field_names(kind: Any) -> set[str]:
    """Return the names of the fields of a Numba type, and of those of its parts."""
    names = set(getattr(kind, "fields", ()))
    inner = (getattr(kind, name) for name in ("dtype", "whole") if hasattr(kind, name))
    parts = [*getattr(kind, "types", ()), *inner]
    return names.union(*(_field_names(part) for part in parts))


def _opened_names(functions: Iterable[Callable[..., Any]]) -> set[str]:
    """Return the field names of tables that functions open by address, and of named tuples that hold these."""
    names = set[str]()
    for function in functions:
        for item in (function.__globals__.get(name) for name in function.__code__.co_names):
            names.update(
                getattr(getattr(item, "opens", None), "names", None) or (),
                getattr(item, "_fields", ()),
                _field_names(getattr(item, "opened", None)),
            )
    return names


def kernel_error(
    title: str, signature: Any, functions: Sequence[Callable[..., Any]], error: Exception
) -> KernelError:
    """Return the error to raise for a kernel that Numba rejects.

    Args:
        title: kind and name of the kernel.
        signature: its Numba signature.
        functions: its function and all helpers it reaches.
        error: what Numba raised.
    """
    text = str(error)
    known = _opened_names(functions).union(*(_field_names(kind) for kind in signature.args))
    unknown = re.search(r"Unknown attribute '(\w+)' of type (\w+)", text)
    name = str(error.args[0]) if isinstance(error, KeyError) else unknown[1] if unknown else ""
    if not name:  # a field of a record, in a function that the kernel calls
        missing = re.search(r"KeyError: '(\w+)'", text)
        name = missing[1] if missing else ""
    if name:
        owner = f" of {unknown[2]}" if unknown else ""
        close = difflib.get_close_matches(name, known, n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        return KernelError(
            f"{title} cannot be compiled: there is no field {name!r}{owner}{hint}{_place(functions, name)}"
        )
    lines = [line.strip() for line in re.sub(r"\x1b\[\d+m", "", text).splitlines()]
    reason = next((line for line in lines if line and not line.startswith("Failed in nopython mode")), text)
    while (shorter := re.sub(r"(Record|array|\[)\([^()]*\)", r"\1", reason)) != reason:
        reason = shorter
    files = re.findall(r'File "([^"]+)", line (\d+)', text)
    place = f" ({files[-1][0]}:{files[-1][1]})" if files else ""
    hint = "kernels may call jit functions and math, but may not create lists or arrays"
    return KernelError(
        f"{title} cannot be compiled: {reason[:_LONGEST]}{place}; {hint}",
        f"{title} cannot be compiled:\n{text}",
    )


def _place(functions: Iterable[Callable[..., Any]], name: str) -> str:
    """Return file and line of the first use of a field in functions, for messages."""
    for function in functions:
        code = function.__code__
        try:
            with open(code.co_filename, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
        for number in range(code.co_firstlineno, last + 1):
            if re.search(rf"\.{re.escape(name)}\b", lines[number - 1]):
                return f" ({code.co_filename}:{number})"
    return ""
