"""What weights do: agents of other training seeds beside each other, and rules with parts taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compare_agents.cells import Cell
from compare_agents.entrants import ABLATED, AGENT, TRAINED, Given, hyperparameters_of
from compare_agents.tasks import (
    ATTAINMENT,
    NOISY,
    PREDICTIONS,
    SLO_PREDICTIONS,
    UNKNOWN,
    Contest,
    Task,
    against_everything,
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
"""Groups of the weights of ``ranked``, and the values at which they do nothing: all that is ready is run where a
batch costs nothing; see docs/ranked.md."""

BETWEEN = " without "
"""Stands in a label between what was changed and the part that was taken away."""


def without(base: Given, part: str, changes: Mapping[str, Any]) -> Given:
    """Return an entrant with a part of its rule taken away."""
    return Given(ABLATED, f"{base.label}{BETWEEN}{part}", base.spec, agent=base.agent, changes=changes)


def ablation(contest: Contest) -> list[Cell]:
    """Mean latency of ``ranked`` with groups of weights taken away, learned and set by hand.

    Raises:
        ConfigError: the agent is not made of weights of ``ranked``.
    """
    if (name := hyperparameters_of(contest.agent)[0]) != "ranked":
        raise ConfigError(
            f"ablation: agent {contest.agent} is weights of {shown(name)}; expected some of 'ranked'"
        )
    bases = [agent_of(contest.agent), by_hand()]
    parts = dict(contest.some(list(PARTS.items())))
    entrants = [*bases, *(without(base, part, changes) for base in bases for part, changes in parts.items())]
    services = {
        "conversations, 20/s, noisy": conversations(contest, 20, PREDICTIONS[NOISY]),
        "conversations, 20/s, unknown": conversations(contest, 20, PREDICTIONS[UNKNOWN]),
        "mixed services, load 1.1, noisy": mixture(contest, 1.1, PREDICTIONS[NOISY])[0],
    }
    chosen = contest.some(list(services.items()))
    return [contest.cell("ablation", {"service": name}, scenario, entrants) for name, scenario in chosen]


def spread(contest: Contest) -> list[Cell]:
    """Agents of other training seeds on cells of the other tasks."""
    cells = []
    if contest.trained:
        services = {
            "conversations, 16/s, noisy": conversations(contest, 16, PREDICTIONS[NOISY]),
            "conversations, 20/s, noisy": conversations(contest, 20, PREDICTIONS[NOISY]),
            "conversations, 20/s, unknown": conversations(contest, 20, PREDICTIONS[UNKNOWN]),
            "conversations, 24/s, unknown": conversations(contest, 24, PREDICTIONS[UNKNOWN]),
            "mixed services, load 1.1, noisy": mixture(contest, 1.1, PREDICTIONS[NOISY])[0],
        }
        for name, scenario in contest.some(list(services.items())):
            trained = [agent_of(agent, TRAINED) for agent in contest.trained if agent != contest.agent]
            entrants = [*trained, *against_everything(contest, scenario)]
            cells.append(contest.cell("spread", {"service": name}, scenario, entrants))
    if contest.slo_trained:
        for rate in contest.some((1.8, 2.2)):
            scenario = objectives_at(contest, rate, SLO_PREDICTIONS[UNKNOWN])
            known = against_slo_schedulers(contest, scenario)
            taken = {entrant.label for entrant in known if entrant.group == AGENT}
            trained = [agent_of(agent, TRAINED) for agent in contest.slo_trained if agent not in taken]
            entrants = [
                *trained,
                *(
                    entrant
                    for entrant in known
                    if entrant.label not in contest.slo_trained or entrant.group == AGENT
                ),
            ]
            row = {"service": f"objectives, {rate:g}/s, unknown"}
            cells.append(contest.cell("spread", row, scenario, entrants, ATTAINMENT))
    return cells


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
"""Tasks that compare weights with each other, not an agent with others."""
