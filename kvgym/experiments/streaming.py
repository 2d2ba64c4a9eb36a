"""A run of a scenario with requests in pieces, see :mod:`kvgym.policies.streaming`."""

from __future__ import annotations

from collections.abc import Iterator

from kvgym.errors import ConfigError
from kvgym.experiments.resolving import requests_for, resolve_policy
from kvgym.experiments.scenario import Scenario
from kvgym.metrics.streaming import Streamed, stream
from kvgym.policies.policy import Policy, make_policy
from kvgym.utils.arguments import explained
from kvgym.workloads.pieces import check_pieces, pieces_of
from kvgym.workloads.table import RequestTable

PIECE = 1 << 16
"""Requests of a piece: 16 MB of memory, and 10 ms to draw."""


@explained
def stream_scenario(scenario: Scenario, policy: str | Policy, seed: int = 0) -> Streamed:
    """Run a policy in a scenario in memory that does not grow with the number of requests.

    Args:
        scenario: of one worker, with requests that can be drawn one after another.
        policy: a compiled policy, or its name.
        seed: seed of workload and policy.

    Raises:
        ConfigError: the run cannot be played in pieces; the message names the reason.
        WorkloadError: a request can never be served.
        RunError: the run ends with an error.
    """
    workload, system, made = scenario.make_workload(), scenario.make_system(), make_policy(policy)
    if scenario.window is not None or scenario.too_long == "drop":
        wrong = "too_long = drop" if scenario.window is None else "a warm-up or a cool-down"
        raise ConfigError(f"a run in pieces does without {wrong}; leave it out, or run it in one piece")
    check_pieces(workload)

    def draw() -> Iterator[RequestTable]:
        for table in pieces_of(workload, seed, PIECE):
            yield requests_for(made, scenario.fitting(table, system.usable_capacity), workload)

    first = next(draw(), None)
    resolved = made if first is None else resolve_policy(made, system, first)
    return stream(system, draw, resolved, seed=seed)
