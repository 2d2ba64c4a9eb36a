"""The schedulers of the literature, one module per family (import name ``kvgym.baselines``)."""

from __future__ import annotations

if __name__ != "kvgym.baselines":
    raise ImportError("import this package as kvgym.baselines, not from the repository's folder")

from kvgym.baselines import (
    disaggregated,
    first_come,
    flow,
    iteration_level,
    memory_constrained,
    nested_wait,
    practice,
    rad,
    request_level,
    routers,
    slai,
    wait,
    work_conserving,
)

__all__ = [
    "disaggregated",
    "first_come",
    "flow",
    "iteration_level",
    "memory_constrained",
    "nested_wait",
    "practice",
    "rad",
    "request_level",
    "routers",
    "slai",
    "wait",
    "work_conserving",
]
