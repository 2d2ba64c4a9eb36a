"""Studies of weights: agents of several training seeds, and policies with parts removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compare_agents.contestants import ABLATED, AGENT, TRAINED, Given, hyperparameters_of
from compare_agents.contests import Contest
from compare_agents.tasks import (
    ATTAINMENT,
    NOISY,
    PREDICTIONS,
    SLO_PREDICTIONS,
    UNKNOWN,
    Plan,
    Task,
    against_all,
    against_slo_schedulers,
    agent_of,
    by_hand,
    conversations,
    default,
    hardware,
    latency,
    mixed,
    mixture,
    objectives_at,
    slo,
    traces,
)
from kvgym.errors import ConfigError, shown

PARTS: dict[str, dict[str, float]] = {
    "tokens attained and KV held (attained, held)": {"attained": 0.0, "held": 0.0},
    "bias against waiting requests (waiting, waiting_pressure)": {"waiting": 0.0, "waiting_pressure": 0.0},
    "memory until the end (footprint)": {"footprint": 0.0},
    "prompt left (prompt)": {"prompt": 0.0},
    "the gate (gate)": {"gate": 100.0},
    "batch by worth per duration (cost, cost_pressure, cost_room)": {
        "cost": 0.0,
        "cost_pressure": 0.0,
        "cost_room": 0.0,
    },
    "prefill under pressure (prefill_pressure, prefill_room)": {"prefill_pressure": 0.0, "prefill_room": 0.0},
    "room kept free (free, growth)": {"free": 0.0, "growth": 0.0},
    "eviction by KV (evict_kv)": {"evict_kv": 0.0},
}
"""Groups of weights of ``ranked``, and values that disable them (without a batch cost everything ready is run); see
docs/ranked.md."""

BETWEEN = " without "
"""Separates the changed policy from the removed part in a label."""


def without(base: Given, part: str, changes: Mapping[str, Any]) -> Given:
    """Return a contestant with a part of its policy removed."""
    return Given(ABLATED, f"{base.label}{BETWEEN}{part}", base.spec, agent=base.agent, changes=changes)


def ablation(plan: Plan) -> list[Contest]:
    """Mean latency of ``ranked`` with groups of weights removed, learned and set by hand.

    Raises:
        ConfigError: the agent does not have weights of ``ranked``.
    """
    if (name := hyperparameters_of(plan.agent)[0]) != "ranked":
        raise ConfigError(
            f"ablation: agent {plan.agent} has weights of {shown(name)}; expected weights of 'ranked'"
        )
    bases = [agent_of(plan.agent), by_hand()]
    parts = dict(plan.some(list(PARTS.items())))
    contestants = [
        *bases,
        *(without(base, part, changes) for base in bases for part, changes in parts.items()),
    ]
    services = {
        "conversations, 20/s, noisy": conversations(plan, 20, PREDICTIONS[NOISY]),
        "conversations, 20/s, unknown": conversations(plan, 20, PREDICTIONS[UNKNOWN]),
        "mixed services, load 1.1, noisy": mixture(plan, 1.1, PREDICTIONS[NOISY])[0],
    }
    chosen = plan.some(list(services.items()))
    return [plan.contest("ablation", {"service": name}, scenario, contestants) for name, scenario in chosen]


def spread(plan: Plan) -> list[Contest]:
    """Agents of several training seeds on contests of the other tasks."""
    contests = []
    if plan.trained:
        services = {
            "conversations, 16/s, noisy": conversations(plan, 16, PREDICTIONS[NOISY]),
            "conversations, 20/s, noisy": conversations(plan, 20, PREDICTIONS[NOISY]),
            "conversations, 20/s, unknown": conversations(plan, 20, PREDICTIONS[UNKNOWN]),
            "conversations, 24/s, unknown": conversations(plan, 24, PREDICTIONS[UNKNOWN]),
            "mixed services, load 1.1, noisy": mixture(plan, 1.1, PREDICTIONS[NOISY])[0],
        }
        for name, scenario in plan.some(list(services.items())):
            trained = [agent_of(agent, TRAINED) for agent in plan.trained if agent != plan.agent]
            contestants = [*trained, *against_all(plan, scenario)]
            contests.append(plan.contest("spread", {"service": name}, scenario, contestants))
    if plan.slo_trained:
        for rate in plan.some((1.8, 2.2)):
            scenario = objectives_at(plan, rate, SLO_PREDICTIONS[UNKNOWN])
            known = against_slo_schedulers(plan, scenario)
            taken = {contestant.label for contestant in known if contestant.group == AGENT}
            trained = [agent_of(agent, TRAINED) for agent in plan.slo_trained if agent not in taken]
            contestants = [
                *trained,
                *(
                    contestant
                    for contestant in known
                    if contestant.label not in plan.slo_trained or contestant.group == AGENT
                ),
            ]
            row = {"service": f"objectives, {rate:g}/s, unknown"}
            contests.append(plan.contest("spread", row, scenario, contestants, ATTAINMENT))
    return contests


TASKS: dict[str, Task] = {
    "latency": latency,
    "slo": slo,
    "mixed": mixed,
    "default": default,
    "traces": traces,
    "hardware": hardware,
    "spread": spread,
    "ablation": ablation,
}
"""Tasks by name, in the order of the page."""

STUDIES = ("spread", "ablation")
"""Tasks that compare sets of weights with each other."""
