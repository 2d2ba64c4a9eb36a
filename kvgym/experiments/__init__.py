"""Experiments: scenarios, comparisons of policies on equal requests, sweeps, tuning, capacity and statistics.

They run any registered policy and do not depend on environments, agents or the command line.
May import :mod:`kvgym.theory` and what is below it; may be imported from :mod:`kvgym.report` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.experiments.capacity.finding import find_capacity
    from kvgym.experiments.capacity.plan import Plan, Provisioning
    from kvgym.experiments.capacity.provisioning import provision
    from kvgym.experiments.capacity.result import Capacity, CapacityResult
    from kvgym.experiments.capacity.targets import Target, parse_targets
    from kvgym.experiments.comparison import Comparison, compare
    from kvgym.experiments.metric_checks import check_metric
    from kvgym.experiments.runs import RunRecord
    from kvgym.experiments.scenario import Scenario, load_scenario, scenario_names
    from kvgym.experiments.statistics import Estimate, improvement_interval, mean_interval, ratio_interval
    from kvgym.experiments.sweeping.plan import SweepPlan, load_plan
    from kvgym.experiments.sweeping.sweep import SweepResult, sweep
    from kvgym.experiments.tuning.result import TuningResult
    from kvgym.experiments.tuning.tune import tune
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "capacity.finding": "find_capacity",
            "capacity.plan": "Plan Provisioning",
            "capacity.provisioning": "provision",
            "capacity.result": "Capacity CapacityResult",
            "capacity.targets": "Target parse_targets",
            "comparison": "Comparison compare",
            "metric_checks": "check_metric",
            "runs": "RunRecord",
            "scenario": "Scenario load_scenario scenario_names",
            "statistics": "Estimate improvement_interval mean_interval ratio_interval",
            "sweeping.plan": "SweepPlan load_plan",
            "sweeping.sweep": "SweepResult sweep",
            "tuning.tune": "tune",
            "tuning.result": "TuningResult",
        },
    )

__all__ = [
    "Capacity",
    "CapacityResult",
    "Comparison",
    "Estimate",
    "Plan",
    "Provisioning",
    "RunRecord",
    "Scenario",
    "SweepPlan",
    "SweepResult",
    "Target",
    "TuningResult",
    "check_metric",
    "compare",
    "find_capacity",
    "improvement_interval",
    "load_plan",
    "load_scenario",
    "mean_interval",
    "parse_targets",
    "provision",
    "ratio_interval",
    "scenario_names",
    "sweep",
    "tune",
]
