"""Comparisons that also run the best of several settings: token budgets of policies, fixed sizes of a fleet."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.budgets import ADVICE, Choice, add_best_budgets, ranking_notes, training_seeds
from kvgym.experiments.comparison import Comparison, compare
from kvgym.experiments.fleet.choices import BEST_FIXED, fixed_sizes
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import Scenario
from kvgym.experiments.statistics import less_is_better
from kvgym.policies.policy import Policy, make_policy
from kvgym.policies.scaling import make_autoscaler
from kvgym.utils.checks import check_seeds


def compare_budgets(
    scenario: Scenario,
    policies: Sequence[str | Policy] | None = None,
    *,
    metric: str = "e2e_latency_mean",
    seeds: int | Iterable[int] | None = None,
    folder: str | Path | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare policies; those with a token budget that their spec does not set also run with their best budget.

    The best of :data:`~kvgym.experiments.budgets.BUDGETS` and the policy as given is chosen on other seeds. Notes
    report it, and whether the ranking depends on the budgets.

    Args:
        scenario: the scenario.
        policies: policies or specs; None = those of the scenario.
        metric: the metric by which budgets are chosen and policies are ranked.
        seeds: as in :func:`~kvgym.experiments.comparison.compare`, likewise the others.
        folder: folder that saves runs.
        jobs: processes.
        ray: address of a Ray cluster.
        **options: further arguments of ``compare`` for the comparison itself.

    Raises:
        KVGymError: an argument is wrong, or the metric has no direction; nothing has been run.
    """
    lower = less_is_better(metric)
    numbers = check_seeds(scenario.seeds if seeds is None else seeds)
    system, table = Player().requests(scenario, numbers[0])
    given = [make_policy(p) for p in (scenario.policies if policies is None else policies)]
    shared: dict[str, Any] = {"folder": folder, "jobs": jobs, "ray": ray}
    training = training_seeds(len(numbers), scenario.replays)
    choose = _by_metric(scenario, metric, {"seeds": training, **shared})
    made, best = add_best_budgets([resolve_policy(policy, system, table) for policy in given], choose)
    result = compare(scenario, made, seeds=numbers, **shared, **options)
    means = {label: result.estimate(label, metric).value for label in result.policies}
    ranked = ranking_notes(result.policies, best, means, lower, metric, training, scenario.replays)
    notes = [note.removesuffix(f" {ADVICE}") for note in result.notes]
    return replace(result, notes=(*notes, *ranked))


def compare_fleets(
    scenario: Scenario, policies: Sequence[str], autoscalers: Sequence[str], **options: Any
) -> Comparison:
    """Compare autoscalers, and the fixed size with the least mean ``fleet_cost`` on the same seeds with them.

    Args:
        scenario: a scenario with a fleet.
        policies: policies; the best size is that of the first.
        autoscalers: specs.
        **options: further arguments of :func:`~kvgym.experiments.comparison.compare`.

    Raises:
        KVGymError: an argument is wrong; nothing has been run.
    """
    sizes = fixed_sizes(scenario)
    for spec in autoscalers:
        make_autoscaler(spec)
    shared = {name: options[name] for name in ("seeds", "folder", "jobs", "ray") if name in options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a size that fails is not the best
        tried = compare(scenario, list(policies)[:1], autoscalers=sizes, **shared)
    costs = np.array([tried.values(label, "fleet_cost").mean() for label in tried.policies])
    if np.isnan(costs).all():
        raise ConfigError(
            f"no fixed size can serve the requests; the first error: {next(iter(tried.errors().values()))}"
        )
    best = sizes[int(np.nanargmin(costs))]
    return compare(scenario, policies, autoscalers=[f"{BEST_FIXED}={best}", *autoscalers], **options)


def _by_metric(scenario: Scenario, metric: str, options: dict[str, Any]) -> Choice:
    """Return a choice of budgets by the mean of a metric.

    Args:
        scenario: the scenario.
        metric: the metric.
        options: further arguments of :func:`~kvgym.experiments.comparison.compare`.
    """
    sign = 1.0 if less_is_better(metric) else -1.0

    def choose(policy: Policy, others: Sequence[Policy]) -> Policy:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a budget that fails is not the best
            found = compare(scenario, [policy, *others], **options)
        means = np.array([sign * found.values(label, metric).mean() for label in found.policies])
        return [policy, *others][int(np.argmin(np.where(np.isnan(means), np.inf, means)))]

    return choose
