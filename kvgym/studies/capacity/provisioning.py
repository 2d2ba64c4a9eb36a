"""Search for the number of workers that a load needs, by theory and by simulation, and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvgym.batch_time.deployments.described import HardwareName
from kvgym.batch_time.deployments.load import load_hardware
from kvgym.errors import ConfigError, UnknownNameError
from kvgym.experiments.budgets import BUDGETS, add_best_budgets, budget_note, is_open
from kvgym.experiments.comparison import label_of
from kvgym.experiments.fleet.groups import StartUp
from kvgym.experiments.journal import kept_runs
from kvgym.experiments.load.loads import Load
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.runs import Played, Player
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.metrics.catalogue import metric_info
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router, make_router
from kvgym.simulator.system import System
from kvgym.studies.capacity.entries import Entry, find_policies
from kvgym.studies.capacity.estimates import (
    SOUND,
    WorkerEstimates,
    check_equal_workers,
    estimate_runs,
    worker_estimates,
)
from kvgym.studies.capacity.finding import TOLERANCE, by_capacity
from kvgym.studies.capacity.probing import Prober, Progress, Quest, rate_quest, workers_quest
from kvgym.studies.capacity.provisioned import LoadPoint, Provisioning, WorkersPlan
from kvgym.studies.capacity.scaled import FleetPlanner, check_fleets
from kvgym.studies.capacity.targets import Target, parse_targets
from kvgym.studies.capacity.verdict import check_requests
from kvgym.studies.capacity.windows import WindowPlan, WindowPlanner, WindowSummary, check_windows
from kvgym.theory.hindsight.calibrated.latencies import least_latencies
from kvgym.utils.arguments import explained
from kvgym.utils.checks import real_number
from kvgym.workloads.table import RequestTable

_ROUNDING = 1e-9
MOST_WORKERS = 256
"""Default maximum number of workers to try."""

ADVICE = "Others were not tried, and may need fewer workers: --tune-budgets."
"""What a note on budgets advises."""

CURVE = (0.25, 0.5, 0.75, 1.5, 2.0)
"""Rates of a curve, as shares of the load's rate."""


