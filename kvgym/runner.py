"""Run one policy over one request table: the function everything else is built on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.policy import CompiledPolicy, Policy, SystemInfo, make_policy
from kvgym.seeding import stream_seed
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.workloads.table import RequestTable

# Columns of the request table that a need requires.
_REQUIRED = {
    "predicted_length": "predicted_output_len",
    "length_interval": "predicted_low",
    "class": "class_id",
}


@dataclass(frozen=True)
class SimulationResult:
    """The outcome of a run.

    Attributes:
        policy: the policy, with its hyperparameters.
        system: the system.
        table: the requests, true lengths included.
        requests: their records, dtype REQUEST, shape (n,).
        worker: the worker's totals, dtype WORKER, shape (r,).
        log: per-iteration rows, dtype ITERATION, shape (iterations,); None unless asked for.
        gap_counts: int64, how many token gaps fell into each bin, see ``tables.GAP_BINS``.
        gap_sums: float64, their sums in seconds.
        completed: whether every request finished; False when the horizon came first.
    """

    policy: Policy
    system: System
    table: RequestTable
    requests: NDArray[Any]
    worker: NDArray[Any]
    log: NDArray[Any] | None
    gap_counts: NDArray[np.int64]
    gap_sums: NDArray[np.float64]
    completed: bool


def check_needs(policy: Policy, table: RequestTable) -> None:
    """Check that the requests carry what the policy needs to know.

    Raises:
        ConfigError: they do not.
    """
    for need, column in _REQUIRED.items():
        if need in policy.info.needs and getattr(table, column) is None:
            raise ConfigError(
                f"policy {policy.info.name!r} needs {need}, but the requests have no {column}; choose a workload "
                "or a prediction model that provides it (for lengths: exact, noisy, upper_bound, …)"
            )
    if "class_rates" in policy.info.needs and not table.classes:
        raise ConfigError(
            f"policy {policy.info.name!r} needs class_rates, but the requests carry none; choose a workload with "
            "classes, e.g. wait-low (kvgym list workloads), or give RequestTable.from_columns its classes"
        )


def system_info(system: System, table: RequestTable, seed: int, needs: Collection[str]) -> SystemInfo:
    """Return what a policy with the given needs is told before a run."""
    columns = (
        table.predicted_output_len if "predicted_length" in needs else None,
        table.predicted_high if "length_interval" in needs else None,
    )
    predicted = [c for c in columns if c is not None and len(c)]
    return SystemInfo(
        kv_capacity=system.kv_capacity,
        prefill_emits=system.first_token == "counted",
        max_requests=len(table),
        max_predicted_len=max((int(c.max()) for c in predicted), default=0),
        seed=stream_seed(seed, "policy"),
        batch_time=system.batch_time,
        first_token=system.first_token,
        classes=table.classes if "class_rates" in needs else (),
    )


def simulate(
    system: System,
    table: RequestTable,
    policy: str | Policy,
    *,
    seed: int = 0,
    log: bool = False,
    compiled: bool = True,
) -> SimulationResult:
    """Run ``policy`` on ``table`` until every request has finished or the horizon is reached.

    Args:
        system: the worker and its rules.
        table: the requests.
        policy: a policy or its name, e.g. ``"mc_sf"`` or ``"alpha_greedy:alpha=0.25"``.
        seed: seed of the policy's own randomness.
        log: keep a row per iteration.
        compiled: False runs the same engine as plain Python, for reading and debugging.

    Returns:
        Records and totals; equal arguments give equal bits.

    Raises:
        WorkloadError: a request can never be served.
        ConfigError: the requests lack what the policy needs.
        InvalidDecisionError: the policy decided something impossible.
        LivelockError: the policy makes no progress.
    """
    policy = make_policy(policy)
    check_needs(policy, table)
    simulation = Simulation(
        system, table, needs=policy.info.needs, policy_name=policy.info.name, log=log, compiled=compiled
    )
    policy.reset(system_info(system, table, seed, policy.info.needs))
    if isinstance(policy, CompiledPolicy) and type(policy).schedule is CompiledPolicy.schedule:
        simulation.run(policy.kernel, policy.arguments())
    else:
        running = simulation.start()
        while running:
            running = simulation.step(policy.schedule(simulation.view))
    return result_of(simulation, policy)


def final_records(requests: NDArray[Any], active: NDArray[Any], num_active: int) -> NDArray[Any]:
    """Return request records in which those still active carry what their slots hold."""
    records = requests.copy()
    for slot in active[:num_active]:
        r = records[slot["request_id"] : slot["request_id"] + 1]
        for name in (
            "num_output_tokens",
            "num_kv_tokens",
            "num_prefill_left",
            "last_token_time",
            "max_token_gap",
        ):
            r[name] = slot[name]
        r["num_delivered_tokens"] = max(slot["num_delivered_tokens"], slot["num_output_tokens"])
    return records


def result_of(simulation: Simulation, policy: Policy) -> SimulationResult:
    """Return the outcome of a simulation that has ended."""
    count = int(simulation.tracker[0]["num_log"])
    return SimulationResult(
        policy=policy,
        system=simulation.system,
        table=simulation.table,
        requests=final_records(
            simulation.requests, simulation.active[0], int(simulation.worker["num_active"])
        ),
        worker=simulation.workers,
        log=simulation.log[:count] if simulation.problem[0]["keep_log"] else None,
        gap_counts=simulation.gap_counts,
        gap_sums=simulation.gap_sums,
        completed=bool((simulation.requests["status"] == FINISHED).all()),
    )
