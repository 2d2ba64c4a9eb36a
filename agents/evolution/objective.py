"""How good a policy or a router is on services: relative to references that serve the same requests.

The objective of a service is, with v its metric and r that of the best reference:

- ``log(v / r)`` where less is better: -0.1 is about 10 % better. Values below a second's millionth, or below 1 where
  the metric counts something, are taken as that.
- ``(r - v) / max(r, v)`` where more is better, such as the attainment of SLOs: about the relative difference, and
  bounded where one of them is near 0.

It is at most :data:`PENALTY`. A run that fails (it can make no progress, decides something impossible, or the
weights are refused), or that leaves requests unfinished where less is better (what is left would flatter it), has
``PENALTY * (1 + share of requests unfinished)``: worse than all that finish, and finite. Where no reference has a
value, whoever finishes has 0. The objective is the mean over services, in which those that are worse than their best
reference may weigh more (``behind``).
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
from kvgym.metrics import compute_metrics, metric_info
from kvgym.runner import check_needs, simulate
from kvgym.simulator.tables import FINISHED

PENALTY = 10.0
"""Objective that no run which finishes exceeds: a latency e^10 = 22,000 times the reference's."""

_LEAST = {"s": 1e-6}


@dataclass(frozen=True)
class Measurement:
    """What a policy or a router reached on a service.

    Attributes:
        metrics: values by name, NaN where nothing was measured.
        left: share of the requests that were not finished.
        error: why the run failed, or "".
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
        hyperparameters: beside those of the spec.
        names: metrics to keep.
        role: what it is.

    Raises:
        ConfigError: there is nothing of that name, or the requests lack what the policy needs to know.
    """
    nothing = dict.fromkeys(names, math.nan)
    try:
        policy, router = role.cast(spec, hyperparameters, service.router)
    except UnknownNameError:
        raise
    except ConfigError as error:
        return Measurement(nothing, 1.0, str(error))
    check_needs(policy, service.table)
    try:
        result = simulate(service.system, service.table, policy, router=router, seed=service.seed)
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
    """Run a reference on a service; where it lacks what it needs to know, it fails."""
    try:
        return measure(service, spec, {}, names, role)
    except UnknownNameError:
        raise
    except ConfigError as error:
        return Measurement(dict.fromkeys(names, math.nan), 1.0, str(error))


def counts(measurement: Measurement, metric: str) -> bool:
    """Whether the value of a metric can be taken as it is."""
    value = measurement.metrics[metric]
    flattered = metric_info(metric).lower_is_better and measurement.left > 0
    return not measurement.error and not flattered and math.isfinite(value)


def best_value(references: Sequence[Measurement], metric: str) -> float:
    """Return the best value of a metric among references; NaN where none has one."""
    values = [m.metrics[metric] for m in references if counts(m, metric)]
    if not values:
        return math.nan
    return min(values) if metric_info(metric).lower_is_better else max(values)


def weighed(objective: float, behind: float) -> float:
    """Return the objective of a service, ``behind`` times as much where it is worse than the best reference."""
    return objective * behind if objective > 0 else objective


def objective(measurement: Measurement, metric: str, reference: float) -> float:
    """Return the objective of a policy on a service, smaller is better; see the module's docstring.

    Args:
        measurement: of the policy.
        metric: one that has better and worse.
        reference: value of the best reference, NaN where there is none.
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
    """Return by how many per cent a policy is better than the best references, from its mean objective."""
    share = math.expm1(mean_objective) if metric_info(metric).lower_is_better else mean_objective
    return 0.0 - 100 * share  # not -0.0


def mean(values: Sequence[float]) -> float:
    """Return the mean over services."""
    return float(np.mean(values)) if len(values) else math.nan
