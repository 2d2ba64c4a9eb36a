"""Inputs as JSON trees: mutation and shrinking.

A tree consists of JSON values, NaN and infinity included. ``{"$bytes": "..."}`` stands for bytes (one letter each), and
``{"$odd": name}`` for a Python object that no file can hold, see :data:`ODD`.
"""

from __future__ import annotations

import copy
import datetime
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np

ODD: dict[str, Callable[[], Any]] = {
    "complex": lambda: 1 + 2j,
    "bytes": lambda: b"5",
    "set": lambda: {1, 2},
    "object": object,
    "class": lambda: dict,
    "function": lambda: len,
    "date": lambda: datetime.date(2024, 1, 1),
    "decimal": lambda: Decimal("NaN"),
    "huge": lambda: 10**5000,
    "scalar array": lambda: np.array(3),
    "half": lambda: np.array([0.5]),
    "truth": lambda: np.True_,
    "texts": lambda: np.array(["1", "2"]),
    "masked": lambda: np.ma.MaskedArray([1, 2, 3], [False, True, False]),
    "ragged": lambda: [[1], [1, 2]],
    "empty": lambda: np.zeros((0, 3)),
    "times": lambda: np.array(["2024-01-01"], "datetime64[s]"),
    "small": lambda: np.int8(-3),
    "generator": lambda: (i for i in range(3)),
}
"""Factories of odd objects by name."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1000, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 10**18, 10**30,
    0.5, -0.5, 1e-9, 1e9, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"),
    "", " ", "x", "1", "nan", "inf", "none", "true", "1e400", "9" * 5000, "../x", "a\x00b", "Ä€😀", "a" * 4000, "%s{0}",
    "a: b", "x:y=1,z", "=", ":", ",", [], {}, [[]], [None], {"a": 1}, {"kind": "x"}, {"": None}, [0] * 500,
    [float("nan")],
)  # fmt: skip
"""Replacements of any value."""

BYTES = (
    b"\xff",
    b"\x00",
    b"\xfe\xff",
    b"\n",
    b",",
    b'"',
    b"[" * 5000,
    b"{",
    b": ",
    b"&a [*a]",
    b"-",
    b"\r",
    b"\xef\xbb\xbf",
    b"9" * 400,
)
"""Insertions into bytes."""


def revive(tree: Any) -> Any:
    """Return the object that a tree stands for."""
    if isinstance(tree, dict):
        if tree.keys() == {"$bytes"}:
            return str(tree["$bytes"]).encode("latin-1", "replace")
        if tree.keys() == {"$odd"} and isinstance(tree["$odd"], str) and tree["$odd"] in ODD:
            return ODD[tree["$odd"]]()
        return {key: revive(value) for key, value in tree.items()}
    return [revive(value) for value in tree] if isinstance(tree, list) else tree


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all nodes of a tree, starting at its root."""
    yield path
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        yield from places(value, (*path, key))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    """Return the node at a path."""
    for key in path:
        tree = tree[key]
    return tree


def put(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the tree with another value at a path; the tree is modified in place."""
    if not path:
        return value
    at(tree, path[:-1])[path[-1]] = value
    return tree


def mutate(tree: Any, rng: random.Random, *, odd: bool = False) -> Any:
    """Return a tree with one to three changes.

    Args:
        tree: the original, not modified.
        rng: draws the changes.
        odd: whether to use Python objects that no file can hold.
    """
    made = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice(list(places(made))[1:] or [()])
        made = put(made, path, _changed(at(made, path), rng, odd))
        if path and isinstance(above := at(made, path[:-1]), dict | list) and rng.random() < 0.25:
            _rearrange(above, path[-1], rng)
    return made


def _changed(value: Any, rng: random.Random, odd: bool) -> Any:
    """Return a replacement of a value."""
    if isinstance(value, dict) and value.keys() == {"$bytes"} and isinstance(value["$bytes"], str):
        return {"$bytes": mutate_bytes(value["$bytes"].encode("latin-1", "replace"), rng).decode("latin-1")}
    if odd and rng.random() < 0.3:
        return {"$odd": rng.choice(sorted(ODD))}
    if isinstance(value, str) and rng.random() < 0.5:
        return mutate_bytes(value.encode("latin-1", "replace"), rng).decode("latin-1")
    if type(value) in (int, float) and rng.random() < 0.5:
        return rng.choice(
            (-value, value + 0.5, value * 1e9, value * 1e-9, str(value), [value], value + 1, 10 * value)
        )
    return copy.deepcopy(rng.choice(VALUES))


def _rearrange(above: Any, key: Any, rng: random.Random) -> None:
    """Remove a key or item, misspell a key, or duplicate or shuffle items."""
    what = rng.randrange(4)
    if isinstance(above, dict):
        value = above.pop(key)
        if what:
            above[(f"{key}s", str(key)[:-1], "unknown")[what - 1]] = value
    elif what == 0:
        del above[key]
    elif what == 1:
        above.append(copy.deepcopy(above[key]))
    elif what == 2:
        above.extend(copy.deepcopy(above) * 20)
    else:
        rng.shuffle(above)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few bytes changed, removed, duplicated or inserted."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place, end = sorted(rng.randrange(len(made) + 1) for _ in range(2))
        what = rng.randrange(6)
        if what == 0 and made:
            made[min(place, len(made) - 1)] ^= 1 << rng.randrange(8)
        elif what == 1:
            made[place : min(end, place + 40)] = b""
        elif what == 2:
            made[place:place] = rng.choice(BYTES)
        elif what == 3:
            made[place:place] = made[place : min(end, place + 40)]
        elif what == 4:
            del made[end:]
        else:
            digits = [k for k, letter in enumerate(made) if chr(letter).isdigit()]
            if digits:
                made[rng.choice(digits)] = rng.choice(b"0123456789-.e")
    return bytes(made)


def smaller(tree: Any) -> Iterator[Any]:
    """Yield simpler trees, the simplest first."""
    for path in sorted(places(tree), key=len):
        value = at(tree, path)
        if isinstance(value, dict | list) and len(value) and "$odd" not in value:
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                made = copy.deepcopy(tree)
                del at(made, path)[key]
                yield made
        if isinstance(value, str) and len(value) > 1 and path:
            for part in (value[: len(value) // 2], value[len(value) // 2 :]):
                yield put(copy.deepcopy(tree), path, part)
        if isinstance(value, list | dict) and path and len(value) > 3:
            yield put(copy.deepcopy(tree), path, type(value)())