@explained
def provision(
    scenario: str | Path | Scenario | None,
    targets: str | Iterable[str | Target],
    policies: Sequence[str | Policy] | None = None,
    *,
    hardware: Sequence[str] | None = None,
    routers: Sequence[str | Router] | None = None,
    prices: float | Mapping[str, float] | None = None,
    window: float | None = None,
    seed: int = 0,
    request_slos: dict[str, float] | None = None,
    most_workers: int = MOST_WORKERS,
    curve: Sequence[float] = (),
    tune_budgets: bool = False,
    autoscalers: Sequence[str] = (),
    startup: StartUp | None = None,
    hindsight: bool = False,
    folder: str | Path | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Provisioning:
    """Find how many equal workers a load needs, by policy, router and hardware.

    - Theory: ⌈λ/μ⌉ by every estimate of the batch time, with the measured rate of a saturated worker, see
      :mod:`kvgym.studies.capacity.estimates`; and, with the trace compressed or stretched, the highest rates at
      which one worker's backlog does not grow and at which it meets the targets.
    - Simulation: the smallest number of workers behind the router with which every request of the whole load
      finishes and the targets are met. The search doubles or halves the number by theory, then bisects.
    - Both again for windows of time, if requested.

    Args:
        scenario: a scenario, its name or file; its workload, e.g. a trace, is the load, its number of workers is
            ignored. None = the default scenario.
        targets: as in :func:`~kvgym.studies.capacity.targets.parse_targets`, at least one.
        policies: policies or specs, or ``"all"``; None = those of the scenario.
        hardware: names or files to compare, each with its default engine unless the scenario's was chosen, see
            :func:`on_hardware`; None = the scenario's.
        routers: routers or specs to compare; None = the scenario's.
        prices: price of a worker per hour, one for all hardware or by name (a roofline may be as short as in
            ``hardware``); any currency.
        window: length of a window, seconds; None = only the whole load.
        seed: seed of the workload, policies and routers.
        request_slos: as in :func:`~kvgym.studies.capacity.finding.find_capacity`.
        most_workers: largest number of workers to try.
        curve: further rates, as shares of the load's rate, to find the number of workers for; of :data:`CURVE`.
        tune_budgets: also plan with the best token budget of every policy that has one, unless its spec sets it; of
            :data:`~kvgym.experiments.budgets.BUDGETS`, by the capacity of one worker under this load.
        autoscalers: also find what the load takes on workers that come and go: for each autoscaler, the setting of its
            one weight with the fewest GPU-hours that meets the targets, next to the best fixed size.
        startup: start-up time of these workers, as in :class:`~kvgym.experiments.fleet.groups.FleetSettings`.
        hindsight: also search for a plan of targets over time for these very requests.
        folder: folder that saves runs, as in ``find_capacity``.
        jobs: as in ``find_capacity``.
        ray: as in ``find_capacity``.
        progress: called with a line of text after each run.

    Raises:
        KVGymError: an argument, the scenario, a policy or the workload is wrong, or no number of workers can meet a
            target on any of the hardware; nothing has been run.
    """
    wanted = parse_targets(targets)
    if not wanted:
        raise ConfigError(
            "no targets: any number of workers serves a finite load eventually; give targets, as in --slo ttft_p99<1"
        )
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario or DEFAULT_SCENARIO)
    if isinstance(chosen.workers, int):
        chosen = chosen.override(workers=1)
    loads = _loads(chosen, hardware, request_slos)
    priced = prices_of(prices, [load.scenario.hardware or "" for load in loads], chosen.hardware)
    chosen_routers = [make_router(r) for r in ((chosen.router,) if routers is None else routers)]
    labels = [label_of(router) for router in chosen_routers]
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"routers {labels}: expected at least one, all different")
    player, notes = Player(), []
    loads, reasons = _within_reach(loads, player, seed, wanted)
    notes += reasons
    check_fleets(autoscalers, startup, hindsight)
    made: list[list[Policy]] = []
    for load in loads:
        check_windows(load, window)
        found, left_out = find_policies(policies, load.at(load.rate / 2**10), seed)
        system, table = player.requests(load.scenario, seed)
        advice = ADVICE if any(map(is_open, found)) else ""
        if tune_budgets:
            options = {
                "seeds": [seed], "curve": (), "folder": folder, "jobs": jobs, "ray": ray, "progress": progress,
            }  # fmt: skip
            best, _ = add_best_budgets(found, by_capacity(load.scenario, wanted, options))
            found = [resolve_policy(policy, system, table) for policy in best]
            advice = advice and f"Of {BUDGETS[0]} to {BUDGETS[-1]:,} the best by the capacity of one worker."
        made.append(found)
        notes += [
            *load.notes,
            *table.notes,
            *check_requests(table, wanted),
            *left_out,
            *budget_note(found, system, advice),
        ]
    pairs = [(load, policy) for load, own in zip(loads, made, strict=True) for policy in own]
    setups = [(load, policy, router) for load, policy in pairs for router in chosen_routers]
    with kept_runs(player, folder, jobs=jobs, ray=ray) as play:
        prober = Prober(wanted, play, progress)
        estimates = _estimates(pairs, player, seed, prober)
        owners = [own for own in estimates for _ in chosen_routers]
        quests = [
            workers_quest(*setup, seed, _first_guess(setup[0].rate, own, most_workers), most_workers)
            for setup, own in zip(setups, owners, strict=True)
        ]
        prober.pursue(quests)
        further = [
            (
                k,
                share,
                workers_quest(*setups[k], seed, _start(quest, share, most_workers), most_workers, share),
            )
            for k, quest in enumerate(quests)
            for share in curve
        ]
        prober.pursue([quest for *_, quest in further])
        windows: list[WindowPlan] = []
        if window is not None:
            planner = WindowPlanner(window, seed, chosen_routers, most_workers)
            for (load, policy), own in zip(pairs, estimates, strict=True):
                _, table = player.requests(load.scenario, seed)
                windows += planner.plan(load, policy, own, table, prober)
        fleets = [
            plan
            for (load, policy, router), quest in zip(setups, quests, strict=True)
            if autoscalers and quest.held is not None
            for plan in _fleet_planner(
                load, policy, router, seed, quest.held.workers, most_workers, startup, priced
            ).plans(autoscalers, prober, _instant(windows, load, policy, router), hindsight)
        ]
    _, table = player.requests(loads[0].scenario, seed)
    plans = tuple(
        WorkersPlan.of(quest, own, loads[0].rate, wanted, priced.get(own.hardware))
        for quest, own in zip(quests, owners, strict=True)
    )
    return Provisioning(
        scenario=loads[0].scenario,
        targets=wanted,
        rate=loads[0].rate,
        num_requests=len(table),
        mean_output=float(table.output_len.mean()),
        workers=tuple(estimates),
        plans=plans,
        windows=tuple(windows),
        probes=tuple(
            (own.hardware, probe)
            for q, own in zip(quests, owners, strict=True)
            for _, probe in sorted(q.probes.items())
        ),
        notes=tuple(dict.fromkeys(notes)),
        points=tuple(
            LoadPoint(plans[k], share * loads[0].rate, None if quest.held is None else quest.held.workers)
            for k, share, quest in further
        ),
        fleets=tuple(fleets),
    )


