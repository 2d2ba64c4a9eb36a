"""The outcome of a run, collected from the tables of its simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.records import sparse_zeros
from kvgym.policies.policy import Policy
from kvgym.simulator.cluster.changing import FleetRecord
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.cluster.tables import KEPT, WHOLE
from kvgym.simulator.prefix.host_memory import TIER
from kvgym.simulator.recording.gaps import filled_bins
from kvgym.simulator.recording.samples import Samples
from kvgym.simulator.recording.window import Measured
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import ABORTED, FINISHED
from kvgym.workloads.layout import words
from kvgym.workloads.table import RequestTable


@dataclass(frozen=True)
class SimulationResult:
    """The outcome of a run.

    Attributes:
        policy: the policy, with its hyperparameters.
        system: the system.
        table: the requests, true lengths included; in the closed loop of sessions those that arrived, in the order and
            with the times in which they did.
        requests: their records, dtype REQUEST, shape (n,).
        worker: the worker's totals, dtype WORKER, shape (r,).
        log: per-iteration rows, dtype ITERATION, shape (iterations,); None without a log.
        gap_counts: int64, number of token gaps in each bin that has any, shortest gaps first, see
            :mod:`kvgym.simulator.recording.gaps`.
        gap_sums: float64, their sums in seconds.
        completed: whether all requests finished, or ended otherwise in a fleet; False if the horizon or an error came
            first.
        moves: requests that the router moved, in order, dtype MOVE; None without a log or a router that reassigns.
        window: the measured part; None = all.
        samples: running requests at moments all over the run; None unless requested.
        to_come: session of each turn that had not arrived in the closed loop of sessions, int64.
        jobs_to_come: the job of each of them, int64; empty without jobs.
        fleet: what the fleet did; None without one.
        transfer_wait: float64 (n,), by how much sharing has prolonged the transfers of each request, seconds; None
            unless links are shared.
        whole: bool (n,), which requests were prefilled and decoded by one worker; None without ``local_prefill``.
        tier: records of the memories of the hosts below the GPUs, dtype TIER, shape (r,).
        lower: those of the stores below the hosts.
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
    moves: NDArray[Any] | None = None
    window: Measured | None = None
    samples: Samples | None = None
    to_come: NDArray[np.int64] = field(default_factory=lambda: sparse_zeros((0,), np.int64))
    jobs_to_come: NDArray[np.int64] = field(default_factory=lambda: sparse_zeros((0,), np.int64))
    fleet: FleetRecord | None = None
    transfer_wait: NDArray[np.float64] | None = None
    whole: NDArray[np.bool_] | None = None
    tier: NDArray[Any] = field(default_factory=lambda: sparse_zeros((0,), TIER))
    lower: NDArray[Any] = field(default_factory=lambda: sparse_zeros((0,), TIER))


def ended(requests: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether requests have ended: finished, given up by their users, lost or refused, (n,)."""
    return np.asarray((requests["status"] == FINISHED) | (requests["status"] >= ABORTED))


def copy_of(table: NDArray[Any]) -> NDArray[Any]:
    """Copy a table of records as one block; ``copy()`` copies each row field by field, which is slow."""
    return words(table).copy().view(table.dtype, type(table)).reshape(table.shape)


def final_records(
    requests: NDArray[Any], active: NDArray[Any], num_active: NDArray[np.int64], *, copied: bool = True
) -> NDArray[Any]:
    """Return request records, with the state of the slots copied to the rows of active requests.

    Args:
        requests: dtype REQUEST, (n,).
        active: dtype SLOT, (r, slots).
        num_active: slots in use of each worker, (r,).
        copied: whether to return a copy; otherwise ``requests`` is changed in place.
    """
    records = copy_of(requests) if copied else requests
    if not num_active.any():
        return records
    slots = active[np.arange(active.shape[1]) < num_active[:, None]]
    ids = slots["request_id"]
    for name in (
        "num_output_tokens",
        "num_kv_tokens",
        "num_prefill_left",
        "last_token_time",
        "max_token_gap",
    ):
        records[name][ids] = slots[name]
    made, delivered = slots["num_output_tokens"], slots["num_delivered_tokens"]
    records["num_delivered_tokens"][ids] = np.maximum(made, delivered)
    return records


def arrived_table(
    system: System,
    table: RequestTable,
    tracker: NDArray[Any],
    turns: NDArray[Any],
    workload: NDArray[Any],
) -> dict[str, Any]:
    """Return the requests by request id: in the closed loop of sessions those that have arrived, as they arrived.

    Args:
        system: the system.
        table: the requests of the run.
        tracker: TRACKER (1,).
        turns: TURN (n,).
        workload: WORKLOAD (n,).

    Returns:
        The fields ``table``, ``to_come`` and ``jobs_to_come`` of a :class:`SimulationResult`.
    """
    if system.sessions == "open" or table.session_id is None:
        return {"table": table}
    count = int(tracker[0]["next_arrival"])
    rows = turns["row"][:count]
    jobs = {} if table.job_id is None else {"jobs_to_come": np.delete(table.job_id, rows)}
    arrived = table.as_arrived(rows, workload["arrival_time"][:count])
    return {"table": arrived, "to_come": np.delete(table.session_id, rows), **jobs}


def result_of(simulation: Simulation, policy: Policy, *, given_up: bool = False) -> SimulationResult:
    """Return the outcome of a simulation, or its outcome so far if it has not ended.

    Args:
        simulation: the simulation.
        policy: the policy of its first worker.
        given_up: whether the simulation is finished with; its tables then become those of the result, or of later runs.
    """
    active, num_active = simulation.active, simulation.workers["num_active"]
    gap_counts, gap_sums = filled_bins(simulation.gap_counts, simulation.gap_sums, given_up=given_up)
    tracker, kept = simulation.tracker[0], bool(simulation.problem[0]["keep_log"])
    arrived = arrived_table(
        simulation.system, simulation.table, simulation.tracker, simulation.turns, simulation.workload
    )
    table = arrived["table"]
    requests = simulation.requests[: len(table)]
    cluster = simulation if isinstance(simulation, ClusterSimulation) else None
    return SimulationResult(
        policy=policy,
        system=simulation.system,
        **arrived,
        requests=final_records(requests, active, num_active, copied=not given_up),
        worker=simulation.workers if given_up else simulation.workers.copy(),
        log=simulation.log[: int(tracker["num_log"])] if kept else None,
        gap_counts=gap_counts,
        gap_sums=gap_sums,
        completed=bool(ended(simulation.requests).all()),
        moves=simulation.moves[: int(tracker["num_moves"])]
        if kept and (tracker["reassigns"] or tracker["num_moves"])
        else None,
        fleet=cluster.fleet_record() if cluster else None,
        transfer_wait=cluster.flows["waited"][: len(table)].copy()
        if cluster and len(cluster.flows)
        else None,
        whole=np.isin(cluster.stage[: len(table)], (WHOLE, KEPT)) if cluster and len(cluster.stage) else None,
        tier=simulation.tier if given_up else simulation.tier.copy(),
        lower=simulation.lower if given_up else simulation.lower.copy(),
    )
