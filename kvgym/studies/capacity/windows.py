"""Windows of time of a load, and the number of workers that each needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.experiments.comparison import label_of
from kvgym.experiments.load.loads import Load
from kvgym.experiments.marks import LEAST_REQUESTS
from kvgym.policies.policy import Policy
from kvgym.policies.routing import Router
from kvgym.studies.capacity.estimates import SOUND, Estimated, WorkerEstimates, held_memory
from kvgym.studies.capacity.probing import Prober, Quest, workers_quest
from kvgym.theory.stability import provision, service_rate
from kvgym.workloads.arrivals import Times
from kvgym.workloads.table import RequestTable


@dataclass(frozen=True)
class WindowPlan:
    """The number of workers that a window of a trace needs.

    Attributes:
        hardware: name of the hardware.
        policy: label of the policy.
        router: label of the router.
        start: seconds since the first arrival.
        end: seconds since the first arrival.
        num_requests: arrivals in the window.
        rate: arrivals per second.
        by_theory: ⌈λ/μ⌉ with E[g] of its requests and b̄ of the whole saturated trace; None if b̄ is unknown.
        judged: whether enough requests arrive to judge runs.
        simulated: the smallest number that meets the targets, with its requests run alone from an empty cluster; None
            if no number does, or runs were not judged.
    """

    hardware: str
    policy: str
    router: str
    start: float
    end: float
    num_requests: int
    rate: float
    by_theory: int | None
    judged: bool
    simulated: int | None

    @property
    def workers(self) -> int | None:
        """The number to provide, by simulation, or by theory if there was none; None = no number suffices."""
        return self.simulated if self.judged else self.by_theory


@dataclass(frozen=True)
class WindowSummary:
    """Workers over the windows of a trace.

    Attributes:
        peak: the most workers that any window needs.
        p95: workers that suffice in 95 % of the windows.
        mean: average over time, the cost of workers that come and go at once.
    """

    peak: int
    p95: int
    mean: float

    @classmethod
    def of(cls, windows: Sequence[WindowPlan]) -> WindowSummary | None:
        """Return the profile of windows, None if one of them has no number."""
        counts = [w.workers for w in windows]
        if not counts or any(count is None for count in counts):
            return None
        whole = np.array(counts, np.int64)
        lengths = np.array([w.end - w.start for w in windows])
        return cls(
            peak=int(whole.max()),
            p95=int(np.quantile(whole, 0.95, method="higher")),
            mean=float((whole * lengths).sum() / lengths.sum()),
        )


def cut(times: Times, seconds: float) -> list[tuple[float, float]]:
    """Return windows that cover arrival times, as (start, end) in seconds since the first arrival.

    A last window shorter than half the length is joined to the previous one.

    Args:
        times: float64 (n,), seconds, non-decreasing.
        seconds: length of a window.

    Raises:
        ConfigError: the length is not positive, or the trace is not longer than one window.
    """
    span = float(times[-1] - times[0])
    if not 0 < seconds < math.inf:
        raise ConfigError(f"window {seconds:g} s: expected seconds > 0")
    if seconds >= span:
        raise ConfigError(f"window {seconds:g} s: the trace is {span:.0f} s long; choose a shorter window")
    starts = [k * seconds for k in range(max(1, math.floor(span / seconds + 0.5)))]
    return list(zip(starts, [*starts[1:], span], strict=True))


def check_windows(load: Load, seconds: float | None) -> None:
    """Check that a load can be divided into windows.

    Raises:
        ConfigError: the load is not a replayed trace.
    """
    if seconds is not None and not load.replays:
        raise ConfigError("windows need a trace that is replayed with its own times; give --trace")


@dataclass(frozen=True)
class WindowPlanner:
    """Searches for the number of workers that each window of a load needs.

    Attributes:
        seconds: length of a window.
        seed: seed of the load.
        routers: the routers, each with every window.
        most: largest number of workers to try.
    """

    seconds: float
    seed: int
    routers: Sequence[Router]
    most: int

    def plan(
        self, load: Load, policy: Policy, own: WorkerEstimates, table: RequestTable, prober: Prober
    ) -> list[WindowPlan]:
        """Return the plans for the windows of a load, for every router.

        Args:
            load: the load.
            policy: the policy.
            own: the rate that one worker can serve.
            table: the requests.
            prober: runs the searches.
        """
        first, sound = float(table.arrival_time[0]), own.find(*SOUND)
        held = held_memory(table, own.chunk, load.at(load.rate, workers=1).make_system())
        spans = cut(table.arrival_time, self.seconds)
        places = np.searchsorted(table.arrival_time - first, [start for start, _ in spans[1:]])
        edges = [0, *places.tolist(), len(table)]
        plans: list[WindowPlan] = []
        quests: dict[int, Quest] = {}
        for router in self.routers:
            for k, (start, end) in enumerate(spans):
                count, rate = edges[k + 1] - edges[k], (edges[k + 1] - edges[k]) / (end - start)
                theory = _by_theory(sound, own, held[edges[k] : edges[k + 1]], end - start)
                judged = count >= LEAST_REQUESTS
                if judged:
                    part = load.between(start, None if k == len(spans) - 1 else end)
                    guess = min(max(1, theory or 1), self.most)
                    quests[len(plans)] = workers_quest(part, policy, router, self.seed, guess, self.most)
                names = own.hardware, own.policy, label_of(router)
                plans.append(WindowPlan(*names, start, end, count, rate, theory, judged, None))
        prober.pursue([*quests.values()])
        found = {place: quest.held for place, quest in quests.items()}
        return [
            plan if (probe := found.get(place)) is None else replace(plan, simulated=probe.workers)
            for place, plan in enumerate(plans)
        ]


def _by_theory(
    sound: Estimated | None, own: WorkerEstimates, held: NDArray[np.int64], seconds: float
) -> int | None:
    """Return ⌈λ/μ⌉ of some requests, with the b̄ of the whole load; 0 if none arrive."""
    if sound is None or not len(held):
        return None if sound is None else 0
    service = service_rate(own.kv_capacity, sound.batch_time, float(held.mean()))
    return provision(len(held) / seconds, service)
