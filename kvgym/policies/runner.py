"""Run one policy on one request table; everything else is built on this."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, RunError, shown
from kvgym.policies.policy import CompiledPolicy, Policy, SystemInfo, make_policy
from kvgym.policies.routing import DEFAULT_ROUTER, Router, make_router
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.observer import Follower, Observer
from kvgym.simulator.recording.gaps import filled_bins
from kvgym.simulator.recording.progress import report_progress
from kvgym.simulator.recording.samples import Sampler, Samples
from kvgym.simulator.recording.window import Measured, Watch, Window
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.utils.arguments import explained
from kvgym.utils.seeding import stream_seed
from kvgym.utils.user_code import calling
from kvgym.workloads.layout import words
from kvgym.workloads.table import RequestTable

# Columns of the request table that a need requires.
_REQUIRED = {
    "predicted_length": "predicted_output_len",
    "length_interval": "predicted_low",
    "class": "class_id",
    "session": "session_id",
    "client": "client_id",
    "features": "feature_0",
}

_FORECAST = {"length_distribution": "tenths", "renewed_length": "every"}
"""Needs that are parts of the requests' forecasts."""

PREDICTIONS = frozenset({"predicted_length", "length_interval", *_FORECAST})
"""Needs that are predictions of output lengths."""

_EXAMPLES = {
    "length_distribution": "distribution:shape=log_t",
    "renewed_length": "noisy:epsilon=0.5,renew_every=20",
}


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
        completed: whether all requests finished; False if the horizon or an error came first.
        moves: requests that the router moved, in order, dtype MOVE; None without a log or a router that reassigns.
        window: the measured part; None = all.
        samples: running requests at moments all over the run; None unless requested.
        to_come: session of each turn that had not arrived in the closed loop of sessions, int64.
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
    to_come: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def check_needs(policy: Policy, table: RequestTable) -> None:
    """Check that the requests carry the information that the policy needs.

    Raises:
        ConfigError: they lack some of it.
    """
    for need, column in _REQUIRED.items():
        if need in policy.info.needs and getattr(table, column) is None:
            raise ConfigError(
                f"policy {shown(policy.info.name)} needs {need}, but the requests have no {column}; choose a workload "
                "or a prediction model that provides it (for lengths: exact, noisy, upper_bound, …)"
            )
    if lacking := sorted(policy.info.needs & _FORECAST.keys() - _forecast(table)):
        how = (
            "predictions of kind distribution"
            if lacking[0] == "length_distribution"
            else "renew_every of predictions"
        )
        raise ConfigError(
            f"policy {shown(policy.info.name)} needs {lacking[0]}, but the requests carry none; choose {how}, e.g. "
            f"--predictions {_EXAMPLES[lacking[0]]}"
        )
    if "class_rates" in policy.info.needs and not table.classes:
        raise ConfigError(
            f"policy {shown(policy.info.name)} needs class_rates, but the requests carry none; choose a workload with "
            "classes, e.g. wait-low (kvgym list workloads), or give RequestTable.from_columns its classes"
        )


def _forecast(table: RequestTable) -> set[str]:
    """Return the needs that the requests' forecasts fulfil."""
    forecasts = table.forecasts
    parts = [] if forecasts is None else [forecasts.tenths is not None, forecasts.every > 0]
    return {need for need, part in zip(_FORECAST, parts, strict=False) if part}


def known_to(policy: Policy, table: RequestTable) -> frozenset[str]:
    """Return the information a policy observes: its needs, and those of its uses that the requests carry."""
    carried = {need for need, column in _REQUIRED.items() if getattr(table, column) is not None}
    carried |= _forecast(table)
    carried |= {"slo", "true_length"} | ({"class_rates"} if table.classes else set())
    return policy.info.needs | (policy.info.uses & carried)


def observes_predictions(policy: Policy, table: RequestTable) -> bool:
    """Return whether a policy observes predictions of output lengths."""
    return bool(known_to(policy, table) & PREDICTIONS)


def system_info(
    system: System, table: RequestTable, seed: int, needs: Collection[str], worker: int = 0
) -> SystemInfo:
    """Return the information that a worker's policy with the given needs receives before a run.

    In a cluster the rates of the classes are the worker's share: an equal part of the arrivals at its stage.
    """
    described, first = system.all_workers[worker], stream_seed(seed, "policy")
    prefill = system.num_prefill_workers
    sharing = prefill if described.role == "prefill" else len(system.all_workers) - prefill
    predicted = _predictions(table, needs)
    longest = [*predicted.values(), *([table.output_len] if "true_length" in needs else [])]
    return SystemInfo(
        kv_capacity=int(system.usable_capacities[worker]),
        prefill_emits=system.first_token == "counted",
        max_requests=len(table),
        max_predicted_len=max((int(c.max()) for c in longest if len(c)), default=0),
        seed=first if worker == 0 else np.random.SeedSequence(seed, spawn_key=(*first.spawn_key, worker)),
        batch_time=described.batch_time,
        first_token=system.first_token,
        classes=tuple(c.at_rate(1 / sharing) for c in table.classes) if "class_rates" in needs else (),
        block_size=system.block_size,
        underestimates=frozenset(n for n, c in predicted.items() if (c < table.output_len).any()),
    )


