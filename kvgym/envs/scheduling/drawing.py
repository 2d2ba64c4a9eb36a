"""Which requests an episode has: the seed they are drawn with, and how fast they arrive."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from kvgym.errors import ConfigError
from kvgym.seeding import stream
from kvgym.workloads.table import RequestTable


def at_load(table: RequestTable, load: tuple[float, float], seed: int) -> RequestTable:
    """Return the requests arriving faster by a factor drawn log-uniformly from the range ``load``.

    The factor has a random stream of its own, so that lengths and the pattern of arrivals stay those of the seed.
    """
    if load == (1.0, 1.0):
        return table
    drawn = np.exp(stream(seed, "load").uniform(*np.log(load)))
    factor = float(np.clip(drawn, *load))  # exp(log(x)) may miss x by a rounding
    return table.faster(factor)


def workload_seed(options: dict[str, Any] | None, rng: np.random.Generator) -> int:
    """Return the seed of an episode's requests: the option ``workload_seed``, else one drawn.

    One is drawn in any case, so that giving the option does not move later episodes.

    Raises:
        ConfigError: another option, or a seed that is not a whole number ≥ 0.
    """
    unknown = set(options or ()) - {"workload_seed"}
    if unknown:
        raise ConfigError(f"unknown reset option {sorted(unknown)[0]!r}; valid: workload_seed")
    drawn = int(rng.integers(2**31))
    return whole_seed((options or {}).get("workload_seed", drawn))


def whole_seed(seed: Any) -> int:
    """Return a workload seed as an integer.

    Raises:
        ConfigError: it is not a whole number ≥ 0.
    """
    try:
        value = operator.index(seed)
    except TypeError:
        value = -1
    if value < 0:
        raise ConfigError(f"workload_seed must be a whole number ≥ 0, got {seed!r}")
    return value
