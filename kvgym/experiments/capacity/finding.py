"""The highest rate at which policies hold targets: bracketing and bisection per seed, on paired seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from kvgym.errors import ConfigError
from kvgym.experiments.capacity.contenders import Contender, find_policies, pair
from kvgym.experiments.capacity.loads import Load
from kvgym.experiments.capacity.probing import Probe, Progress, Quest, play_values, pursue
from kvgym.experiments.capacity.result import Capacity, CapacityResult
from kvgym.experiments.capacity.search import Rates, Search
from kvgym.experiments.capacity.targets import Target, parse_targets
from kvgym.experiments.capacity.witness import BACKLOG, check_requests
from kvgym.experiments.journal import kept_runs
from kvgym.experiments.notes import merge_notes
from kvgym.experiments.runs import Player
from kvgym.experiments.scenario import DEFAULT_SCENARIO, Scenario, load_scenario
from kvgym.policy import Policy
from kvgym.routing import Router
from kvgym.utils.arguments import explained
from kvgym.utils.checks import check_seeds

TOLERANCE = 0.02
"""Share of the rate by which the ends of a final bracket may differ."""

ENOUGH = 2000
"""Requests of a run at least, unless told otherwise: short runs end before a small overload shows."""

CURVE = (0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5)
"""Rates run after the search, as shares of a contender's capacity: its curve, and a check that nothing below fails."""

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
    folder: str | Path | None = None,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> CapacityResult:
    """Search the highest rate at which each policy holds targets.

    Every seed has a search of its own, from the scenario's rate on: the rate is doubled or halved until one holds and
    twice as much does not, and then bisected. All policies see the same requests under a seed, and all rates the same
    ones, closer together. What holding means is defined in :mod:`kvgym.experiments.capacity.witness`. After that the
    rates of the curve are run; where one fails below a rate that held, the search goes on below the failure, and the
    rate that held beyond it is noted.

    Args:
        scenario: a scenario, its name or file; None = the default scenario.
        targets: as in :func:`~kvgym.experiments.capacity.targets.parse_targets`; none at all asks only that the backlog
            does not grow.
        policies: policies or specs, ``"all"`` among them for every registered one that can run here; None = those of
            the scenario.
        routers: routers or specs, each with every policy, for more than one worker; None = the scenario's.
        workers: numbers of equal workers, each with every policy; None = as in the scenario. Runs of n workers have n
            times as many requests.
        seeds: number of seeds (0, 1, …) or the seeds; None = as in the scenario, of a replayed trace one.
        num_requests: requests of a run (per worker where ``workers`` is given); None = as in the scenario, and at least
            :data:`ENOUGH` where no trace is replayed.
        request_slos: SLOs of every request in seconds, by ``"ttft"`` and ``"tbt"``, for the share of requests within
            their own.
        tolerance: the rate that holds and the one that does not differ by this share at most.
        curve: further rates to run, as shares of the capacity.
        folder: where each run is kept as soon as it is there, in ``unfinished.jsonl``; equal runs of a search that was
            stopped are taken from there. None = nowhere.
        jobs: processes, see :func:`kvgym.execution.make_executor`; any number gives the same result. With others than
            1, a script calls this under ``if __name__ == "__main__":``.
        ray: run on a Ray cluster instead, see there.
        progress: called with a line of text after each run.

    Raises:
        KVGymError: an argument, the scenario, a policy or the workload is wrong; nothing has been run then.
    """
    wanted = parse_targets(targets)
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario or DEFAULT_SCENARIO)
    load = Load(chosen.resolved(), num_requests=num_requests, request_slos=request_slos)
    if num_requests is None and not load.replays and load.num_requests < ENOUGH:
        load = Load(chosen.resolved(), num_requests=ENOUGH, request_slos=request_slos)
    numbers = _seeds(seeds, load)
    easy = load.at(load.rate / 2**10)
    made, left_out = find_policies(policies, easy, numbers[0])
    contenders = pair(made, routers, workers, chosen)
    player = Player()
    notes, sizes = [], []
    for seed in numbers:
        system, table = player.requests(load.scenario, seed)
        system.check_fits(table)
        notes += [(seed, note) for note in (*table.notes, *check_requests(table, wanted))]
        sizes.append(len(table))
    if any(not 0 < share < 100 for share in curve):
        raise ConfigError(f"curve {list(curve)}: expected shares of the capacity in (0, 100)")
    quests = [rate_quest(load, who, seed, tolerance) for who in contenders for seed in numbers]
    with kept_runs(player, folder, jobs=jobs, ray=ray) as play:
        pursue(quests, wanted, play, progress)
        play_values(_on_curves(quests, contenders, curve), wanted, play, progress)
        pursue(quests, wanted, play, progress)
    return CapacityResult(
        scenario=load.scenario,
        targets=wanted,
        tolerance=tolerance,
        seeds=numbers,
        capacities=tuple(
            _capacity(who, [q for q in quests if q.contender is who], wanted, tolerance) for who in contenders
        ),
        probes=tuple(probe for q in quests for _, probe in sorted(q.probes.items())),
        num_requests=tuple(sizes),
        notes=(*load.notes, *merge_notes(notes, len(numbers)), *left_out),
        replays=load.replays,
    )