def _predictions(table: RequestTable, needs: Collection[str]) -> dict[str, NDArray[np.int64]]:
    """Return the predicted lengths that a policy with the given needs observes, of intervals the upper ends, (n,)."""
    columns = {"predicted_length": table.predicted_output_len, "length_interval": table.predicted_high}
    return {need: column for need, column in columns.items() if need in needs and column is not None}


def observes_exact_lengths(policy: Policy, table: RequestTable) -> bool:
    """Return whether predictions that a policy observes are the true output lengths of all requests.

    False for clairvoyant policies, which observe the lengths themselves.
    """
    if policy.info.clairvoyant:
        return False
    predicted, low = _predictions(table, known_to(policy, table)), table.predicted_low
    exact = {need: np.array_equal(column, table.output_len) for need, column in predicted.items()}
    if "length_interval" in exact and low is not None:
        exact["length_interval"] &= np.array_equal(low, table.output_len)
    return any(exact.values())


@explained
def simulate(
    system: System,
    table: RequestTable,
    policy: str | Policy,
    *,
    router: str | Router | None = None,
    seed: int = 0,
    log: bool = False,
    compiled: bool = True,
    observer: Observer | None = None,
    window: Window | None = None,
    samples: int = 0,
) -> SimulationResult:
    """Run ``policy`` on ``table`` until every request has finished or the horizon is reached.

    Args:
        system: the worker or the cluster.
        table: the requests.
        policy: a policy or its name, e.g. ``"mc_sf"`` or ``"alpha_greedy:alpha=0.25"``; in a cluster every worker
            has its own copy.
        router: in a cluster, a router or its name, e.g. ``"join_shortest_queue"``; None = ``"round_robin"``.
        seed: seed of the policy's own randomness.
        log: keep a row per iteration.
        compiled: False runs the same engine as plain Python, for reading and debugging.
        observer: called with every event, see :class:`~kvgym.simulator.observer.Observer`. The run is the same, but
            takes longer.
        window: the part of the run that metrics measure, see docs/metrics.md; None = all. The run is the same.
        samples: even upper limit of moments at which the running requests are recorded; 0 = none. The run is the same.

    Returns:
        Records and totals; equal arguments give equal bits.

    Raises:
        WorkloadError: a request can never be served.
        ConfigError: the requests lack what the policy needs, or the window is empty.
        InvalidDecisionError: the policy returned an impossible decision.
        LivelockError: the policy makes no progress.
        UserCodeError: a policy, router, observer or batch-time model from outside kvgym raised an exception.
            The last three errors, and a KeyboardInterrupt, hold the result so far as ``error.result``.
    """
    policy = make_policy(policy)
    check_needs(policy, table)
    keep_log = log or observer is not None
    simulation, copies = prepare_run(system, table, policy, router, seed, keep_log, compiled)

    watch = None if window is None else Watch(simulation, window)
    sampler = Sampler(simulation, samples) if samples else None

    def outcome() -> SimulationResult:
        measured = None if watch is None else watch.measured()
        result = result_of(simulation, policy, given_up=True)
        kept = result if log else replace(result, log=None, moves=None)
        if sampler is not None:
            kept = replace(kept, samples=sampler.samples())
        return replace(kept, window=measured)

    try:
        _run_to_the_end(simulation, policy, copies, observer, [w for w in (watch, sampler) if w is not None])
    except (RunError, KeyboardInterrupt) as error:
        error.result = outcome()  # type: ignore[union-attr]
        raise
    return outcome()


def _run_to_the_end(
    simulation: Simulation,
    policy: Policy,
    copies: list[Policy],
    observer: Observer | None,
    watches: list[Watch | Sampler],
) -> None:
    def pace() -> int | None:
        paces = [1] if observer is not None else [p for w in watches if (p := w.pace()) is not None]
        return min(paces, default=None)

    pauses = steps_of(simulation, policy, copies, pace)
    follower = None if observer is None else Follower(simulation, observer)
    try:
        for _ in pauses:
            report_progress(simulation)
            for watch in watches:
                watch.update()
            if follower is not None:
                follower.update()
    except BaseException:
        if follower is not None:
            with contextlib.suppress(Exception):  # only the first error is reported
                follower.end()
        raise
    if follower is not None:
        follower.end()


