"""The schedulers of the literature, one module per family (import name ``kvgym.baselines``)."""

from __future__ import annotations

if __name__ != "kvgym.baselines":
    raise ImportError("import this package as kvgym.baselines, not from the repository's folder")

from kvgym.baselines import disaggregated, first_come, memory_constrained, rad, request_level, slai

__all__ = ["disaggregated", "first_come", "memory_constrained", "rad", "request_level", "slai"]
