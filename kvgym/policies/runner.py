"""Run one policy on one request table; everything else is built on this."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError, InvalidDecisionError, RunError, shown
from kvgym.policies.policy import KERNEL_SCHEDULES, Policy, SystemInfo, make_policy
from kvgym.policies.results import SimulationResult as SimulationResult
from kvgym.policies.results import arrived_table as arrived_table
from kvgym.policies.results import copy_of as copy_of
from kvgym.policies.results import final_records as final_records
from kvgym.policies.results import result_of as result_of
from kvgym.policies.routing import DEFAULT_ROUTER, Router, make_router
from kvgym.policies.scaling import Autoscaler, make_autoscaler
from kvgym.simulator.cluster.changing import Scaling
from kvgym.simulator.cluster.fleet_view import Ahead
from kvgym.simulator.cluster.luck import DRAWN, Luck
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.observer import Follower, Observer
from kvgym.simulator.recording.progress import report_progress
from kvgym.simulator.recording.samples import Sampler
from kvgym.simulator.recording.window import Watch, Window
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.utils.arguments import explained
from kvgym.utils.seeding import stream_seed
from kvgym.utils.user_code import calling
from kvgym.workloads.classes import KnownRates
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
        drafts=0 if system.speculation is None else system.speculation.depth,
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
    autoscaler: str | Autoscaler | None = None,
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
        autoscaler: of a fleet, an autoscaler or its name, e.g. ``"hpa:target=8"``; None = the size stays.
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
    simulation, copies = prepare_run(system, table, policy, router, seed, keep_log, compiled, autoscaler)

    watch = None if window is None else Watch(simulation, window)
    sampler = Sampler(simulation, samples) if samples else None

    def outcome() -> SimulationResult:
        measured = None if watch is None else watch.measured()
        result = result_of(simulation, policy, given_up=True)
        changes: dict[str, Any] = {} if log or not keep_log else {"log": None, "moves": None}
        if sampler is not None:
            changes["samples"] = sampler.samples()
        if measured is not None:
            changes["window"] = measured
        return replace(result, **changes) if changes else result

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
    if type(policy).schedule in KERNEL_SCHEDULES:
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
    refused = None
    try:
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
    except InvalidDecisionError as error:
        refused = error
    if refused is not None:
        for policy in simulation.policies:
            if hasattr(policy, "check_failure"):
                policy.check_failure()
        raise refused


def prepare_run(
    system: System,
    table: RequestTable,
    policy: Policy,
    router: str | Router | None = None,
    seed: int = 0,
    log: bool = False,
    compiled: bool = True,
    autoscaler: str | Autoscaler | None = None,
) -> tuple[Simulation, list[Policy]]:
    """Return a simulation ready to run, and the policy of each worker; arguments as for :func:`simulate`."""
    name, needs = policy.info.name, known_to(policy, table)
    if system.speculation is not None and not policy.info.drafts:
        raise ConfigError(
            f"policy {shown(name)} plans one token per decode, and the system speculates; choose a policy that counts "
            "drafts (kvgym list policies), such as fcfs or vllm_v1, or set speculation to off"
        )
    if system.host_memory is not None and system.host_memory.load == "async" and not policy.info.loads:
        raise ConfigError(
            f"policy {shown(name)} plans with requests that it starts, and where loads are asynchronous these may have "
            "to load first; choose a policy such as fcfs or vllm_v1, or set load of host_memory to overlap"
        )
    options: dict[str, Any] = {"needs": needs, "policy_name": name, "log": log, "compiled": compiled}
    with calling(policy, "policy", "copy.deepcopy"):
        copies = [policy] + [copy.deepcopy(policy) for _ in system.all_workers[1:]]
    for k, own in enumerate(copies):
        info = system_info(system, table, seed, needs, k)
        with calling(policy, "policy", "reset"):
            own.reset(info)
    if autoscaler is not None and system.fleet is None:
        raise ConfigError(
            "an autoscaler is for fleets; the system has a fixed number of workers (System.fleet)"
        )
    if not system.workers:
        if router is not None:
            raise ConfigError(
                "a router is for clusters; this system has one worker (System.replicate makes more)"
            )
        simulation = Simulation(system, table, **options, seed=seed)
        _take(simulation, copies)
        return simulation, copies
    chosen = make_router(DEFAULT_ROUTER if router is None else router)
    others = other_routers(system, chosen, seed)
    with calling(chosen, "router", "reset"):
        chosen.reset(len(system.workers), stream_seed(seed, "routing"))
    if system.fleet is not None:
        renewal = Renewal(system, table, seed, needs, tuple(copies))
        options["scaling"] = scaling_of(system.fleet, autoscaler, seed, renewal)
    cluster = ClusterSimulation(system, table, chosen, others=others, **options)
    _take(cluster, copies)
    return cluster, copies


def _take(simulation: Simulation, copies: list[Policy]) -> None:
    """Set the policies of a simulation, and attach those that need it."""
    simulation.set_policies(copies)
    for k, policy in enumerate(copies):
        if hasattr(policy, "attach"):
            policy.attach(simulation, k)


def other_routers(system: System, router: Router, seed: int) -> list[Router]:
    """Return the routers of a cluster but for the first, reset for the run.

    Raises:
        ConfigError: the router needs an exact view, and the system has another.
    """
    if system.knowledge is None:
        return []
    system.knowledge.check_router(router)
    first = stream_seed(seed, "routing")
    found = []
    for j in range(1, system.knowledge.routers):
        with calling(router, "router", "copy.deepcopy"):
            other = copy.deepcopy(router)
        with calling(other, "router", "reset"):
            other.reset(
                len(system.workers), np.random.SeedSequence(first.entropy, spawn_key=(*first.spawn_key, j))
            )
        found.append(other)
    return found


@dataclass(frozen=True)
class Renewal:
    """Resets the policy of a worker that has started again; arguments as of :func:`system_info`."""

    system: System
    table: RequestTable
    seed: int
    needs: frozenset[str]
    policies: tuple[Policy, ...]

    def __call__(self, worker: int, life: int) -> Policy:
        """Return the policy of a worker, reset for its life of this number, from 1."""
        info = system_info(self.system, self.table, self.seed, self.needs, worker)
        own = np.random.SeedSequence(info.seed.entropy, spawn_key=(*info.seed.spawn_key, worker, life))
        policy = self.policies[worker]
        with calling(policy, "policy", "reset"):
            policy.reset(replace(info, seed=own))
        return policy


def scaling_of(fleet: Fleet, autoscaler: str | Autoscaler | None, seed: int, renewal: Renewal) -> Scaling:
    """Return how a fleet is scaled in a run, with an autoscaler that is reset for it."""
    chosen = None
    if autoscaler is not None:
        chosen = copy.copy(make_autoscaler(autoscaler))
        with calling(chosen, "autoscaler", "reset"):
            chosen.reset(fleet, stream_seed(seed, "autoscaler"))
    ahead, table = None, renewal.table
    if chosen is not None and chosen.info.clairvoyant:
        rates = table.rates or KnownRates.counted(table.arrival_time)
        ahead = Ahead(rates, float(table.prompt_len.mean()), float(table.output_len.mean()))
    luck = Luck(fleet, {name: stream_seed(seed, name) for name in DRAWN})
    return Scaling(chosen, luck, renewal, ahead)
