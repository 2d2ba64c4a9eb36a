"""Which kinds of action can express which policies, found by experiment.

Not every kind of action can express a policy that pauses, chunks or waits, or that uses an order which no window has.
:func:`expressible` runs a policy on small workloads with little memory in the compiled loop of
:mod:`~kvgym.envs.demonstrations.record`, which refuses inexpressible decisions. ``tokens`` can express all policies
that need no more than environments can reveal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvgym.envs.demonstrations.record import demonstrate
from kvgym.envs.scheduling.actions.catalogue import ACTIONS, action_kind
from kvgym.envs.scheduling.actions.expressing import NotExpressibleError
from kvgym.envs.scheduling.revealed import INFORMATION
from kvgym.errors import LivelockError
from kvgym.policies.policy import POLICIES, CompiledPolicy
from kvgym.utils.arguments import explained

ALWAYS, SHORT, EXACT, SHORT_EXACT, NEVER = (
    "yes",
    "short prompts",
    "exact predictions",
    "short prompts, exact predictions",
    "no",
)
"""In all tested workloads; if prompts fit into a chunk of the policy; if predictions are exact; both; in none."""

_CONDITIONS = {
    ALWAYS: ((False, False), (True, False)),
    SHORT: ((False, False),),
    EXACT: ((False, True), (True, True)),
    SHORT_EXACT: ((False, True),),
}
"""Workloads for each answer: whether prompts are long, and whether predictions are exact."""

KNOWN = frozenset(INFORMATION) - {"client", "length_distribution", "renewed_length"}
"""Information that the requests of the tested workloads carry."""

_OPTIONS = (("queue", "lifo"), ("queue", "clear"), ("predicted", "lifo"), ("predicted", "clear"))
"""Orders of the queue window and overflow rules, in the order in which they are tried."""


@dataclass(frozen=True)
class Expressible:
    """Whether a kind of action can express a policy.

    Attributes:
        how_far: ALWAYS, SHORT, EXACT, SHORT_EXACT or NEVER.
        queue_order: order of the queue window that makes it possible.
        overflow: overflow rule that makes it possible.
        reason: the first decision that could not be expressed; "" if none.
    """

    how_far: str
    queue_order: str = ""
    overflow: str = ""
    reason: str = ""


def _workload(prompt: tuple[int, int], needs: frozenset[str], exact: bool) -> dict[str, Any]:
    """Return requests of two classes with rates, targets and the required predictions."""
    classes = [
        {
            "name": name, "rate": 0.35, "priority": priority, "tbt_slo": 2.0 + 2.0 * priority, "ttft_slo": 16.0,
            "prompt": {"kind": "uniform", "low": prompt[0], "high": prompt[1]},
            "output": {"kind": "uniform", "low": 1 + priority, "high": 8 + priority},
        }
        for name, priority in (("short", 1), ("long", 0))
    ]  # fmt: skip
    kind = "interval" if "length_interval" in needs else "noisy"
    predictions = {"kind": kind, "epsilon": 0.01 if exact else 0.5}  # of lengths up to 9 tokens
    return {"classes": classes, "num_requests": 40, "predictions": predictions}


def _attempt(
    policy: str, action: str, queue_order: str, overflow: str, long_prompts: bool, exact: bool
) -> str:
    """Run a policy; return "" or the decision that cannot be expressed. A livelock proves nothing."""
    info = POLICIES[policy].info
    needs = info.needs | (info.uses - {"length_interval"})
    prompt, capacity = ((600, 1500), 3600) if long_prompts else ((1, 8), 30)
    for progress in ("lost", "kept"):
        try:
            demonstrate(
                policy, steps=600, seed=7, action=action, scenario="mc-sf-model-2", kv_capacity=capacity,
                workload=_workload(prompt, needs, exact), information=sorted(needs), queue_order=queue_order,
                overflow=overflow, queue_window=48, active_window=48, must_admit=False, stall_limit=500,
                system={"progress_on_evict": progress},
            )  # fmt: skip
        except NotExpressibleError as error:
            return str(error)
        except LivelockError:
            continue
    return ""


def expressible(action: str, policy: str) -> Expressible:
    """Return whether a kind of action can express a policy with its default hyperparameters.

    Args:
        action: kind of action, e.g. ``"admit_count"``.
        policy: name of a registered, compiled policy.

    Raises:
        UnknownNameError: there is no such kind or policy.
        ConfigError: the policy is not compiled.
    """
    if action_kind(action).encode is None:
        return Expressible(
            NEVER, reason=f"{action} set parameters of a rule and cannot carry out single decisions"
        )
    info = POLICIES[policy].info
    if hidden := sorted(info.needs - KNOWN):
        return Expressible(NEVER, reason=f"{hidden[0]} is not part of the tested workloads")
    needs = info.needs | ((info.uses & KNOWN) - {"length_interval"})
    first_reason = ""
    for how_far, workloads in _CONDITIONS.items():
        if how_far in (EXACT, SHORT_EXACT) and not needs & {"predicted_length", "length_interval"}:
            continue
        for order, overflow in _OPTIONS:
            if order == "predicted" and "predicted_length" not in needs:
                continue
            reasons = (_attempt(policy, action, order, overflow, *workload) for workload in workloads)
            reason = next(filter(None, reasons), "")
            first_reason = first_reason or reason
            if not reason:
                return Expressible(how_far, order, overflow, first_reason)
    return Expressible(NEVER, reason=first_reason)


def compiled_policies() -> tuple[str, ...]:
    """Return the names of the registered compiled policies."""
    return tuple(name for name in POLICIES if issubclass(POLICIES[name], CompiledPolicy))


@explained
def inexpressible_policies(action: str) -> dict[str, str]:
    """Return the compiled policies that a kind of action cannot express in every workload, each with a reason."""
    found = {name: expressible(action, name) for name in compiled_policies()}
    return {name: e.reason for name, e in found.items() if e.how_far != ALWAYS}


def table() -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return headings, and rows by policy, of a table of which kinds of action can express which policies."""
    kinds = [name for name in ACTIONS if action_kind(name).encode is not None]
    rows = {}
    for policy in compiled_policies():
        cells = []
        for kind in kinds:
            e = expressible(kind, policy)
            settings = [
                f"{name}={value}"
                for name, value, default in (
                    ("queue_order", e.queue_order, "queue"),
                    ("overflow", e.overflow, "lifo"),
                )
                if value not in ("", default)
            ]
            cells.append(", ".join([e.how_far, *settings]))
        rows[policy] = tuple(cells)
    return ("policy", *kinds), rows
