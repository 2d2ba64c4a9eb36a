"""What an agent observes of the workers' prefix caches, computed by a compiled function of its own.

The features follow those of :mod:`kvgym.envs.routing.features`, with the same scales. They are what a router observes:
hits are known late by ``System.cache_staleness``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from kvgym.compiling.kernel import kernel
from kvgym.compiling.places import places
from kvgym.compiling.references import by_address
from kvgym.envs.routing.features import saturate, share
from kvgym.envs.scheduling.tables import Features
from kvgym.simulator.cluster.knowledge import router_view
from kvgym.simulator.cluster.router_view import hit_of, missing_of
from kvgym.simulator.cluster.tables import CLUSTER_PLACES, open_cluster
from kvgym.simulator.tables import UNKNOWN

CACHE_FEATURES: Features = (
    ("hit", "share of the request that is in its prefix cache"),
    ("missing", "tokens of the request that it lacks / capacity of the smallest worker"),
    ("prefill_time", "time in which it prefills them (scale: time_scale)"),
    ("batch_time", "time of a batch of its requests and the memory in use (scale: smallest batch duration)"),
    ("previous", "1 if it served the previous request of the session"),
)
"""Features of the prefix cache of each worker (key ``caches``): name and meaning."""
CACHE = places(CACHE_FEATURES)

SCALES = places(("time", "duration"))
"""Scales of the features that are times and batch durations, seconds."""


@kernel(
    types.void(*CLUSTER_PLACES, types.int64, types.float64[::1], types.float32[::1], types.int64),
    "environment",
)
def observe_caches(
    shared: Any,
    shared_sizes: Any,
    rows: Any,
    sizes: Any,
    handles: Any,
    i: int,
    scales: Any,
    out: Any,
    at: int,
) -> None:
    """Write the features of the prefix caches.

    Args:
        shared: int64, addresses of the shared tables, as :func:`~kvgym.simulator.cluster.loop.run_cluster` takes them.
        shared_sizes: int64, their lengths.
        rows: int64 (r, …), addresses of each worker's tables.
        sizes: int64 (r, …), their lengths.
        handles: int64 (r, 8), handles of functions.
        i: the request to be routed; UNKNOWN when the run is over: all features are 0.
        scales: float64 (2,), see :data:`SCALES`.
        out: float32, the observation.
        at: place of the first feature.
    """
    c = by_address(open_cluster(shared, shared_sizes, rows, sizes, handles))
    count, prefill = c.workers.shape[0], c.tracker.num_prefill_workers
    if i == UNKNOWN:
        for j in range(at, at + len(CACHE) * count):
            out[j] = np.float32(0.0)
        return
    first = prefill if c.tracker.handoff_head != UNKNOWN else 0
    view = by_address(router_view(c, i, first, count, UNKNOWN))
    smallest = float(c.problems[0].kv_capacity)
    for k in range(1, count):
        smallest = min(smallest, float(c.problems[k].kv_capacity))
    for k in range(count):
        w, p = c.workers[k], c.problems[k]
        hit, missing = float(hit_of(view, k)), float(missing_of(view, k))
        duration = p.batch_base + p.batch_decode * w.outstanding_requests + p.batch_context * w.kv_allocated
        out[at + CACHE.hit] = share(hit, hit + missing)
        out[at + CACHE.missing] = share(missing, smallest)
        out[at + CACHE.prefill_time] = saturate(p.batch_prefill * missing, scales[SCALES.time])
        out[at + CACHE.batch_time] = saturate(duration, scales[SCALES.duration])
        out[at + CACHE.previous] = np.float32(1.0) if k == view.previous else np.float32(0.0)
        at += len(CACHE)
