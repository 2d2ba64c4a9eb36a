"""Fixed knobs: settings of the rule of ``kvgym/Knobs-v0`` that are held for whole episodes, and the best of them.

An episode is one step of the native vector environment, because its action stays in force for more iterations than any
episode has. Its latencies are, bit for bit, those of :class:`~kvgym.envs.agents.AgentPolicy` with the same knobs.
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
"""Iterations for which an action is held."""

STALL_LIMIT = 20_000
"""Decisions in a row without a new token after which knobs have failed: they evict for ever."""

SCREENED = 0.2
"""Share of the grid that plays more than the first tuning seed."""


@dataclass(frozen=True)
class Choice:
    """Knobs, and the order that they admit in.

    Attributes:
        order: queue order of the environment.
        knobs: levels of protection, cap, budget and quantum.
    """

    order: str
    knobs: tuple[int, ...]

    @property
    def text(self) -> str:
        """For tables: the order and the values of the knobs."""
        values = (levels[k] for levels, k in zip(LEVELS.values(), self.knobs, strict=True))
        named = (
            f"{name}={'∞' if v == 2**31 - 1 else f'{v:g}'}" for name, v in zip(LEVELS, values, strict=True)
        )
        return f"{self.order}:{','.join(named)}"


def orders_for(table: RequestTable) -> tuple[str, ...]:
    """Return the queue orders that make sense for what requests carry."""
    known = table.predicted_output_len is not None
    return ("volume", "predicted") if known else ("attained", "prompt")


def environment_arguments(scenario: Scenario, order: str) -> dict[str, Any]:
    """Return the arguments of the environment with the service of a scenario.

    Raises:
        ConfigError: it drops or clips requests, which environments do not.
    """
    if scenario.too_long != "error":
        raise ConfigError(f"fixed knobs are played where too_long is error, not {shown(scenario.too_long)}")
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
    """Plays fixed knobs on the requests of some seeds.

    Args:
        scenario: of one worker.
        order: queue order.
        seeds: seeds of the requests, as everywhere.

    Raises:
        ConfigError: the scenario cannot be an environment, or lacks what the order needs to know.
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
        """Return a metric by seed, float64 (seeds,); NaN where requests were left.

        Args:
            knobs: levels of protection, cap, budget and quantum.
            metric: see :mod:`kvgym.metrics`.
        """
        self._envs.reset(seed=0, options={"workload_seed": self.seeds})
        *_, info = self._envs.step(np.tile(knobs, (len(self.seeds), 1)))
        values = info["metrics"][:, metric_names().index(metric)]
        return np.where(info["completed"], values, np.nan)


def grid_of(levels: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the combinations of some levels of each knob."""
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
    """Return the knobs with the best mean of a metric on tuning seeds; None where all fail.

    All combinations play the first seed, the best fifth of them (of each order) the others too.

    Args:
        scenario: of one worker.
        metric: one that has better and worse.
        seeds: to tune on.
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