def _fleet_planner(
    load: Load,
    policy: Policy,
    router: Router,
    seed: int,
    fixed: int,
    most_workers: int,
    startup: StartUp | None,
    priced: Mapping[str, float],
) -> FleetPlanner:
    """Return the planner for workers that come and go, up to twice the fixed size."""
    most, price = max(fixed, min(most_workers, 2 * fixed + 2)), priced.get(load.scenario.hardware or "")
    return FleetPlanner(load, policy, router, seed, fixed, most, startup, price)


def _instant(
    windows: Sequence[WindowPlan], load: Load, policy: Policy, router: Router
) -> WindowSummary | None:
    """Return the workers over the windows of a load; None without windows."""
    own = (load.scenario.hardware or "", label_of(policy), label_of(router))
    return WindowSummary.of([w for w in windows if (w.hardware, w.policy, w.router) == own])


def prices_of(
    prices: float | Mapping[str, float] | None, hardware: Sequence[str], base: str | None = None
) -> dict[str, float]:
    """Return the price of a worker per hour, by hardware.

    Args:
        prices: as in :func:`provision`.
        hardware: the hardware to compare.
        base: the hardware of the scenario, which completes incomplete rooflines.

    Raises:
        UnknownNameError: a price is for hardware that is not compared.
        ConfigError: a price is not a number >= 0, or is given twice.
    """
    if prices is None:
        return {}
    given = prices if isinstance(prices, Mapping) else dict.fromkeys(hardware, prices)
    found: dict[str, float] = {}
    for name, price in given.items():
        whole = HardwareName(name).completed(base)
        if whole not in hardware:
            raise UnknownNameError("hardware (with a price)", name, [h for h in hardware if h])
        if whole in found:
            raise ConfigError(f"two prices for {whole}; expected one")
        what = f"price of {whole}" if whole else "price"
        expected = "a number ≥ 0 per worker and hour"
        found[whole] = real_number(price, what, expected, lambda number: 0 <= number < math.inf)
    return found


def _loads(
    scenario: Scenario, hardware: Sequence[str] | None, request_slos: dict[str, float] | None
) -> list[Load]:
    """Return the load on each kind of hardware."""
    base = scenario.hardware
    names = [None] if hardware is None else [HardwareName(name).completed(base) for name in hardware]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"hardware {names}: expected at least one name, all different")
    loads = []
    for name in names:
        on = scenario if name is None else on_hardware(scenario, name)
        load = Load(on.resolved(), request_slos=request_slos)
        check_equal_workers(load)
        loads.append(load)
    return loads


