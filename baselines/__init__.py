"""The schedulers of the literature, one module per family (import name ``kvgym.baselines``)."""

from __future__ import annotations

if __name__ != "kvgym.baselines":
    raise ImportError("import this package as kvgym.baselines, not from the repository's folder")

from kvgym.baselines import first_come, memory_constrained, work_conserving

__all__ = ["first_come", "memory_constrained", "work_conserving"]
