"""Search for the highest rate at which policies meet targets: bracketing and bisection per seed, on paired seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.budgets import (
    ADVICE,
    Choice,
    add_best_budgets,
    budget_note,
    ranking_notes,
    training_seeds,
)
from kvgym.experiments.comparison import label_of
from kvgym.experiments.journal import Play, kept_runs
from kvgym.experiments.load.loads import Load
from kvgym.experiments.marks import EXACT, mark_notes
from kvgym.experiments.notes import merge_notes
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.runs import Player, Run
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.studies.capacity.entries import Entry, find_policies, pair
from kvgym.studies.capacity.probing import Probe, Progress, Quest, play_values, pursue
from kvgym.studies.capacity.reasons import explain, slow_batches
from kvgym.studies.capacity.result import Capacity, CapacityResult
from kvgym.studies.capacity.search import Rates, Search, Workers
from kvgym.studies.capacity.targets import Target, parse_targets
from kvgym.studies.capacity.verdict import BACKLOG, check_requests
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seeds

TOLERANCE = 0.02
"""Maximum width of a final bracket, as a share of the rate."""

ENOUGH = 2000
"""Default minimum number of requests per run: short runs end before a small overload shows."""

CURVE = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5)
"""Rates run after the search, as shares of an entry's capacity: its curve, and a check that lower rates pass."""

MOST_HALVINGS = 14
MOST_DOUBLINGS = 24


@explained
def find_capacity(
    scenario: str | Path | Scenario | None,
    targets: str | Iterable[str | Target],
    policies: Sequence[str | Policy] | None = None,
    *,
    routers: Sequence[str | Router] | None = None,
    workers: Sequence[int] | None = None,
    seeds: int | Iterable[int] | None = None,
    num_requests: int | None = None,
    request_slos: dict[str, float] | None = None,
    tolerance: float = TOLERANCE,
    curve: Sequence[float] = CURVE,
    tune_budgets: bool = False,
    folder: str | Path | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> CapacityResult:
    """Search for the highest rate at which each policy meets targets.

    Every seed has its own search, which starts at the scenario's rate: the rate is doubled or halved until one passes
    and twice that rate fails, and then bisected. Under a seed all policies and all rates see the same requests, at
    different speeds. :mod:`kvgym.studies.capacity.verdict` defines when a run passes. The rates of the curve are
    run afterwards. If one fails below a rate that passed, the search continues below the failure, and the rate that
    passed above it is noted.

    Args:
        scenario: a scenario, its name or file; None = the default scenario.
        targets: as in :func:`~kvgym.studies.capacity.targets.parse_targets`; without targets, only the backlog
            must not grow.
        policies: policies or specs; ``"all"`` adds every other registered policy that can run here; None = those of
            the scenario.
        routers: routers or specs, each with every policy, for more than one worker; None = the scenario's.
        workers: numbers of equal workers, each with every policy; None = as in the scenario. Runs of n workers have n
            times as many requests.
        seeds: number of seeds (0, 1, …) or the seeds; None = as in the scenario, or 1 for a replayed trace.
        num_requests: requests per run (per worker if ``workers`` is given); None = as in the scenario, and at least
            :data:`ENOUGH` unless a trace is replayed.
        request_slos: SLOs of every request in seconds, by ``"ttft"`` and ``"tbt"``, for the share of requests within
            their SLOs.
        tolerance: maximum difference between the passing and the failing rate, as a share.
        curve: further rates to run, as shares of the capacity.
        tune_budgets: also search with the best token budget of every policy that has one, unless its spec sets it; of
            :data:`~kvgym.experiments.budgets.BUDGETS`, by the mean capacity on other seeds.
        folder: folder that saves each run when it finishes, in ``unfinished.jsonl``; equal runs of a stopped search
            are taken from there. None = not saved.
        jobs: processes, see :func:`kvgym.utils.execution.make_executor`; any number gives the same result. Unless it
            is 1, a script must call this under ``if __name__ == "__main__":``.
        ray: run on a Ray cluster instead, see the same function.
        progress: called with a line of text after each run.

    Raises:
        KVGymError: an argument, the scenario, a policy or the workload is wrong; nothing has been run.
    """
    wanted = parse_targets(targets)
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario or DEFAULT_SCENARIO)
    load = Load(chosen.resolved(), num_requests=num_requests, request_slos=request_slos)
    if num_requests is None and not load.replays and load.num_requests < ENOUGH:
        load = Load(chosen.resolved(), num_requests=ENOUGH, request_slos=request_slos)
    numbers = _seeds(seeds, load)
    easy, player = load.at(load.rate / 2**10), Player()
    made, left_out = find_policies(policies, easy, numbers[0])
    if any(not 0 < share < 100 for share in curve):
        raise ConfigError(f"curve {list(curve)}: expected shares of the capacity in (0, 100)")
    training = training_seeds(len(numbers), load.replays)
    best: dict[int, int] = {}
    system, table = player.requests(easy, numbers[0])
    if tune_budgets:
        options: dict[str, Any] = {
            "routers": routers, "workers": workers, "seeds": training, "num_requests": num_requests,
            "request_slos": request_slos, "tolerance": tolerance, "curve": (), "folder": folder, "jobs": jobs,
            "ray": ray, "progress": progress,
        }  # fmt: skip
        made, best = add_best_budgets(made, by_capacity(chosen, wanted, options))
        made = [resolve_policy(policy, system, table) for policy in made]
    left_out += tuple(budget_note(made, system, "" if tune_budgets or len(made) == 1 else ADVICE))
    entries = pair(made, routers, workers, chosen)
    notes, sizes = [], []
    for seed in numbers:
        system, table = player.requests(load.scenario, seed)
        system.check_fits(table)
        notes += [(seed, note) for note in (*table.notes, *check_requests(table, wanted))]
        sizes.append(len(table))
    quests = [rate_quest(load, entry, seed, tolerance) for entry in entries for seed in numbers]
    with kept_runs(player, folder, jobs=jobs, ray=ray) as play:
        pursue(quests, wanted, play, progress)
        play_values(_on_curves(quests, entries, curve), wanted, play, progress)
        pursue(quests, wanted, play, progress)
        whys = _explanations(quests, entries, wanted, play)
    capacities = tuple(
        _capacity(entry, [q for q in quests if q.entry is entry], wanted, tolerance, why)
        for entry, why in zip(entries, whys, strict=True)
    )
    if tune_budgets:
        rates = _by_policy(capacities)
        left_out += tuple(ranking_notes(list(rates), best, rates, False, "capacity", training, load.replays))
    held = {
        entry.label: [edges]
        for entry in entries
        if (
            edges := [
                q.probes[low].played for q in quests if q.entry is entry and (low := q.search.bracket()[0])
            ]
        )
    }
    marked = mark_notes(held, {entry.label: entry.policy for entry in entries})
    return CapacityResult(
        scenario=load.scenario,
        targets=wanted,
        tolerance=tolerance,
        seeds=numbers,
        capacities=capacities,
        probes=tuple(probe for q in quests for _, probe in sorted(q.probes.items())),
        num_requests=tuple(sizes),
        notes=(
            *load.notes,
            *merge_notes(notes, len(numbers)),
            *left_out,
            *(note for note in marked if note[0] != EXACT.sign),
        ),  # of EXACT is one in left_out
        replays=load.replays,
    )


