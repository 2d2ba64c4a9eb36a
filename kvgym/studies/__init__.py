"""Studies: many comparisons for one question. A wing of the library: nothing but the command line imports it.

``capacity`` finds the highest rate that a system serves and the workers that a load needs, ``sweeping`` compares at
every point of a grid, ``tuning`` searches hyperparameters, ``benchmark`` has frozen tasks and one score. Each brings
its own report page. May import :mod:`kvgym.agents` and below; may be imported from :mod:`kvgym.cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.studies.benchmark.environments import make_task
    from kvgym.studies.benchmark.running import run_benchmark
    from kvgym.studies.benchmark.tasks import Suite, Task, load_suite
    from kvgym.studies.capacity.finding import find_capacity
    from kvgym.studies.capacity.provisioned import Provisioning, WorkersPlan
    from kvgym.studies.capacity.provisioning import provision
    from kvgym.studies.capacity.result import Capacity, CapacityResult
    from kvgym.studies.capacity.targets import Target, parse_targets
    from kvgym.studies.reports import write_capacity_report, write_sweep_report
    from kvgym.studies.sweeping.plan import SweepPlan, load_plan
    from kvgym.studies.sweeping.sweep import SweepResult, sweep
    from kvgym.studies.tuning.result import TuningResult
    from kvgym.studies.tuning.tune import tune
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "benchmark.environments": "make_task",
            "benchmark.running": "run_benchmark",
            "benchmark.tasks": "Suite Task load_suite",
            "capacity.finding": "find_capacity",
            "capacity.provisioned": "WorkersPlan Provisioning",
            "capacity.provisioning": "provision",
            "capacity.result": "Capacity CapacityResult",
            "capacity.targets": "Target parse_targets",
            "reports": "write_capacity_report write_sweep_report",
            "sweeping.plan": "SweepPlan load_plan",
            "sweeping.sweep": "SweepResult sweep",
            "tuning.result": "TuningResult",
            "tuning.tune": "tune",
        },
    )

__all__ = [
    "Capacity",
    "CapacityResult",
    "Provisioning",
    "Suite",
    "SweepPlan",
    "SweepResult",
    "Target",
    "Task",
    "TuningResult",
    "WorkersPlan",
    "find_capacity",
    "load_plan",
    "load_suite",
    "make_task",
    "parse_targets",
    "provision",
    "run_benchmark",
    "sweep",
    "tune",
    "write_capacity_report",
    "write_sweep_report",
]
