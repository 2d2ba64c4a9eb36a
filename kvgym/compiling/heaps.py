"""Heaps of items that are ordered by ranks in another array, then by item.

``heap[at]`` is the length of a heap, the items follow. Item x, a small whole number such as a request id, has rank
``ranks[base + x]``, an integer or float that must not change while x is in the heap.
"""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit


@jit
def ranked_before(ranks: Any, base: int, one: int, other: int) -> bool:
    """Return whether item ``one`` comes before item ``other``."""
    a, b = ranks[base + one], ranks[base + other]
    return bool(a < b or (a == b and one < other))


@jit
def ranked_push(heap: Any, at: int, ranks: Any, base: int, item: int) -> None:
    """Add an item."""
    k = heap[at]
    heap[at] += 1
    first = at + 1
    while k > 0:
        parent = (k - 1) >> 1
        if not ranked_before(ranks, base, item, heap[first + parent]):
            break
        heap[first + k] = heap[first + parent]
        k = parent
    heap[first + k] = item


@jit
def ranked_pop(heap: Any, at: int, ranks: Any, base: int) -> int:
    """Remove and return the first item."""
    first = at + 1
    top: int = heap[first]
    heap[at] -= 1
    length = heap[at]
    item = heap[first + length]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= length:
            break
        if child + 1 < length and ranked_before(ranks, base, heap[first + child + 1], heap[first + child]):
            child += 1
        if not ranked_before(ranks, base, heap[first + child], item):
            break
        heap[first + k] = heap[first + child]
        k = child
    heap[first + k] = item
    return top
