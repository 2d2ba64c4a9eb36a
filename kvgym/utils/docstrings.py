"""Google docstrings read as data: what they say of arguments and attributes, and their sections.

May import nothing; may be imported from any package.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):\n((?:    .*\n|\n)*(?:    .*)?)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)(?: \(.*?\))?: (.*(?:\n +.*)*)", re.MULTILINE)


def sections(thing: Any) -> dict[str, str]:
    """Return the sections of a docstring by title, without their indentation; ``""`` is what stands before them."""
    text = inspect.getdoc(thing) or ""
    found = {match[1]: inspect.cleandoc(match[2]) for match in _SECTION.finditer(text)}
    return {"": _SECTION.split(text, maxsplit=1)[0].strip(), **found}


def meanings(thing: Any) -> dict[str, str]:
    """Return what the docstring of a class or function says of its arguments or attributes, each on one line."""
    parts = sections(thing)
    listed = parts.get("Attributes") or parts.get("Args") or ""
    return {match[1]: " ".join(match[2].split()) for match in _ENTRY.finditer(listed)}