def by_capacity(scenario: Scenario, targets: Sequence[Target], options: dict[str, Any]) -> Choice:
    """Return a choice of budgets by the mean capacity.

    Args:
        scenario: the scenario.
        targets: the targets.
        options: further arguments of :func:`find_capacity`.
    """

    def choose(policy: Policy, others: Sequence[Policy]) -> Policy:
        found = find_capacity(scenario, targets, [policy, *others], **options)
        return [policy, *others][int(np.argmax(list(_by_policy(found.capacities).values())))]

    return choose


def _by_policy(capacities: Iterable[Capacity]) -> dict[str, float]:
    """Return the sum of the mean capacities of each policy, in order, by label."""
    found: dict[str, float] = {}
    for capacity in capacities:
        found[capacity.policy] = found.get(capacity.policy, 0.0) + capacity.estimate.value
    return found


def _seeds(seeds: int | Iterable[int] | None, load: Load) -> tuple[int, ...]:
    return check_seeds((1 if load.replays else load.scenario.seeds) if seeds is None else seeds)


def rate_quest(load: Load, entry: Entry, seed: int, tolerance: float) -> Quest:
    """Return the search for the highest rate of an entry under a seed, which starts at the load's own rate."""
    count = entry.workers or 1
    start = load.rate * (1 if entry.workers is None else count / _workers_of(load.scenario))
    scale = Rates(start / 2**MOST_HALVINGS, start * 2**MOST_DOUBLINGS, tolerance)
    size = load.num_requests * count if not load.replays else None
    places: dict[float, tuple[Scenario, float]] = {}

    def place(rate: float) -> tuple[Scenario, float]:
        if rate not in places:
            places[rate] = load.at(rate, workers=entry.workers, num_requests=size), rate
        return places[rate]

    return Quest(Search(scale, start), entry, seed, place)


