"""A binary min-heap of int64 keys inside a policy's state array: ``state[at]`` is its length, keys follow."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvgym.simulator.compiled import jit


@jit
def request_key(value: int, i: int) -> int:
    """Return a key that sorts by ``value``, then by request id (which is arrival order)."""
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
    base = at + 1
    top = state[base]
    state[at] -= 1
    length = state[at]
    key = state[base + length]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= length:
            break
        if child + 1 < length and state[base + child + 1] < state[base + child]:
            child += 1
        if key <= state[base + child]:
            break
        state[base + k] = state[base + child]
        k = child
    state[base + k] = key
    return top
