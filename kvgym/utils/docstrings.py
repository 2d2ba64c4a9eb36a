"""Parse Google docstrings: sections, and the descriptions of arguments and attributes.

May import nothing; may be imported from any package.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from typing import Any

_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):\n((?:    .*\n|\n)*(?:    .*)?)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)(?: \(.*?\))?: (.*(?:\n +.*)*)", re.MULTILINE)


def sections(thing: Any) -> dict[str, str]:
    """Return the sections of a docstring by title, without indentation; ``""`` is the text before them."""
    text = inspect.getdoc(thing) or ""
    found = {match[1]: inspect.cleandoc(match[2]) for match in _SECTION.finditer(text)}
    return {"": _SECTION.split(text, maxsplit=1)[0].strip(), **found}


def meanings(thing: Any) -> dict[str, str]:
    """Return the descriptions of a class's attributes or a function's arguments, each on one line."""
    parts = sections(thing)
    listed = parts.get("Attributes") or parts.get("Args") or ""
    return {match[1]: " ".join(match[2].split()) for match in _ENTRY.finditer(listed)}


def attribute_texts(cls: type[Any]) -> dict[str, str]:
    """Return the texts below the annotated attributes of a class, each on one line; none without its source."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    found = {}
    for attribute, below in itertools.pairwise(getattr(body, "body", [])):
        text = getattr(getattr(below, "value", None), "value", None)
        if isinstance(attribute, ast.AnnAssign) and isinstance(text, str):
            found[getattr(attribute.target, "id", "")] = " ".join(text.split())
    return found
