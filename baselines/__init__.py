"""Schedulers and routers from the literature, one module or folder per family; import ``kvgym.baselines``.

:mod:`kvgym.policies.policy` and :mod:`kvgym.policies.routing` load them, and they register themselves there by name.
May import :mod:`kvgym.theory` and what is below it; may be imported from :mod:`kvgym.report` and above.
"""

from __future__ import annotations

if __name__ != "kvgym.baselines":
    raise ImportError("import this package as kvgym.baselines, not from the repository's folder")

from kvgym.baselines import (
    autoscalers,
    first_come,
    flow,
    iteration_level,
    longest_prefix,
    memory_constrained,
    newer,
    phases,
    practice,
    ranked,
    request_level,
    routing,
    slai,
    thresholds,
    vllm_v1,
    work_conserving,
)

__all__ = [
    "autoscalers",
    "first_come",
    "flow",
    "iteration_level",
    "longest_prefix",
    "memory_constrained",
    "newer",
    "phases",
    "practice",
    "ranked",
    "request_level",
    "routing",
    "slai",
    "thresholds",
    "vllm_v1",
    "work_conserving",
]
