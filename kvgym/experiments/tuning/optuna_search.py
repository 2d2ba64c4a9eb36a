"""The search of hyperparameters by optuna, on the points of a grid."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvgym.errors import ConfigError
from kvgym.experiments.tuning.result import Trial
from kvgym.experiments.tuning.trial_runs import Bench
from kvgym.metrics import LATENCIES, metric_info

# Metrics that look better when requests are left undone: compared only between runs that finished as many.
_FLATTERED = ("evictions", "recomputed_tokens", "put_back", "overflows", "jain_fairness")


def import_optuna() -> Any:
    """Return the module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise ConfigError(
            "search=optuna needs optuna; pip install optuna (or kvgym[tune]), or search the grid"
        ) from None


def search_optuna(bench: Bench, trials: int) -> list[Trial]:
    """Search the grid by TPE, one trial after the other; a point proposed again is not run again."""
    optuna, plan = import_optuna(), bench.plan
    most = min(trials, plan.size - plan.on_grid)
    bench.expect(1 + most)
    found = {_key(plan.start): bench.run([plan.start])[0]}
    sign = 1.0 if metric_info(bench.metric).lower_is_better else -1.0

    def score(trial: Trial) -> float:
        """Smaller is better; first of all to meet bounds, and where that counts, to finish more."""
        if trial.error:
            return 1e15 * (1.0 + trial.excess) if trial.excess else math.inf
        undone = bench.num_requests - sum(trial.finished) if counts_finished_only(bench.metric) else 0
        return sign * trial.value + 1e9 * undone

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), direction="minimize")
        if plan.on_grid:
            study.enqueue_trial({name: values.index(plan.start[name]) for name, values in plan.space.items()})
        for _ in range(20 * trials):  # in a small space, many proposals are known
            if len(found) > most:
                break
            asked = study.ask()
            point = {name: values[_suggest(asked, name, values)] for name, values in plan.space.items()}
            if _key(point) not in found:
                found[_key(point)] = bench.run([point])[0]
            study.tell(asked, score(found[_key(point)]))
    finally:
        optuna.logging.set_verbosity(verbosity)
    return list(found.values())


def counts_finished_only(metric: str) -> bool:
    """Whether a metric looks better the more requests are left undone."""
    return metric in _FLATTERED or metric.rpartition("_")[0] in LATENCIES


def _suggest(asked: Any, name: str, values: Sequence[Any]) -> int:
    """Return the place of a value: places of numbers are ordered, those of choices are not."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return int(asked.suggest_int(name, 0, len(values) - 1))
    return int(asked.suggest_categorical(name, list(range(len(values)))))


def _key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point.values())
