"""A fleet in numbers: what learned autoscalers observe.

The numbers are in natural units (:func:`fleet_numbers`, :func:`pool_numbers`); :func:`normalised` maps them to [0, 1]
for networks. All of them follow from a :class:`~kvgym.simulator.cluster.fleet_view.FleetView`, so that an agent
observes what every autoscaler can observe.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvgym.policies.scaling import PoolView
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet

Floats = NDArray[np.float64]

WINDOWS = (1, 4, 16)
"""Numbers of intervals over which arrival rates are taken."""

SOON = (1, 2, 4, 8)
"""Numbers of intervals within which a starting worker becomes ready."""

SHARE, RATE = "share", "rate"
"""Scales of numbers that are shares already, and of arrival rates."""

FLEET_FEATURES: tuple[tuple[str, str, float | str], ...] = (
    *((f"rate_{k}", f"arrivals per second over {k} interval{'s' * (k > 1)} (scale: mean arrival rate)", RATE)
      for k in WINDOWS),
    ("prompt", "mean prompt of the arrivals since the last question, tokens (scale: 1,024)", 1024.0),
    ("output", "output tokens for each completion since the last question (scale: 1,024)", 1024.0),
    ("attainment", "share of these arrivals with a first token in time, of those that had one or are late; 1 = none",
     SHARE),
    ("ttft", "their mean time to first token, or age without one, relative to the target (scale: 1)", 1.0),
    ("budget", "GPUs of the budget that are free / budget; 1 without a budget", SHARE),
    ("day_sin", "sine of the time of day, as 1/2 + sin / 2", SHARE),
    ("day_cos", "cosine of the time of day, as 1/2 + cos / 2", SHARE),
)  # fmt: skip
"""Name, meaning and scale of the numbers of a fleet."""

POOL_FEATURES: tuple[tuple[str, str, float | str], ...] = (
    ("target", "target / most", SHARE),
    ("ready", "ready workers / most", SHARE),
    ("starting", "starting workers / most", SHARE),
    ("draining", "draining workers / most", SHARE),
    ("failed", "places under repair / most", SHARE),
    *((f"soon_{k}", f"share of the starting workers that are ready within {k} interval{'s' * (k > 1)}", SHARE)
      for k in SOON),
    ("waiting", "waiting requests for each ready worker (scale: 16)", 16.0),
    ("ongoing", "unfinished requests for each ready worker (scale: 64)", 64.0),
    ("kv", "mean share of the KV memory in use", SHARE),
    ("kv_most", "largest share of the KV memory in use", SHARE),
    ("unrouted", "requests outside that no place of the role takes (scale: 16)", 16.0),
    ("price", "price of a GPU-second (scale: 1)", 1.0),
)  # fmt: skip
"""Name, meaning and scale of the numbers of each pool."""


def fleet_numbers(view: FleetView, fleet: Fleet, interval: float, angle: float) -> Floats:
    """Return the numbers of FLEET_FEATURES, (features,).

    Args:
        view: the fleet now.
        fleet: its settings.
        interval: seconds between questions.
        angle: time of day, radians.
    """
    seconds, target, there = view.first_tokens()
    late = seconds > target
    known = there | late
    used = sum(pool.settings.gpus * (pool.ready + pool.starting + pool.draining) for pool in view.pools)
    return np.array([
        *(view.rate(k * interval) for k in WINDOWS),
        view.prompt_tokens / max(1, view.arrivals),
        view.output_tokens / max(1, view.completions),
        1.0 - float(late[known].mean()) if known.any() else 1.0,
        float((seconds / target).mean()) if len(seconds) else 0.0,
        1.0 if fleet.budget is None else max(0.0, 1.0 - used / fleet.budget),
        0.5 + 0.5 * np.sin(angle),
        0.5 + 0.5 * np.cos(angle),
    ])  # fmt: skip


def pool_numbers(pool: PoolView, interval: float) -> Floats:
    """Return the numbers of POOL_FEATURES, (features,).

    Args:
        pool: the pool now.
        interval: seconds between questions.
    """
    most, ready, starting = pool.settings.most, max(1, pool.ready), max(1, pool.starting)
    return np.array([
        pool.target / most,
        pool.ready / most,
        pool.starting / most,
        pool.draining / most,
        pool.failed / most,
        *(sum(left <= k * interval for left in pool.ready_in) / starting for k in SOON),
        pool.waiting.sum() / ready,
        pool.ongoing.sum() / ready,
        float(pool.kv.sum()) / ready,
        float(pool.kv.max(initial=0.0)),
        pool.unrouted,
        pool.settings.price,
    ])  # fmt: skip


def scales_of(features: Sequence[tuple[str, str, float | str]], mean_rate: float) -> Floats:
    """Return the scale of each number, (features,); inf = it is a share.

    Args:
        features: FLEET_FEATURES or POOL_FEATURES.
        mean_rate: mean arrivals per second.
    """
    named = {SHARE: np.inf, RATE: mean_rate}
    return np.array([named[scale] if isinstance(scale, str) else scale for _, _, scale in features])


def normalised(numbers: Floats, scales: Floats) -> NDArray[np.float32]:
    """Return numbers as shares within [0, 1], or as x / (x + scale) where a scale is finite, float32."""
    shared = np.clip(numbers, 0.0, 1.0)
    finite = np.isfinite(scales)
    safe = np.where(finite, scales, 1.0)
    return np.where(finite, numbers / (numbers + safe), shared).astype(np.float32)
