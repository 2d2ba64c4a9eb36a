"""Search for the best fixed settings of ``kvgym/Knobs-v0``, held for whole episodes.

An episode is one step of the native vector environment: the action is held for more iterations than any episode has.
Latencies equal, bit for bit, those of :class:`~kvgym.envs.agents.AgentPolicy` with the same knobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from kvgym.envs.scheduling.actions.knobs import LEVELS
from kvgym.envs.scheduling.vector_environment import ServingVectorEnv
from kvgym.errors import ConfigError, shown
from kvgym.experiments.scenario import Scenario
from kvgym.metrics import metric_info, metric_names
from kvgym.workloads.table import RequestTable

EVER = 10**9
"""Iterations that an action is held for."""

STALL_LIMIT = 20_000
"""Decisions in a row without a new token after which knobs count as failed: they evict for ever."""

SCREENED = 0.2
"""Share of the grid that is run on more than the first tuning seed."""


@dataclass(frozen=True)
class Choice:
    """Knobs and their queue order.

    Attributes:
        order: queue order of the environment.
        knobs: levels of protection, cap, budget and quantum.
    """

    order: str
    knobs: tuple[int, ...]

    @property
    def text(self) -> str:
        """The order and the values of the knobs, for tables."""
        values = (levels[k] for levels, k in zip(LEVELS.values(), self.knobs, strict=True))
        named = (
            f"{name}={'∞' if v == 2**31 - 1 else f'{v:g}'}" for name, v in zip(LEVELS, values, strict=True)
        )
        return f"{self.order}:{','.join(named)}"


def orders_for(table: RequestTable) -> tuple[str, ...]:
    """Return the queue orders that fit what is predicted of requests."""
    known = table.predicted_output_len is not None
    return ("volume", "predicted") if known else ("attained", "prompt")


def environment_arguments(scenario: Scenario, order: str) -> dict[str, Any]:
    """Return the arguments of the environment with the service of a scenario.

    Raises:
        ConfigError: the scenario drops or clips requests, which environments cannot.
    """
    if scenario.too_long != "error":
        raise ConfigError(f"fixed knobs need too_long: error, not {shown(scenario.too_long)}")
    made = scenario.resolved()
    workload = made.workload if isinstance(made.workload, dict) else {"preset": made.workload}
    rules = made.system.model_dump()
    return {
        "hardware": made.hardware,
        "engine": made.engine,
        "batch_time": made.batch_time or None,
        "kv_capacity": made.kv_capacity,
        "workload": workload,
        "system": {k: v for k, v in rules.items() if k not in ("horizon", "stall_limit")},
        "queue_order": order,
        "information": ["predicted_length"] if order in ("volume", "predicted") else [],
    }


class KnobPlayer:
    """Run fixed knobs on the requests of some seeds.

    Args:
        scenario: of one worker.
        order: queue order.
        seeds: of the requests.

    Raises:
        ConfigError: the scenario cannot be an environment, or lacks predictions that the order needs.
    """

    def __init__(self, scenario: Scenario, order: str, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        horizon = scenario.system.horizon
        self._envs = ServingVectorEnv(
            len(self.seeds),
            autoreset_mode=AutoresetMode.DISABLED,
            action="knobs",
            hold=EVER,
            horizon=1e15 if horizon is None else horizon,
            stall_limit=STALL_LIMIT,
            **environment_arguments(scenario, order),
        )

    def play(self, knobs: Sequence[int], metric: str) -> NDArray[np.float64]:
        """Return a metric by seed, float64 (seeds,); NaN if requests were left.

        Args:
            knobs: levels of protection, cap, budget and quantum.
            metric: see :mod:`kvgym.metrics`.
        """
        self._envs.reset(seed=0, options={"workload_seed": self.seeds})
        *_, info = self._envs.step(np.tile(knobs, (len(self.seeds), 1)))
        values = info["metrics"][:, metric_names().index(metric)]
        return np.where(info["completed"], values, np.nan)


def grid_of(levels: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
    """Return all combinations of levels."""
    if unknown := levels.keys() ^ LEVELS.keys():
        raise ConfigError(f"knobs {', '.join(sorted(unknown))}; expected levels of {', '.join(LEVELS)}")
    return list(itertools.product(*(levels[name] for name in LEVELS)))


def best_knobs(
    scenario: Scenario,
    metric: str,
    seeds: Sequence[int],
    levels: Mapping[str, Sequence[int]],
    orders: Sequence[str],
) -> Choice | None:
    """Return the knobs with the best mean of a metric on tuning seeds; None if all fail.

    All combinations run on the first seed, the best fifth of them (per order) also on the others.

    Args:
        scenario: of one worker.
        metric: one with a direction, see :mod:`kvgym.metrics`.
        seeds: tuning seeds.
        levels: of each knob, see :data:`kvgym.envs.scheduling.actions.knobs.LEVELS`.
        orders: queue orders.
    """
    sign = 1.0 if metric_info(metric).lower_is_better else -1.0
    best, least = None, np.inf
    for order in orders:
        points = grid_of(levels)
        first = KnobPlayer(scenario, order, seeds[:1])
        costs = np.array([sign * first.play(point, metric)[0] for point in points])
        kept = np.argsort(costs, kind="stable")[: max(1, round(SCREENED * len(points)))]
        others = KnobPlayer(scenario, order, seeds[1:]) if len(seeds) > 1 else None
        for k in kept[np.isfinite(costs[kept])]:
            more = np.zeros(0) if others is None else sign * others.play(points[k], metric)
            mean = float(np.mean([costs[k], *more]))
            if mean < least:
                best, least = Choice(order, points[k]), mean
    return best