def workers_quest(
    load: Load, policy: Policy, router: Router, seed: int, start: int, most: int, share: float = 1.0
) -> Quest:
    """Return the search for the smallest number of workers, at a share of the load's rate."""
    places: dict[float, tuple[Scenario, float]] = {}

    def place(count: float) -> tuple[Scenario, float]:
        if count not in places:
            rate = share * load.rate
            places[count] = load.at(rate, workers=int(count)), rate
        return places[count]

    label = f"{label_of(policy)} via {label_of(router)}"
    entry = Entry(label, policy, router, None)
    return Quest(Search(Workers(most), start), entry, seed, place, sustained=False)


def _workers_of(scenario: Scenario) -> int:
    return scenario.workers if isinstance(scenario.workers, int) else len(scenario.make_system().all_workers)


def _too_short(probe: Probe) -> bool:
    """Return whether a run failed only by its backlog, perhaps because it was short."""
    if probe.verdict.reasons != (BACKLOG,):
        return False
    stay = probe.played.record.metrics["e2e_latency_p90"]
    return probe.played.num_requests / probe.rate < 4 * stay


def _on_curves(
    quests: Sequence[Quest], entries: Sequence[Entry], curve: Sequence[float]
) -> list[tuple[Quest, float]]:
    """Return the runs of all curves, with the same rates for all seeds of an entry."""
    wanted = []
    for entry in entries:
        own = [q for q in quests if q.entry is entry]
        mean = float(np.mean([q.search.bracket()[0] or 0.0 for q in own]))
        wanted += [(q, mean * share) for q in own for share in curve if mean > 0]
    return wanted


def _explanations(
    quests: Sequence[Quest], entries: Sequence[Entry], targets: Sequence[Target], play: Play
) -> list[tuple[str, ...]]:
    """Return why each entry fails, from a further run with a log at the lowest failing rate of its first seed."""
    failing: dict[int, tuple[Quest, float]] = {}
    for quest in quests:
        high = quest.search.bracket()[1]
        if high is not None and not quest.probes[high].played.record.error:
            failing.setdefault(entries.index(quest.entry), (quest, high))
    runs = [
        Run(q.place(v)[0], q.entry.policy, q.router(v), q.seed, q.entry.label, log=True, measure=slow_batches)
        for q, v in failing.values()
    ]
    whys: list[tuple[str, ...]] = [()] * len(entries)
    places = list(failing)
    for at, played in play(runs):
        quest, value = failing[places[at]]
        worker = quest.place(value)[0].make_system().all_workers[0]
        whys[places[at]] = explain(
            quest.probes[value], targets, quest.entry.policy, played.measured, worker.batch_time
        )
    return whys


def _capacity(
    entry: Entry, quests: Sequence[Quest], targets: Sequence[Target], tolerance: float, why: tuple[str, ...]
) -> Capacity:
    """Combine the searches of an entry."""
    held, failed, limits, edges, notes = [], [], [], [], []
    for quest in quests:
        low, high = quest.search.bracket()
        held.append(low or 0.0)
        failed.append(float("inf") if high is None else high)
        if high is not None:
            limits.append(quest.probes[high].verdict.reasons)
        if low is not None:
            edges.append(quest.probes[low])
        surprises = [rate for rate in quest.search.surprises() if high and rate > high * (1 + tolerance)]
        if surprises and high is not None:
            notes.append(
                (
                    quest.seed,
                    f"not monotone: passed at {', '.join(f'{rate:.4g}' for rate in surprises)}/s but failed at "
                    f"{high:.4g}/s ({'; '.join(quest.probes[high].verdict.reasons)}).",
                )
            )
        if high is not None and _too_short(quest.probes[high]):
            notes.append(
                (
                    quest.seed,
                    "the backlog is the limit, in runs not much longer than request latencies: use more requests.",
                )
            )
        if low is None and high is not None:
            notes.append((quest.seed, f"fails at every rate down to {high:.3g}/s."))
        if high is None:
            notes.append(
                (quest.seed, f"passes at every rate up to {low:.3g}/s: the run is too short to show a limit.")
            )
    return Capacity.of(entry, held, failed, limits, edges, targets, merge_notes(notes, len(quests)), why)
