"""An autoscaler with weights that are learned: a sum of what the fleet shows.

Not from a paper: the simplest rule that can use the time of day and the trend of arrivals, which those of current
platforms do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvgym.policies.fleet_features import WINDOWS
from kvgym.policies.hyperparameters import hyperparameter, weight, weights_of
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView


@register_autoscaler
class Linear(Autoscaler):
    """A weighted sum of arrival rates, of what the workers have to do, and of the time of day, for each pool.

    A pool grows to the sum, rounded up, and shrinks to the sum plus ``slack``, rounded up, when that is lower. The
    defaults make it a target of ten unfinished requests for each worker; evolution learns others (docs/evolution.md).
    """

    info = AutoscalerInfo(
        name="linear", summary="a weighted sum of rates, unfinished requests and the time of day"
    )
    interval = 30.0

    day: float = hyperparameter(86_400.0, lambda x: 0 < x <= 1e9, "seconds > 0")
    """seconds of a day."""
    # fmt: off
    base: float = weight(1.0, 1.0, -50.0, 1000.0, "workers in any case")
    rate_1: float = weight(0.0, 0.05, -10.0, 10.0,
        "workers for each request a second over the last interval")
    rate_4: float = weight(0.0, 0.05, -10.0, 10.0, "the same over four intervals")
    rate_16: float = weight(0.0, 0.05, -10.0, 10.0, "the same over sixteen intervals")
    ongoing: float = weight(0.1, 0.03, -10.0, 10.0, "workers for each unfinished request")
    waiting: float = weight(0.0, 0.03, -10.0, 10.0, "workers for each waiting request")
    day_sin: float = weight(0.0, 0.5, -1000.0, 1000.0, "workers times the sine of the time of day")
    day_cos: float = weight(0.0, 0.5, -1000.0, 1000.0, "workers times its cosine")
    half_sin: float = weight(0.0, 0.3, -1000.0, 1000.0, "workers times the sine of twice the time of day")
    half_cos: float = weight(0.0, 0.3, -1000.0, 1000.0, "workers times its cosine")
    slack: float = weight(0.5, 0.3, 0.0, 100.0, "workers by which the sum must fall before a pool shrinks")
    # fmt: on

    def size_of(self, pool: PoolView, rates: Sequence[float], angle: float) -> int:
        """Return the size of a pool.

        Args:
            pool: the pool.
            rates: arrivals per second over 1, 4 and 16 intervals.
            angle: time of day, radians.
        """
        numbers = (
            1.0, *rates, float(pool.ongoing.sum() + pool.unrouted), float(pool.waiting.sum() + pool.unrouted),
            math.sin(angle), math.cos(angle), math.sin(2 * angle), math.cos(2 * angle),
        )  # fmt: skip
        wanted = sum(getattr(self, name) * x for name, x in zip(_TERMS, numbers, strict=True))
        grown, shrunk = math.ceil(wanted - 1e-9), math.ceil(wanted + self.slack - 1e-9)
        return max(grown, min(pool.target, shrunk))

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes."""
        angle = 2 * math.pi * view.time / self.day
        rates = [view.rate(k * self._every) for k in WINDOWS]
        return [self.size_of(pool, rates, angle) for pool in view.pools]


_TERMS = tuple(w.name for w in weights_of(Linear) if w.name != "slack")
