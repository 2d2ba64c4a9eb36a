"""Optuna as a source of points of a grid."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvgym.errors import ConfigError
from kvgym.metrics.catalogue import LATENCIES, METRICS, metric_info
from kvgym.studies.tuning.result import Trial
from kvgym.studies.tuning.search_space import SearchPlan
from kvgym.studies.tuning.trial_runs import Points

# Metrics that improve when requests are left unfinished: compared only between runs with equal numbers finished.
_FLATTERED = (
    *("evictions", "recomputed_tokens", "put_back", "overflows", "jain_fairness", "job_fairness"),
    *("first_turn_latency", "later_turn_latency", "first_turn_ttft", "later_turn_ttft"),
)


def import_optuna() -> Any:
    """Return the optuna module.

    Raises:
        ConfigError: optuna is not installed.
    """
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise ConfigError(
            "search=optuna needs optuna; pip install optuna (or kvgym[tune]), or search the grid"
        ) from None


def optuna_points(plan: SearchPlan, metric: str, num_requests: int, most: int, proposals: int) -> Points:
    """Yield the policy as given and then points of the grid that a TPE proposes, one by one.

    A point is yielded once even if it is proposed again.

    Args:
        plan: the search plan.
        metric: the metric to optimise.
        num_requests: total number of requests of all seeds.
        most: maximum number of points after the first.
        proposals: maximum number of proposals; in a small space, many repeat.
    """
    optuna = import_optuna()
    sign = 1.0 if metric_info(metric).lower_is_better else -1.0

    def score(trial: Trial) -> float:
        """Return the objective to minimise: first bounds, then for some metrics the number of finished requests."""
        if trial.error:
            return 1e15 * (1.0 + trial.excess) if trial.excess else math.inf
        undone = num_requests - sum(trial.finished) if counts_finished_only(metric) else 0
        return sign * trial.value + 1e9 * undone

    (first,) = yield [plan.start]
    found = {_key(plan.start): first}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), direction="minimize")
        if plan.on_grid:
            study.enqueue_trial({name: values.index(plan.start[name]) for name, values in plan.space.items()})
        for _ in range(proposals):
            if len(found) > most:
                break
            asked = study.ask()
            point = {name: values[_suggest(asked, name, values)] for name, values in plan.space.items()}
            if _key(point) not in found:
                (found[_key(point)],) = yield [point]
            study.tell(asked, score(found[_key(point)]))
    finally:
        optuna.logging.set_verbosity(verbosity)


def counts_finished_only(metric: str) -> bool:
    """Whether a metric improves when requests are left unfinished."""
    if metric in METRICS:
        return METRICS[metric].finished_only
    return metric in _FLATTERED or metric.rpartition("_")[0] in LATENCIES


def _suggest(asked: Any, name: str, values: Sequence[Any]) -> int:
    """Return the index of the suggested value: numbers are ordered, choices are not."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return int(asked.suggest_int(name, 0, len(values) - 1))
    return int(asked.suggest_categorical(name, list(range(len(values)))))


def _key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point.values())