def steps_of(
    simulation: Simulation, policy: Policy, copies: list[Policy], pace: Callable[[], int | None] = lambda: 1
) -> Iterator[None]:
    """Return an iterator that runs a simulation to its end and pauses before decisions.

    Args:
        simulation: from :func:`prepare_run`, as are ``copies``.
        policy: the policy of the first worker.
        copies: the policy of each worker.
        pace: returns the number of compiled decisions until the next pause; None = no pause.
    """
    if isinstance(policy, CompiledPolicy) and type(policy).schedule is CompiledPolicy.schedule:
        return _run_compiled(simulation, pace)
    return _run_in_python(simulation, copies)


def _run_in_python(simulation: Simulation, copies: list[Policy]) -> Iterator[None]:
    """Run to the end, pausing before every decision."""
    guard = calling(copies[0], "policy", "schedule")
    running = simulation.start()
    while running:
        yield
        policy = copies[simulation.current]
        with guard:
            decision = policy.schedule(simulation.view)
        running = simulation.step(decision)


def _run_compiled(simulation: Simulation, pace: Callable[[], int | None]) -> Iterator[None]:
    """Run compiled policies to the end, pausing after the number of decisions that ``pace`` returns; None = never."""
    if isinstance(simulation, ClusterSimulation):
        ended = simulation.run(budget=None if pace() is None else 0)
        while not ended:
            yield
            ended = simulation.run(budget=pace())
    elif pace() is None:
        simulation.run()
    else:
        while simulation.start():
            yield
            simulation.run(budget=pace())


def prepare_run(
    system: System,
    table: RequestTable,
    policy: Policy,
    router: str | Router | None = None,
    seed: int = 0,
    log: bool = False,
    compiled: bool = True,
) -> tuple[Simulation, list[Policy]]:
    """Return a simulation ready to run, and the policy of each worker; arguments as for :func:`simulate`."""
    name, needs = policy.info.name, known_to(policy, table)
    options: dict[str, Any] = {"needs": needs, "policy_name": name, "log": log, "compiled": compiled}
    with calling(policy, "policy", "copy.deepcopy"):
        copies = [policy] + [copy.deepcopy(policy) for _ in system.all_workers[1:]]
    for k, own in enumerate(copies):
        info = system_info(system, table, seed, needs, k)
        with calling(policy, "policy", "reset"):
            own.reset(info)
    if not system.workers:
        if router is not None:
            raise ConfigError(
                "a router is for clusters; this system has one worker (System.replicate makes more)"
            )
        simulation = Simulation(system, table, **options)
        simulation.set_policies(copies)
        return simulation, copies
    chosen = make_router(DEFAULT_ROUTER if router is None else router)
    with calling(chosen, "router", "reset"):
        chosen.reset(len(system.workers), stream_seed(seed, "routing"))
    cluster = ClusterSimulation(system, table, chosen, **options)
    cluster.set_policies(copies)
    return cluster, copies


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
) -> tuple[RequestTable, NDArray[np.int64]]:
    """Return the requests by request id: in the closed loop of sessions those that have arrived, as they arrived.

    Args:
        system: the system.
        table: the requests of the run.
        tracker: TRACKER (1,).
        turns: TURN (n,).
        workload: WORKLOAD (n,).

    Returns:
        The requests, and the session of each turn that has not arrived.
    """
    if system.sessions == "open" or table.session_id is None:
        return table, np.zeros(0, np.int64)
    count = int(tracker[0]["next_arrival"])
    rows = turns["row"][:count]
    return table.as_arrived(rows, workload["arrival_time"][:count]), np.delete(table.session_id, rows)


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
    table, to_come = arrived_table(
        simulation.system, simulation.table, simulation.tracker, simulation.turns, simulation.workload
    )
    requests = simulation.requests[: len(table)]
    return SimulationResult(
        policy=policy,
        system=simulation.system,
        table=table,
        requests=final_records(requests, active, num_active, copied=not given_up),
        worker=simulation.workers if given_up else simulation.workers.copy(),
        log=simulation.log[: int(tracker["num_log"])] if kept else None,
        gap_counts=gap_counts,
        gap_sums=gap_sums,
        completed=bool((simulation.requests["status"] == FINISHED).all()),
        moves=simulation.moves[: int(tracker["num_moves"])] if kept and tracker["reassigns"] else None,
        to_come=to_come,
    )
