"""Runs that a test decides step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvgym.policies.policy import Decision
from kvgym.simulator.simulation import Simulation

Make = Callable[..., Simulation]


def run(simulation: Simulation, *decisions: Decision) -> None:
    for decision in decisions:
        assert simulation.step(decision)


def finish(simulation: Simulation) -> None:
    """Run all active requests in full until the end, without admissions."""
    while simulation.step(Decision()):
        pass


def rows(columns: Any) -> dict[int, tuple[int, int, int]]:
    """(KV tokens, prefill left, output tokens) by request id."""
    return {
        int(i): (int(kv), int(left), int(out))
        for i, kv, left, out in zip(
            columns.request_id,
            columns.num_kv_tokens,
            columns.num_prefill_left,
            columns.num_output_tokens,
            strict=True,
        )
    }


def log_of(simulation: Simulation) -> Any:
    return simulation.log[: int(simulation.tracker[0]["num_log"])]


def queue(simulation: Simulation) -> list[int]:
    return simulation.view.waiting.request_id.tolist()
