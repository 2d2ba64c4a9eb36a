"""Places of numbers in arrays by name, from the declaration that names them.

Features, options and reward terms are declared once, in the order in which they lie in an array. Compiled code and
Python find each by its name: with ``SYSTEM = places(SYSTEM_FEATURES)``, ``out[SYSTEM.kv_used]`` is that feature.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Iterable, Mapping
from typing import Any


def constants(numbers: Mapping[str, int]) -> Any:
    """Return whole numbers as a named tuple, which compiled code reads as constants.

    A name that is a word of Python ends in an underscore there: ``class_``.
    """
    fields = [f"{name}_" if keyword.iskeyword(name) else name for name in numbers]
    made: Any = namedtuple("Named", fields)  # type: ignore[misc]
    return made(*numbers.values())


def places(declared: Iterable[str | tuple[str, str]]) -> Any:
    """Return the place of each of the declared names, see :func:`constants`.

    Args:
        declared: names, or pairs of name and meaning.
    """
    names = (each if isinstance(each, str) else each[0] for each in declared)
    return constants({name: place for place, name in enumerate(names)})
