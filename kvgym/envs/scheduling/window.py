"""The queue window: the first Q waiting requests in a chosen order.

In queue order, the window is updated from the queue at every boundary. A rule that ranks requests fills it itself
(ORDER_RANK). In the other orders (shortest predicted output, shortest prompt, smallest predicted volume or least
attained service first; ties by arrival) the first Q are kept sorted and the rest are in a heap. So an arrival
costs O(Q + log n) instead of a sort.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvgym.compiling.kernel import jit, jit_inline
from kvgym.envs.scheduling.tables import (
    ORDER_ATTAINED,
    ORDER_PREDICTED,
    ORDER_QUEUE,
    ORDER_RANK,
    ORDER_VOLUME,
    Env,
)
from kvgym.simulator.kernels.heap import heap_pop, heap_push, heap_remove, key_request, request_key
from kvgym.simulator.tables import UNKNOWN

MOST_VOLUME = 2**31 - 1
"""Largest volume that ORDER_VOLUME distinguishes: a key holds it and the request id."""


@jit_inline
def attained_level(num_delivered_tokens: int) -> int:
    """Return the level of delivered tokens: 0 below 64, 1 from 64, 2 from 128, 3 from 256, ..."""
    return max(math.frexp(float(num_delivered_tokens))[1] - 6, 0)


@jit_inline
def is_sorted(settings: Any) -> bool:
    """Return whether the window is sorted by a key of each request; the rest are in a heap."""
    return bool(settings.order != ORDER_QUEUE and settings.order != ORDER_RANK)


@jit
def order_key(settings: Any, requests: Any, i: int) -> int:
    """Return the key by which request ``i`` is sorted in the window."""
    r = requests[i]
    if settings.order == ORDER_VOLUME:
        # KV tokens times iterations over its life, o (s + o / 2), doubled to be a whole number.
        volume = np.int64(r.predicted_len) * (2 * np.int64(r.prompt_len) + np.int64(r.predicted_len))
        return request_key(min(volume, np.int64(MOST_VOLUME)), i)
    if settings.order == ORDER_ATTAINED:
        return request_key((np.int64(attained_level(r.num_delivered_tokens)) << 24) | r.prompt_len, i)
    return request_key(r.predicted_len if settings.order == ORDER_PREDICTED else r.prompt_len, i)


@jit
def window_insert(settings: Any, episode: Any, window: Any, heap: Any, requests: Any, i: int) -> None:
    """Add a request to a sorted window; the last one moves to the heap if the window is full."""
    key = order_key(settings, requests, i)
    k = episode.num_window
    if k == window.shape[0]:
        last = window[k - 1]
        if order_key(settings, requests, last) < key:
            heap_push(heap, 0, key)
            return
        heap_push(heap, 0, order_key(settings, requests, last))
        k -= 1
    else:
        episode.num_window += 1
    while k > 0 and order_key(settings, requests, window[k - 1]) > key:
        window[k] = window[k - 1]
        k -= 1
    window[k] = i


@jit
def window_refill(settings: Any, episode: Any, window: Any, heap: Any, requests: Any) -> None:
    """Append requests to the window until it is full, from the queue or from the heap."""
    while episode.num_window < window.shape[0]:
        if settings.order == ORDER_QUEUE:
            if episode.cursor == UNKNOWN:
                return
            window[episode.num_window] = episode.cursor
            episode.cursor = requests[episode.cursor].queue_next
        else:
            if settings.order == ORDER_RANK or heap[0] == 0:
                return
            window[episode.num_window] = key_request(heap_pop(heap, 0))
        episode.num_window += 1


@jit
def window_update(e: Env) -> None:
    """Update the window at a boundary.

    In queue order the window is only extended if the queue has changed in two ways at most since the last
    boundary: arrivals at its end, and requests that were taken out of the window.
    """
    settings, episode, window, requests, w = e.settings, e.episode, e.window, e.run.requests, e.run.w
    returned = w.total_evicted + w.total_received
    if episode.returned != returned:
        for q in range(e.seen_waiting.shape[0]):
            e.seen_waiting[q].request = 0  # a returned request may have changed
    if settings.order == ORDER_QUEUE:
        left = w.total_admitted - episode.admitted
        if episode.returned != returned or episode.taken != left or w.num_left > 0:
            episode.num_window = 0
        last = episode.num_window - 1
        episode.cursor = w.queue_head if last < 0 else requests[window[last]].queue_next
        window_refill(settings, episode, window, e.heap, requests)
    elif is_sorted(settings):
        for j in range(w.num_queued):
            window_insert(settings, episode, window, e.heap, requests, e.run.queued[j])
    episode.returned, episode.admitted, episode.taken = returned, w.total_admitted, 0


@jit
def window_take(settings: Any, episode: Any, window: Any, heap: Any, requests: Any, q: int) -> int:
    """Remove the request at position ``q`` from the window; the ones behind move up. Return its id."""
    i = window[q]
    for k in range(q, episode.num_window - 1):
        window[k] = window[k + 1]
    episode.num_window -= 1
    episode.taken += 1
    window_refill(settings, episode, window, heap, requests)
    return i


@jit
def window_remove(settings: Any, episode: Any, window: Any, heap: Any, requests: Any, i: int) -> None:
    """Remove request ``i`` from the window, or from the requests after it."""
    for q in range(episode.num_window):
        if window[q] == i:
            window_take(settings, episode, window, heap, requests, q)
            return
    if is_sorted(settings):
        heap_remove(heap, 0, order_key(settings, requests, i))
