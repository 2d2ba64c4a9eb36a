"""Heaps and sorted lists in a policy's state array.

The first kind of heap has int64 keys: ``state[at]`` is its length, keys follow, the smallest first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.compiling.heaps import ranked_before, ranked_pop
from kvgym.compiling.kernel import jit, jit_inline
from kvgym.simulator.tables import UNKNOWN

SAMPLE = 100
"""Items from which the first pivot of a long list is chosen."""


@jit
def request_key(value: int, i: int) -> int:
    """Return a key that sorts by ``value``, then by request id (arrival order)."""
    key: Any = (np.int64(value) << 32) | np.int64(i)
    return key


@jit
def key_request(key: int) -> int:
    """Return the request id of a key."""
    return key & 0xFFFFFFFF


@jit
def heap_push(state: Any, at: int, key: int) -> None:
    """Add a key."""
    k = state[at]
    state[at] += 1
    base = at + 1
    while k > 0:
        parent = (k - 1) >> 1
        if state[base + parent] <= key:
            break
        state[base + k] = state[base + parent]
        k = parent
    state[base + k] = key


@jit
def heap_pop(state: Any, at: int) -> int:
    """Remove and return the smallest key."""
    base, length = at + 1, state[at] - 1
    top, key = state[base], state[base + length]
    state[at] = length
    # The last key belongs near the bottom, so the gap moves from the top to a leaf without comparing it, ...
    k, child = 0, 1
    while child + 1 < length:
        child += 1 if state[base + child + 1] < state[base + child] else 0
        state[base + k] = state[base + child]
        k, child = child, 2 * child + 1
    if child < length:
        state[base + k] = state[base + child]
        k = child
    while k > 0:  # ... and the key rises from there to its place
        parent = (k - 1) >> 1
        if state[base + parent] <= key:
            break
        state[base + k] = state[base + parent]
        k = parent
    state[base + k] = key
    return top


@jit
def heap_remove(state: Any, at: int, key: int) -> bool:
    """Remove a key, in time proportional to the length; return whether it was there."""
    base, k = at + 1, 0
    while k < state[at] and state[base + k] != key:
        k += 1
    if k == state[at]:
        return False
    while k > 0:  # it rises to the top, past smaller keys
        parent = (k - 1) >> 1
        state[base + k] = state[base + parent]
        k = parent
    state[base] = key
    heap_pop(state, at)
    return True


@jit
def heap_forget(state: Any, at: int, i: int) -> bool:
    """Remove the key of request ``i``, in time proportional to the length; return whether it was there."""
    for k in range(state[at]):
        key = state[at + 1 + k]
        if key_request(key) == i:
            return heap_remove(state, at, key)
    return False


@jit
def heap_first(state: Any, at: int) -> int:
    """Return the request of the smallest key, UNKNOWN if the heap is empty."""
    return key_request(state[at + 1]) if state[at] > 0 else UNKNOWN


# More for heaps of items that are ordered by ranks in another array, see :mod:`kvgym.compiling.heaps`.


@jit
def ranked_keep(heap: Any, at: int, ranks: Any, base: int, most: int) -> None:
    """Keep the first ``most`` items of a list, in any order, in time proportional to the length of the list.

    The list has the layout of a heap but need not be one, before or after. This is quickselect. The first
    pivot comes from a sample, as in Floyd and Rivest's SELECT: few items then change sides.
    """
    low, high, place = at + 1, at + heap[at], at + 1 + most
    if place > high:
        return
    heap[at] = most
    if high - low > 4 * SAMPLE:
        start = place - SAMPLE * most // (high - low)
        put_in_place(heap, start, start + SAMPLE, place, ranks, base)
    put_in_place(heap, low, high, place, ranks, base)


@jit
def put_in_place(heap: Any, low: Any, high: Any, place: Any, ranks: Any, base: int) -> None:
    """Order the items of a range so that none before ``place`` ranks after the one there, and none behind it before."""
    pivot_at = place
    while low < high:
        pivot, left, right = heap[pivot_at], low, high
        while left <= right:
            while ranked_before(ranks, base, heap[left], pivot):
                left += 1
            while ranked_before(ranks, base, pivot, heap[right]):
                right -= 1
            if left <= right:
                heap[left], heap[right] = heap[right], heap[left]
                left, right = left + 1, right - 1
        if place <= right:
            high = right
        elif place >= left:
            low = left
        else:
            return
        pivot_at = (low + high) // 2


@jit
def ranked_forget(heap: Any, at: int, ranks: Any, base: int, item: int) -> bool:
    """Remove an item, in time proportional to the length; return whether it was there.

    The item's own rank may have changed; only the ranks of the others are compared.
    """
    first, k, length = at + 1, 0, heap[at]
    while k < length and heap[first + k] != item:
        k += 1
    if k == length:
        return False
    while k > 0:  # it rises to the top
        parent = (k - 1) >> 1
        heap[first + k] = heap[first + parent]
        k = parent
    heap[first] = item
    ranked_pop(heap, at, ranks, base)
    return True


# A sorted list with ranks that move with the items: ``items[at + k]`` has rank ``ranks[base + k]``. Some functions need
# buffers, which begin at ``items[aside]`` and ``ranks[ranks_aside]``.

_RUN = 8
"""Length of the runs that insertion sort makes before they are merged."""


@jit_inline
def ranked_sink(items: Any, at: int, ranks: Any, base: int, k: int) -> int:
    """Insert the k-th item into the sorted items before it; return the number of places it moved."""
    item, rank, place = items[at + k], ranks[base + k], k
    while place > 0:
        other = ranks[base + place - 1]
        if rank > other or (rank == other and item > items[at + place - 1]):
            break
        items[at + place], ranks[base + place] = items[at + place - 1], other
        place -= 1
    items[at + place], ranks[base + place] = item, rank
    return k - place


@jit
def ranked_merge(
    items: Any, at: int, ranks: Any, base: int, known: int, count: int, aside: int, ranks_aside: int
) -> None:
    """Merge the first ``known`` of ``count`` items with the others; both parts are sorted, the second is buffered."""
    i, j = known - 1, count - known - 1
    if i >= 0 and j >= 0:
        rank, other = ranks[base + i], ranks[base + known]
        if rank < other or (rank == other and items[at + i] < items[at + known]):
            return
    for k in range(count - known):
        items[aside + k], ranks[ranks_aside + k] = items[at + known + k], ranks[base + known + k]
    k = count - 1
    while i >= 0 and j >= 0:
        rank, other = ranks[base + i], ranks[ranks_aside + j]
        item, another = items[at + i], items[aside + j]
        later = rank > other or (rank == other and item > another)
        items[at + k], ranks[base + k] = item if later else another, rank if later else other
        i, j, k = i - (1 if later else 0), j - (0 if later else 1), k - 1
    while j >= 0:
        items[at + j], ranks[base + j] = items[aside + j], ranks[ranks_aside + j]
        j -= 1


@jit
def ranked_sort(items: Any, at: int, count: int, ranks: Any, base: int, aside: int, ranks_aside: int) -> None:
    """Sort items: short runs are merged in pairs; the buffers need room for half of the items."""
    for start in range(0, count, _RUN):
        for k in range(1, min(_RUN, count - start)):
            ranked_sink(items, at + start, ranks, base + start, k)
    width = _RUN
    while width < count:
        for start in range(0, count - width, 2 * width):
            both = min(2 * width, count - start)
            ranked_merge(items, at + start, ranks, base + start, width, both, aside, ranks_aside)
        width *= 2
