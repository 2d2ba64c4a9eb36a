"""The weights of ``ranked``: default (set by hand), step, range and meaning of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.compiling.named import numbers_named
from kvgym.policies.hyperparameters import (
    Weight,
    hyperparameter,
    numbers_of,
    require,
    weight,
    weights_of,
    whole,
)
from kvgym.policies.policy import CompiledPolicy, SystemInfo

MOST_UNITS = 64
"""Maximum number of units of the network."""

NETWORK_INPUTS = 12
"""Number of features that the network sees."""


class RankedWeights(CompiledPolicy):
    """Base class of ``ranked``: its weights, of which those without a stated scale add to logarithms."""

    # fmt: off
    prompt: float = weight(0.1, 0.15, 0.0, 10.0,
        "weight of a prompt token in the remaining work, in output tokens")
    footprint: float = weight(1.5, 0.3, -1.0, 5.0,
        "weight of the mean memory of a request until it finishes, relative to its work",
        search=(1.0, 1.5, 2.0))
    attained: float = weight(0.5, 0.2, 0.0, 5.0,
        "bonus for the output that a request already has")
    held: float = weight(0.1, 0.2, 0.0, 5.0,
        "bonus for the KV that an active request holds")
    waiting: float = weight(5.0, 1.0, -10.0, 100.0,
        "penalty of a waiting request against an equal active one",
        search=(0.5, 5.0))
    waiting_pressure: float = weight(0.0, 0.2, -10.0, 10.0,
        "added to the weight waiting, times log(1 + waiting / (1 + active))")
    slack: float = weight(0.5, 0.3, -5.0, 10.0,
        "bonus for a deadline, per e-fold that its slack is below e^8 batches")
    urgent: float = weight(10.0, 3.0, -20.0, 50.0,
        "bonus for a deadline that would be missed by waiting for another batch")
    lost: float = weight(10.0, 3.0, -20.0, 50.0,
        "penalty of a request that has missed an objective, or is bound to")
    gate: float = weight(2.1, 0.3, -10.0, 100.0,
        "while the worker is busy, no request begins that expects more than e^gate times the usual output",
        search=(1.8, 2.1, 100.0))
    gate_busy: float = weight(0.33, 0.1, 0.0, 1.0,
        "a worker is busy if its last batch took more than 1 / (1 - gate_busy) times the shortest")
    value: float = weight(0.0, 0.05, -1.0, 2.0,
        "a token has the worth exp(-value * score)")
    prefill_value: float = weight(0.5, 0.2, 0.0, 10.0,
        "worth of a prompt token per unit of time, relative to a decode",
        search=(0.4, 0.7, 1.0))
    prefill_pressure: float = weight(0.4, 0.3, -5.0, 5.0,
        "added to the logarithm of prefill_value, times log(1 + waiting / (1 + active))")
    prefill_room: float = weight(2.0, 0.5, -5.0, 10.0,
        "added to prefill_pressure, times the free fraction of memory")
    cost: float = weight(1.2, 0.2, 0.0, 5.0,
        "power of a batch's duration that divides its value")
    cost_pressure: float = weight(0.0, 0.1, -2.0, 2.0,
        "added to the power cost, times log(1 + waiting / (1 + active))")
    cost_room: float = weight(0.0, 0.3, -4.0, 4.0,
        "added to the power cost, times f / (f + 2,048), with f the free memory in tokens")
    cost_waiting: float = weight(0.0, 0.3, -4.0, 4.0,
        "added to the power cost, times f / (f + 2,048) and the waiting share, waiting / (1 + active + waiting)")
    cost_active: float = weight(0.0, 0.1, -2.0, 2.0,
        "added to the power cost, times log(1 + active)")
    cost_least: float = weight(0.0, 0.1, 0.0, 5.0,
        "minimum of the power, after all additions")
    late: float = weight(1.0, 0.4, 0.0, 50.0,
        "reduction of the logarithm of a batch's worth for each next token that it makes late")
    free: float = weight(0.005, 0.01, 0.0, 0.9,
        "fraction of the memory that admission leaves free",
        search=(0.0, 0.02))
    growth: float = weight(2.0, 1.0, 0.0, 50.0,
        "further memory that admission leaves free, in mean remaining outputs of the active requests")
    evict_kv: float = weight(0.0, 0.3, -5.0, 1.0,
        "weight of the KV that a request holds in the choice of evictions")
    # fmt: on
    hidden: int = whole(0, least=0)
    """number of units of a network that adds to the score; 0 = no network."""
    network: str | Sequence[float] = hyperparameter("")
    """the network's numbers, as in 0.1/-2/…: for each unit 12 feature weights, a bias, and an output weight. Empty =
    zeros."""

    def __post_init__(self) -> None:
        """Check the network: ConfigError if it is too large, or its numbers have the wrong size."""
        require("hidden", self.hidden, self.hidden <= MOST_UNITS, f"at most {MOST_UNITS} units")
        size, given = self.hidden * (NETWORK_INPUTS + 2), self.network
        numbers = numbers_of("network", given, float) if len(given) else (0.0,) * size
        expected = f"{size} finite numbers for hidden = {self.hidden}"
        require("network", given, len(numbers) == size and bool(np.isfinite(numbers).all()), expected)
        self.network = numbers

    @classmethod
    def weights(cls, **fixed: Any) -> tuple[Weight, ...]:
        """Return the weights and, if ``hidden`` > 0, the numbers of the network."""
        hidden = int(fixed.get("hidden", 0))
        if hidden == 0:
            return WEIGHTS
        return (*WEIGHTS, Weight("network", 0.0, 0.3, -50.0, 50.0, hidden * (NETWORK_INPUTS + 2)))

    @property
    def values(self) -> tuple[float, ...]:
        """The weights, in the order of the parameters."""
        return tuple(getattr(self, w.name) for w in WEIGHTS)

    def params(self, system: SystemInfo) -> NDArray[np.float64]:
        """Return the weights, the number of units of the network, and its numbers."""
        return np.array([*self.values, self.hidden, *self.network], np.float64)


WEIGHTS = weights_of(RankedWeights)
"""The weights in the order of the parameters."""

NUM_WEIGHTS = len(WEIGHTS)

NETWORK = NUM_WEIGHTS + 1
"""Where the numbers of the network begin in the parameters."""

weights_in: Callable[[Any], RankedWeights] = numbers_named(
    "weights of ranked", {**{w.name: float for w in WEIGHTS}, "hidden": int}
)
"""Return the weights in the parameters of a memory, for kernels."""