def _within_reach(
    loads: Sequence[Load], player: Player, seed: int, targets: Sequence[Target]
) -> tuple[list[Load], list[str]]:
    """Return the loads on hardware that may meet the targets with some number of workers, and reasons for the others.

    Raises:
        ConfigError: no hardware is left.
    """
    left, reasons = [], []
    for load in loads:
        system, table = player.requests(load.at(load.rate, workers=1), seed)
        system.check_fits(table)
        reason = _out_of_reach(targets, table, system)
        if not reason:
            left.append(load)
        else:
            reasons.append(f"{load.scenario.hardware}: {reason}" if len(loads) > 1 else reason)
    if not left:
        raise ConfigError(
            f"{reasons[0]}; relax it, or use faster hardware", "\n".join(reasons[1:] and reasons)
        )
    return left, [f"{reason}." for reason in reasons]


def _out_of_reach(targets: Sequence[Target], table: RequestTable, system: System) -> str:
    """Return why some target is missed with any number of workers and any scheduler; "" if no such target is known.

    No schedule is better than each request alone on an empty worker, see
    :mod:`kvgym.theory.hindsight.calibrated.latencies`. A target that passes this check may still be out of reach.

    Args:
        targets: the targets.
        table: the requests.
        system: one of the workers.
    """
    least = least_latencies(table, system)
    for target in targets:
        info = metric_info(target.metric)
        best = least.best(target.metric, table)
        if best is None:
            continue
        allowed = best * (1 - _ROUNDING if info.lower_is_better else 1 + _ROUNDING)
        if not target.met({target.metric: allowed}):
            unit = "" if info.unit == "1" else f" {info.unit}"
            return (
                f"no number of workers meets {target}: with every request alone on an empty worker it is "
                f"{best:.3g}{unit} at {'least' if info.lower_is_better else 'most'}"
            )
    return ""


def on_hardware(scenario: Scenario, hardware: str) -> Scenario:
    """Return a scenario on other hardware, with that hardware's default engine unless the scenario's was chosen.

    An engine counts as chosen if it is not the default of the scenario's own hardware. The other hardware must have
    it, too.
    """
    if hardware == scenario.hardware:
        return scenario
    engine = scenario.resolved().engine
    if isinstance(engine, str):
        usual = None if scenario.hardware is None else load_hardware(scenario.hardware).engine
        if engine == usual or engine not in load_hardware(hardware).all_engines:
            engine = None
    plain = scenario.model_copy(update={"kv_capacity": None, "batch_time": {}})
    return plain.override(hardware=hardware, engine=engine)


def _estimates(
    pairs: Sequence[tuple[Load, Policy]], player: Player, seed: int, prober: Prober
) -> list[WorkerEstimates]:
    """Return the estimates of one worker for each pair of load and policy."""
    runs = [run for load, policy in pairs for run in estimate_runs(load, policy, seed)]
    played: dict[int, Played] = {}
    for place, found in prober.play(runs):
        played[place] = found
        if prober.progress is not None:
            prober.progress(f"{runs[place].label}, {'saturated' if place % 2 else 'as it is'}")
    entries = [Entry(label_of(policy), policy, None, 1) for _, policy in pairs]
    steady = [
        rate_quest(load.steady(), entry, seed, TOLERANCE)
        for (load, _), entry in zip(pairs, entries, strict=True)
    ]
    replace(prober, targets=()).pursue(steady)
    own = [rate_quest(load, entry, seed, TOLERANCE) for (load, _), entry in zip(pairs, entries, strict=True)]
    prober.pursue(own)
    rates = [[0.0 if q.held is None else q.held.rate for q in quests] for quests in (steady, own)]
    return [
        worker_estimates(
            load, policy, player.requests(load.scenario, seed)[1], played[2 * k], played[2 * k + 1],
            (rates[0][k], rates[1][k]),
        )
        for k, (load, policy) in enumerate(pairs)
    ]  # fmt: skip


def _first_guess(rate: float, own: WorkerEstimates, most: int) -> int:
    """Return the first number of workers to try."""
    sound = own.find(*SOUND)
    guess = 1 if sound is None else sound.workers
    if own.target_rate > 0:
        guess = max(guess, math.ceil(rate / own.target_rate))
    return min(guess, most)


def _start(whole: Quest, share: float, most: int) -> int:
    """Return the first number of workers to try at a share of the rate, from what is enough for the whole."""
    found = most if whole.held is None else whole.held.workers
    return min(most, max(1, math.ceil(share * found)))
