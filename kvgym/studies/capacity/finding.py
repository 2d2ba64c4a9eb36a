"""Search for the highest rate at which policies meet targets: bracketing and bisection per seed, on paired seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
from kvgym.experiments.journal import Play, kept_runs
from kvgym.experiments.load.loads import Load
from kvgym.experiments.marks import EXACT, mark_notes
from kvgym.experiments.notes import merge_notes
from kvgym.experiments.resolving import resolve_policy
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.studies.capacity.entries import find_policies, pair
from kvgym.studies.capacity.probing import Probe, Prober, Progress, Quest, rate_quest
from kvgym.studies.capacity.reasons import explain, slow_batches
from kvgym.studies.capacity.result import Capacity, CapacityResult
from kvgym.studies.capacity.targets import Target, parse_targets
from kvgym.studies.capacity.verdict import check_requests
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seeds

TOLERANCE = 0.02
"""Maximum width of a final bracket, as a share of the rate."""

ENOUGH = 2000
"""Default minimum number of requests per run: short runs end before a small overload shows."""

CURVE = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5)
"""Rates run after the search, as shares of an entry's capacity: its curve, and a check that lower rates pass."""


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
    of_entries = [[rate_quest(load, entry, seed, tolerance) for seed in numbers] for entry in entries]
    quests = [quest for own in of_entries for quest in own]
    with kept_runs(player, folder, jobs=jobs, ray=ray) as play:
        prober = Prober(wanted, play, progress)
        prober.pursue(quests)
        prober.probe(_on_curves(of_entries, curve))
        prober.pursue(quests)
        whys = _explanations(of_entries, wanted, play)
    capacities = tuple(
        Capacity.of(own, wanted, tolerance, why) for own, why in zip(of_entries, whys, strict=True)
    )
    if tune_budgets:
        rates = _by_policy(capacities)
        left_out += tuple(ranking_notes(list(rates), best, rates, False, "capacity", training, load.replays))
    held = {
        own[0].entry.label: [edges]
        for own in of_entries
        if (edges := [probe.played for quest in own if (probe := quest.held) is not None])
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


def _on_curves(
    of_entries: Sequence[Sequence[Quest]], curve: Sequence[float]
) -> Iterator[tuple[Quest, float]]:
    """Yield the runs of all curves, with the same rates for all seeds of an entry."""
    for own in of_entries:
        mean = float(np.mean([0.0 if quest.held is None else quest.held.rate for quest in own]))
        yield from ((quest, mean * share) for quest in own for share in curve if mean > 0)


def _explanations(
    of_entries: Sequence[Sequence[Quest]], targets: Sequence[Target], play: Play
) -> list[tuple[str, ...]]:
    """Return why each entry fails, from a further run with a log at the lowest failing rate of its first seed."""
    failing: dict[int, tuple[Quest, Probe]] = {}
    for place, own in enumerate(of_entries):
        for quest in own:
            if (probe := quest.failed) is not None and not probe.played.record.error:
                failing.setdefault(place, (quest, probe))
    whys: list[tuple[str, ...]] = [()] * len(of_entries)
    runs = [quest.run(probe.value, log=True, measure=slow_batches) for quest, probe in failing.values()]
    places = list(failing)
    for at, played in play(runs):
        quest, probe = failing[places[at]]
        worker = quest.place(probe.value)[0].make_system().all_workers[0]
        whys[places[at]] = explain(probe, targets, played.measured, worker.batch_time)
    return whys
