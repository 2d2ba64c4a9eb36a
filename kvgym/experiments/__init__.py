"""Experiments: scenarios, comparisons of policies on equal requests, and their statistics.

They run any registered policy and do not depend on environments, agents or the command line.
May import :mod:`kvgym.theory` and what is below it; may be imported from :mod:`kvgym.report` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.experiments.comparison import Comparison, compare
    from kvgym.experiments.metric_checks import check_metric
    from kvgym.experiments.runs import RunRecord
    from kvgym.experiments.scenario import Scenario, load_scenario, scenario_names
    from kvgym.experiments.statistics import Estimate, improvement_interval, mean_interval, ratio_interval
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "comparison": "Comparison compare",
            "metric_checks": "check_metric",
            "runs": "RunRecord",
            "scenario": "Scenario load_scenario scenario_names",
            "statistics": "Estimate improvement_interval mean_interval ratio_interval",
        },
    )

__all__ = [
    "Comparison",
    "Estimate",
    "RunRecord",
    "Scenario",
    "check_metric",
    "compare",
    "improvement_interval",
    "load_scenario",
    "mean_interval",
    "ratio_interval",
    "scenario_names",
]
