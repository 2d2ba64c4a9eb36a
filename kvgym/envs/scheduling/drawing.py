"""The requests of an episode: the seed that draws them, the load at which they arrive, and how long they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvgym.errors import ConfigError, shown
from kvgym.simulator.system import System
from kvgym.utils.checks import check_seed
from kvgym.utils.seeding import stream
from kvgym.workloads.table import RequestTable
from kvgym.workloads.workload import Workload


def at_load(table: RequestTable, load: tuple[float, float], seed: int) -> RequestTable:
    """Return the requests with arrivals sped up by a factor drawn log-uniformly from the range ``load``.

    The factor has its own random stream, so that the lengths and the arrival pattern depend on the seed alone.
    """
    if load == (1.0, 1.0):
        return table
    drawn = np.exp(stream(seed, "load").uniform(*np.log(load)))
    factor = float(np.clip(drawn, *load))  # exp(log(x)) may differ from x by rounding
    return table.faster(factor)


def reset_options(options: Any, *valid: str) -> dict[str, Any]:
    """Return the options of a reset as a dictionary.

    Raises:
        ConfigError: the options are not a mapping, or one of them is not valid.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(f"reset options {shown(options)}; expected a mapping of {', '.join(valid)}")
    given = dict(options or {})
    unknown = [name for name in given if name not in valid]
    if unknown:
        raise ConfigError(f"unknown reset option {shown(unknown[0])}; valid: {', '.join(valid)}")
    return given


def workload_seed(options: Any, rng: np.random.Generator) -> int:
    """Return the seed of an episode's requests: the option ``workload_seed``, else a drawn one.

    A seed is always drawn, so that the option does not change later episodes.

    Raises:
        ConfigError: an unknown option, or a seed that is not a whole number ≥ 0.
    """
    given = reset_options(options, "workload_seed")
    drawn = int(rng.integers(2**31))
    return check_seed(given.get("workload_seed", drawn), "workload_seed")


def episode_horizon(horizon: float | None, system: System, workload: Workload, num_requests: int) -> float:
    """Return the time at which episodes are truncated, seconds.

    It is ``horizon`` if given, else the system's, else ten times the nominal span of the arrivals plus 600 s.
    """
    if horizon is not None:
        return horizon
    if np.isfinite(system.horizon):
        return float(system.horizon)
    rate = workload.mean_rate
    span = num_requests / rate if np.isfinite(rate) and rate > 0 else 0.0
    return float(10 * span + 600.0)
