"""How much a test tries: everything with ``pytest --long``, otherwise a part that meets every kind of case."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

LONG = False
"""Whether ``--long`` was given; ``tests/conftest.py`` sets it before it imports a test."""


def number(everything: int, usually: int) -> int:
    """Return a number of examples, seeds or requests: ``everything`` with ``--long``, otherwise ``usually``."""
    return everything if LONG else usually


def some(values: Iterable[T], step: int) -> list[T]:
    """Return all values with ``--long``, otherwise every ``step``-th, beginning with the first.

    Of the 27 rules of the engine (three settings of three values, in the order of ``itertools.product``) every 5th
    still has every value of every setting, and both odd and even positions.
    """
    return list(itertools.islice(values, 0, None, 1 if LONG else step))
