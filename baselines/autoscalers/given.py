"""Autoscalers that do not read the fleet: a constant size, and a plan by time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.policies.hyperparameters import numbers_of, parsed, require
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    sizes = numbers_of(name, value)
    require(name, value, min(sizes) >= 0, "a number of workers, or one for each pool as in 4/2")
    return sizes


def _for_pools(sizes: Sequence[int], fleet: Fleet, name: str) -> tuple[int, ...]:
    """Return a size for each pool."""
    pools = len(fleet.pools)
    if len(sizes) not in (1, pools):
        raise ConfigError(f"autoscaler {name} has sizes for {len(sizes)} pools; expected 1 or {pools}")
    return tuple(sizes) if len(sizes) == pools else tuple(sizes) * pools


@register_autoscaler
class Fixed(Autoscaler):
    """A constant number of workers, which are ready at the start: what every other rule must beat."""

    info = AutoscalerInfo(name="fixed", summary="a constant number of workers, ready at the start")

    workers: tuple[int, ...] = parsed((1,), _sizes)
    """workers of all pools, or of each as in 4/2."""

    def initial(self, fleet: Fleet) -> Sequence[int]:
        """Return the sizes."""
        sizes = _for_pools(self.workers, fleet, "fixed")
        for size, pool in zip(sizes, fleet.pools, strict=True):
            if not pool.least <= size <= pool.most:
                raise ConfigError(f"fixed: {size} workers in a pool of {pool.least} to {pool.most}")
        return sizes

    def next_time(self, time: float) -> float:
        """Return that it need not be asked."""
        return math.inf

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the present targets."""
        return [pool.target for pool in view.pools]


Steps = tuple[tuple[float, tuple[int, ...]], ...]
"""Times in seconds, and the targets of the pools from then on."""


def _steps(name: str, value: Any) -> Steps:
    """Return the steps of a plan, from a file with a line ``time,workers,…`` for each or from pairs."""
    expected = "pairs of a time and the targets of the pools, or a file with a line time,workers,… for each"
    if isinstance(value, str | Path):
        try:
            lines = Path(value).read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise ConfigError(
                f"plan: {shown(str(value))} cannot be read ({error}); expected {expected}"
            ) from None
        value = [(row[0], row[1:]) for line in lines if line.strip() and not line.startswith("#")
                 for row in [line.split(",")]]  # fmt: skip
    try:
        found = sorted((float(time), tuple(int(n) for n in targets)) for time, targets in value)
    except (TypeError, ValueError):
        found = []
    good = bool(found) and all(time >= 0 and targets and min(targets) >= 0 for time, targets in found)
    require(name, value, good and len({time for time, _ in found}) == len(found), expected)
    return tuple(found)


@register_autoscaler
class Plan(Autoscaler):
    """Targets by time, for example those that a search in hindsight has found."""

    info = AutoscalerInfo(name="plan", summary="targets by time, from a file")

    file: Any = parsed(((0.0, (1,)),), _steps)
    """a file with lines of a time in seconds and the targets of the pools, separated by commas; or pairs of these."""

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Check the targets."""
        super().reset(fleet, seed)
        for _, targets in self.file:
            _for_pools(targets, fleet, "plan")
        self._fleet = fleet

    def next_time(self, time: float) -> float:
        """Return the next time in the plan."""
        return min((at for at, _ in self.file if at > time), default=math.inf)

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the latest targets."""
        return _for_pools([t for at, t in self.file if at <= view.time][-1], self._fleet, "plan")
