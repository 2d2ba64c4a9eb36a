"""Pools as an autoscaler sees them, made up for sizes that are worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvgym.batch_time import AffineBatchTime
from kvgym.policies.scaling import Autoscaler, PoolView
from kvgym.simulator.fleet import Fleet, Pool
from kvgym.simulator.system import Worker

POOL = Pool(4, most=20, least=1)
FLEET = Fleet((POOL,))
WORKER = Worker(10_000, AffineBatchTime(constant=0.02, per_decode_token=0.001, per_prefill_token=1e-4))
"""Prompts of 8,192 tokens take 0.8392 s."""


def pool(ongoing: Sequence[int], target: int | None = None, starting: int = 0, **columns: Any) -> PoolView:
    """Return a pool with a ready worker for each number of ongoing requests."""
    ready = len(ongoing)
    zeros = np.zeros(ready, np.int64)
    values: dict[str, Any] = {
        "settings": POOL, "worker": WORKER, "target": ready if target is None else target, "ready": ready,
        "starting": starting, "draining": 0, "failed": 0, "ready_in": (10.0,) * starting, "waiting": zeros,
        "active": zeros, "ongoing": np.array(ongoing, np.int64), "kv": np.zeros(ready), "unrouted": 0,
        "prefill_tokens": zeros, **columns,
    }  # fmt: skip
    return PoolView(**values)


def asked(autoscaler: Autoscaler, *steps: tuple[float, PoolView]) -> list[int]:
    """Return the targets of an autoscaler at some times."""
    autoscaler.reset(FLEET, np.random.SeedSequence(0))
    return [int(autoscaler.scale(view_at(time, view))[0]) for time, view in steps]


def view_at(time: float, *pools: PoolView, **counted: Any) -> Any:
    """Return a view of pools, with nothing counted since the last question unless it is given."""
    nothing = dict.fromkeys(
        ("arrivals", "prompt_tokens", "completions", "output_tokens", "finished_tokens"), 0
    )
    usual = {"time": time, "pools": pools, "ahead": None, "rate": lambda seconds: 0.0, **nothing}
    return SimpleNamespace(**{**usual, **counted})
