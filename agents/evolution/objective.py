"""Objective of evolution: a policy, router or autoscaler relative to references on the same requests.

With the metric v and the best reference value r, the objective of a service is:

- ``log(v / r)`` if lower is better: -0.1 is about 10 % better. Values are at least 1e-6 s, or 1 for counts.
- ``(r - v) / max(r, v)`` if higher is better, such as SLO attainment: about the relative difference, bounded if one
  value is near 0.

It is at most :data:`PENALTY`. A run fails if it makes no progress, decides something impossible or has invalid
weights. A failed run, and a run that leaves requests unfinished if lower is better (they would flatter it), has
``PENALTY * (1 + share of unfinished requests)``: finite, and worse than any finished run. If no reference has a
value, a finished run has 0. The objective is the mean over services; losses to the best reference may weigh more
(``behind``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvgym.agents.evolution.role import AS_POLICY, Role
from kvgym.agents.evolution.services import Service
from kvgym.errors import ConfigError, RunError, UnknownNameError
from kvgym.metrics.catalogue import metric_info
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.runner import check_needs, simulate
from kvgym.simulator.tables import FINISHED

PENALTY = 10.0
"""Largest objective of a finished run: a latency e^10 = 22,000 times the reference's."""

_LEAST = {"s": 1e-6}


@dataclass(frozen=True)
class Measurement:
    """Result of a policy or a router on a service.

    Attributes:
        metrics: values by name, NaN if not measured.
        left: share of unfinished requests.
        error: error of a failed run, or "".
    """

    metrics: dict[str, float]
    left: float
    error: str = ""


def measure(
    service: Service,
    spec: str,
    hyperparameters: Mapping[str, Any],
    names: Sequence[str],
    role: Role = AS_POLICY,
) -> Measurement:
    """Run a policy or a router on a service.

    Args:
        service: the service.
        spec: name or spec.
        hyperparameters: in addition to those of the spec.
        names: metrics to keep.
        role: policy or router.

    Raises:
        ConfigError: the name is unknown, or the requests lack information that the policy needs.
    """
    nothing = dict.fromkeys(names, math.nan)
    try:
        policy, router, autoscaler = role.cast(spec, hyperparameters, service.router)
    except UnknownNameError:
        raise
    except ConfigError as error:
        return Measurement(nothing, 1.0, str(error))
    check_needs(policy, service.table)
    try:
        result = simulate(
            service.system, service.table, policy, router=router, autoscaler=autoscaler, seed=service.seed
        )
    except RunError as error:
        done = 0 if error.result is None else int((error.result.requests["status"] == FINISHED).sum())
        return Measurement(nothing, 1 - done / len(service.table), str(error))
    except ArithmeticError as error:
        return Measurement(nothing, 1.0, repr(error))
    left = 1 - float((result.requests["status"] == FINISHED).mean())
    return Measurement(compute_metrics(result, names), left)


def measure_reference(
    service: Service, spec: str, names: Sequence[str], role: Role = AS_POLICY
) -> Measurement:
    """Run a reference on a service; missing information is a failure, not an error."""
    try:
        return measure(service, spec, {}, names, role)
    except UnknownNameError:
        raise
    except ConfigError as error:
        return Measurement(dict.fromkeys(names, math.nan), 1.0, str(error))


def counts(measurement: Measurement, metric: str) -> bool:
    """Return whether the value of a metric is valid."""
    value = measurement.metrics[metric]
    flattered = metric_info(metric).lower_is_better and measurement.left > 0
    return not measurement.error and not flattered and math.isfinite(value)


def best_value(references: Sequence[Measurement], metric: str) -> float:
    """Return the best value of a metric among references; NaN if there is none."""
    values = [m.metrics[metric] for m in references if counts(m, metric)]
    if not values:
        return math.nan
    return min(values) if metric_info(metric).lower_is_better else max(values)


def weighted(objective: float, behind: float) -> float:
    """Return the objective of a service, times ``behind`` if worse than the best reference."""
    return objective * behind if objective > 0 else objective


def objective(measurement: Measurement, metric: str, reference: float) -> float:
    """Return the objective of a policy on a service, smaller is better; see the module's docstring.

    Args:
        measurement: of the policy.
        metric: one with a direction.
        reference: value of the best reference, NaN if there is none.
    """
    if not counts(measurement, metric):
        nothing_to_measure = not measurement.error and measurement.left == 0 and math.isnan(reference)
        return 0.0 if nothing_to_measure else PENALTY * (1 + measurement.left)
    if math.isnan(reference):
        return 0.0
    value, info = measurement.metrics[metric], metric_info(metric)
    if not info.lower_is_better:
        larger = max(reference, value)
        return (reference - value) / larger if larger > 0 else 0.0
    least = _LEAST.get(info.unit, 1.0)
    return min(math.log(max(value, least) / max(reference, least)), PENALTY)


def improvement(mean_objective: float, metric: str) -> float:
    """Return the gain over the best references in per cent, from the mean objective."""
    share = math.expm1(mean_objective) if metric_info(metric).lower_is_better else mean_objective
    return 0.0 - 100 * share  # not -0.0


def mean(values: Sequence[float]) -> float:
    """Return the mean over services."""
    return float(np.mean(values)) if len(values) else math.nan
