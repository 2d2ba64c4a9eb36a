"""An autoscaler that divides workers between prefill and decode, by the lengths of requests.

Not from a paper: planners of current platforms size each pool by its own rate. Here the number of workers stays, and
the one thing to find is the share that prefills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvgym.policies.hyperparameters import weight
from kvgym.policies.scaling import Autoscaler, AutoscalerInfo, PoolView, register_autoscaler
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.fleet import Fleet


@register_autoscaler
class Roles(Autoscaler):
    """Prefill workers by the ratio of prompts to outputs; all others decode, and their number together stays.

    The share that prefills is 1 / (1 + e^-x) with x = ``base`` + ``ratio`` · ln(prompt / output) + ``prompt`` ·
    prompt / 1,000 + ``waiting`` · requests that wait for each prefill worker. Lengths are means since the last
    question, of arrivals and of finished requests; the old ones stay while there are none. A share that differs from
    the present number by more than half a worker and ``slack`` changes it. Without ``switch`` of the fleet a change is
    a stop and a start. A fleet without a pool of prefill and then one of decode workers keeps its sizes.
    """

    info = AutoscalerInfo(
        name="roles", summary="prefill workers by the lengths of requests, the others decode",
        needs=frozenset({"tokens"}),
    )  # fmt: skip
    interval = 10.0

    # fmt: off
    base: float = weight(-1.2, 0.3, -20.0, 20.0, "x of prompts as long as outputs")
    ratio: float = weight(0.65, 0.1, -10.0, 10.0, "x for each e-fold by which prompts are longer than outputs")
    prompt: float = weight(0.0, 0.05, -10.0, 10.0, "x for each 1,000 tokens of the mean prompt")
    waiting: float = weight(0.0, 0.02, -10.0, 10.0, "x for each waiting request of a prefill worker")
    slack: float = weight(0.0, 0.1, 0.0, 8.0, "workers beyond a half by which the share must differ")
    # fmt: on

    def reset(self, fleet: Fleet, seed: np.random.SeedSequence) -> None:
        """Forget the lengths."""
        super().reset(fleet, seed)
        self._prompt = self._output = 0.0

    def scale(self, view: FleetView) -> Sequence[int]:
        """Return the sizes of both pools, which together stay the same; of other pools the present targets."""
        if view.arrivals:
            self._prompt = view.prompt_tokens / view.arrivals
        if view.completions:
            self._output = view.finished_tokens / view.completions
        targets = [pool.target for pool in view.pools]
        if (
            [pool.role for pool in view.pools] != ["prefill", "decode"]
            or not self._prompt
            or not self._output
        ):
            return targets
        first, second = view.pools
        total, size = sum(targets), self._size(first, sum(targets))
        low = max(first.settings.least, total - second.settings.most)
        high = min(first.settings.most, total - second.settings.least)
        size = min(max(size, low), high)
        return [size, total - size]

    def _size(self, pool: PoolView, total: int) -> int:
        """Return the prefill workers among all of them."""
        queue = (float(pool.waiting.sum()) + pool.unrouted) / max(1, pool.ready)
        x = self.base + self.ratio * math.log(self._prompt / self._output)
        x += self.prompt * self._prompt / 1000 + self.waiting * queue
        wanted = total / (1 + math.exp(-min(max(x, -50.0), 50.0)))
        return pool.target if abs(wanted - pool.target) <= 0.5 + self.slack else round(wanted)