def _seeds(seeds: int | Iterable[int] | None, load: Load) -> tuple[int, ...]:
    return check_seeds((1 if load.replays else load.scenario.seeds) if seeds is None else seeds)


def rate_quest(load: Load, who: Contender, seed: int, tolerance: float) -> Quest:
    """Return the search for the highest rate of a contender under a seed, from the load's own rate on."""
    count = who.workers or 1
    start = load.rate * (1 if who.workers is None else count / _workers_of(load.scenario))
    scale = Rates(start / 2**MOST_HALVINGS, start * 2**MOST_DOUBLINGS, tolerance)
    size = load.num_requests * count if not load.replays else None
    places: dict[float, tuple[Scenario, float]] = {}

    def place(rate: float) -> tuple[Scenario, float]:
        if rate not in places:
            places[rate] = load.at(rate, workers=who.workers, num_requests=size), rate
        return places[rate]

    return Quest(Search(scale, start), who, seed, place)


def _workers_of(scenario: Scenario) -> int:
    return scenario.workers if isinstance(scenario.workers, int) else len(scenario.make_system().all_workers)


def _too_short(probe: Probe) -> bool:
    """Return whether a run failed by its backlog alone and may have done so because it was short."""
    if probe.verdict.reasons != (BACKLOG,):
        return False
    stay = probe.played.record.metrics["e2e_latency_p90"]
    return probe.played.num_requests / probe.rate < 4 * stay


def _on_curves(
    quests: Sequence[Quest], contenders: Sequence[Contender], curve: Sequence[float]
) -> list[tuple[Quest, float]]:
    """Return the runs of all curves, the same rates for all seeds of a contender."""
    asked = []
    for who in contenders:
        own = [q for q in quests if q.contender is who]
        mean = float(np.mean([q.search.bracket()[0] or 0.0 for q in own]))
        asked += [(q, mean * share) for q in own for share in curve if mean > 0]
    return asked


def _capacity(
    who: Contender, quests: Sequence[Quest], targets: Sequence[Target], tolerance: float
) -> Capacity:
    """Sum up the searches of a contender."""
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
                    f"not monotone: held at {', '.join(f'{rate:.4g}' for rate in surprises)}/s though it failed at "
                    f"{high:.4g}/s ({'; '.join(quest.probes[high].verdict.reasons)}).",
                )
            )
        if high is not None and _too_short(quest.probes[high]):
            notes.append(
                (
                    quest.seed,
                    "the backlog limits it, in runs not much longer than requests stay: take more requests.",
                )
            )
        if low is None and high is not None:
            notes.append((quest.seed, f"holds at no rate down to {high:.3g}/s."))
        if high is None:
            notes.append(
                (quest.seed, f"holds at every rate up to {low:.3g}/s: the run is too short for a limit.")
            )
    return Capacity.of(who, held, failed, limits, edges, targets, merge_notes(notes, len(quests)))
