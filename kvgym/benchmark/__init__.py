"""The benchmark: frozen tasks, one score, and a table of entries.

``kvgym benchmark`` runs entries, :func:`make_task` gives a task as an environment, and docs/benchmark-suite.md says
how to submit an entry. May import :mod:`kvgym.agents` and below; may be imported from :mod:`kvgym.cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.benchmark.environments import make_task
    from kvgym.benchmark.running import run_benchmark
    from kvgym.benchmark.tasks import Suite, Task, load_suite
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {"environments": "make_task", "running": "run_benchmark", "tasks": "Suite Task load_suite"},
    )

__all__ = ["Suite", "Task", "load_suite", "make_task", "run_benchmark"]
