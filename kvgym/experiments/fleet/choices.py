"""What a comparison of autoscalers runs: labels and scenarios, and all fixed sizes of a fleet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from kvgym.errors import ConfigError, shown
from kvgym.experiments.fleet.groups import FleetSettings, WorkerGroup
from kvgym.policies.scaling import make_autoscaler
from kvgym.simulator.system import System

T = TypeVar("T")
S = TypeVar("S", bound="FleetScenario")


class FleetScenario(Protocol):
    """What is needed of a :class:`~kvgym.experiments.scenario.Scenario`."""

    @property
    def workers(self) -> int | tuple[WorkerGroup, ...]:
        """Number or groups of workers."""
        ...

    @property
    def fleet(self) -> FleetSettings | None:
        """What the pools share."""
        ...

    @property
    def has_fleet(self) -> bool:
        """Whether workers start and stop."""
        ...

    def make_system(self) -> System:
        """Return the system."""
        ...

    def override(self: S, **changes: Any) -> S:
        """Return the scenario with some fields replaced."""
        ...


BEST_FIXED = "best fixed"
"""Label of the fixed size with the lowest cost."""

MOST_SIZES = 128
"""Most fixed sizes that a comparison tries."""


def with_fleet(scenario: S, fleet: str | None, startup: str | None, autoscaler: str | None) -> S:
    """Return a scenario with a fleet of equal workers, another start-up time or another autoscaler; None = as it is.

    Args:
        scenario: the scenario.
        fleet: fewest and most workers, ``"1-8"``; at the start there are as many as the scenario has, within these.
        startup: seconds, ``"prepared"`` or ``"cold"``.
        autoscaler: its spec.

    Raises:
        ConfigError: the range is wrong, or the workers of the scenario are not equal.
    """
    changes: dict[str, Any] = {}
    if fleet is not None:
        groups = (
            (WorkerGroup(count=scenario.workers),) if isinstance(scenario.workers, int) else scenario.workers
        )
        least, _, most = fleet.partition("-")
        if not (least.isdecimal() and most.isdecimal() and int(least) <= int(most) and int(most) > 0):
            raise ConfigError(f"fleet = {shown(fleet)}: expected the fewest and the most workers, as in 1-8")
        if len(groups) != 1:
            raise ConfigError(
                f"fleet = {shown(fleet)}: the scenario has {len(groups)} groups of workers; give these least and most"
            )
        low, high = int(least), int(most)
        count = min(max(groups[0].count, low), high)
        changes["workers"] = [{**groups[0].model_dump(), "count": count, "least": low, "most": high}]
    if startup is not None:
        shared = scenario.fleet or FleetSettings()
        changes["fleet"] = {**shared.model_dump(), "startup": startup}
    if autoscaler is not None:
        make_autoscaler(autoscaler)  # an error now if it is wrong
        changes["autoscaler"] = autoscaler
    return scenario.override(**changes) if changes else scenario


def with_autoscalers(
    pairs: dict[str, T], settings: dict[str, S], autoscalers: Sequence[str]
) -> tuple[dict[str, T], dict[str, S]]:
    """Return what to run and the scenario of each with every autoscaler, by label.

    A label is the autoscaler's, with several pairs also theirs: ``"fcfs, hpa:target=4"``.

    Args:
        pairs: what to run, by label.
        settings: the scenario of each.
        autoscalers: specs; ``"best fixed=SPEC"`` labels one otherwise.

    Raises:
        ConfigError: the scenario has no fleet, or an autoscaler is listed twice.
    """
    if not all(scenario.has_fleet for scenario in settings.values()):
        raise ConfigError(
            "autoscalers need a fleet: groups of workers with most, as in workers: [{count: 2, most: 8}], or --fleet"
        )
    found: dict[str, T] = {}
    scenarios: dict[str, S] = {}
    for (label, pair), (name, spec) in itertools.product(pairs.items(), map(_named, autoscalers)):
        make_autoscaler(spec)  # an error now if it is wrong
        own = name if len(pairs) == 1 else f"{label}, {name}"
        if own in found:
            raise ConfigError(f"autoscaler {shown(name)} is listed twice; results need different labels")
        found[own] = pair
        scenarios[own] = settings[label].override(autoscaler=spec)
    return found, scenarios


def _named(autoscaler: str) -> tuple[str, str]:
    """Return label and spec of an autoscaler."""
    if autoscaler.startswith(f"{BEST_FIXED}="):
        spec = autoscaler.removeprefix(f"{BEST_FIXED}=")
        return f"{BEST_FIXED}, {spec.removeprefix('fixed:')}", spec
    return autoscaler, autoscaler


def fixed_sizes(scenario: FleetScenario) -> list[str]:
    """Return the specs of all fixed sizes of a fleet.

    Raises:
        ConfigError: there are more than :data:`MOST_SIZES`.
    """
    fleet = scenario.make_system().fleet
    if fleet is None:
        raise ConfigError("the scenario has no fleet: no group of workers with most")
    ranges = [range(pool.least, pool.most + 1) for pool in fleet.pools]
    count = math.prod(map(len, ranges))
    if count > MOST_SIZES:
        raise ConfigError(
            f"{count} fixed sizes; expected at most {MOST_SIZES}, from least to most of all pools"
        )
    limit = fleet.limit
    sizes = (
        size
        for size in itertools.product(*ranges)
        if sum(n * pool.gpus for n, pool in zip(size, fleet.pools, strict=True)) <= limit
    )
    return [f"fixed:workers={'/'.join(map(str, size))}" for size in sizes]
