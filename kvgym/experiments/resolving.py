"""Policies with the defaults of a system, and how results name and describe them."""

from __future__ import annotations

from typing import Any

from kvgym.policies.hyperparameters import AUTO
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.policies.runner import PREDICTIONS, known_to, observes_predictions, system_info
from kvgym.simulator.system import System
from kvgym.utils.hyperparameters import all_hyperparameters, construct, given_hyperparameters
from kvgym.utils.specs import spec_text
from kvgym.utils.user_code import calling
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload

_GIVEN = "_as_given"
"""Attribute of a resolved policy with the policy as given."""


def requests_for(policy: Policy, table: RequestTable, workload: Workload) -> RequestTable:
    """Return the requests of a workload as a policy gets them.

    With ``only_needed``, see :class:`~kvgym.workloads.predictions.Predictor`, a policy that does not need predictions
    gets none.
    """
    predictor = workload.spec.predictions
    if predictor is None or not predictor.only_needed or policy.info.needs & PREDICTIONS:
        return table
    if not observes_predictions(policy, table):
        return table
    return table.replace(predicted_output_len=None, predicted_low=None, predicted_high=None, forecasts=None)


def resolve_policy(policy: Policy, system: System, table: RequestTable) -> Policy:
    """Return a policy with the values of a system in place of :data:`~kvgym.policies.hyperparameters.AUTO`.

    It makes the same decisions, and its label has the values that are not the usual ones. On a cluster of workers that
    differ in them, the policy is returned unchanged: every worker then takes its own.

    Args:
        policy: the policy.
        system: the system.
        table: the requests.

    Raises:
        ConfigError: a value does not fit to the other hyperparameters.
    """
    if not policy.info.auto:
        return policy
    values = all_hyperparameters(policy)
    if not any(values.get(name) == AUTO for name, _ in policy.info.auto):
        return policy
    needs, workers = known_to(policy, table), system.all_workers
    kinds = {(id(worker.batch_time), worker.kv_capacity): k for k, worker in enumerate(workers)}
    found: list[dict[str, Any]] = []
    for k in kinds.values():
        with calling(policy, "policy", "resolve"):
            found.append(policy.resolve(system_info(system, table, 0, needs, k)))
    if not found[0] or any(other != found[0] for other in found):
        return policy
    given = given_hyperparameters(policy) | found[0]
    made = construct(type(policy), given, f"policy {policy.info.name!r}")
    usual = dict(policy.info.auto)
    named = {k: v for k, v in given.items() if k not in found[0] or v != usual.get(k)}
    made.label = policy.label or spec_text(policy.info.name, named)
    vars(made)[_GIVEN] = policy
    return made


def as_given(policy: Policy) -> Policy:
    """Return the policy that :func:`resolve_policy` was given; another policy unchanged."""
    given: Policy = vars(policy).get(_GIVEN, policy)
    return given


def label_of(policy: Policy | Router) -> str:
    """Return the label of a policy or router; by default its name and given hyperparameters, as in ``make_policy``."""
    if policy.label:
        return str(policy.label)
    return spec_text(policy.info.name, given_hyperparameters(policy))


def both_described(policy: Policy, router: Router | None) -> dict[str, Any]:
    """Return names and hyperparameters of a policy and a router."""
    both = {"policy": policy, "router": router}
    return {
        what: {"name": made.info.name, **all_hyperparameters(made)} for what, made in both.items() if made
    }
