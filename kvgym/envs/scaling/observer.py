"""Observations, masks and rewards of the scaling environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.envs.scaling.config import INTERVAL, ScalingConfig
from kvgym.envs.scheduling.spaces import Parts, present, space_of
from kvgym.metrics.compute import compute_metrics
from kvgym.policies.fleet_features import (
    FLEET_FEATURES,
    POOL_FEATURES,
    fleet_numbers,
    normalised,
    pool_numbers,
    scales_of,
)
from kvgym.simulator.cluster.fleet_view import FleetView
from kvgym.simulator.cluster.members import DRAINS, STARTING, UP
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.fleet import Fleet
from kvgym.simulator.tables import FINISHED
from kvgym.workloads.workload import Workload

HOUR = 3600.0

SCALING_TERMS = ("workers", "missed")
"""Reward terms: minus the GPU-hours by price, and minus the penalties, in GPU-hours."""

EPISODE = np.dtype([("since", "f8"), ("terms", "f8", (len(SCALING_TERMS),)), ("reward", "f8")])
"""The time of the last observation, seconds, and the reward since the previous one."""


def parts(pools: int) -> Parts:
    """Return the slice (start, stop) of each key of the Dict observation in the flat one."""
    a = len(FLEET_FEATURES)
    return {"fleet": (0, a), "pools": (a, a + pools * len(POOL_FEATURES))}


def feature_names(pools: int) -> tuple[str, ...]:
    """Return the name of each number of the flat observation, e.g. ``"pool.0.ready"``."""
    own = [f"pool.{g}.{name}" for g in range(pools) for name, _, _ in POOL_FEATURES]
    return (*(f"fleet.{name}" for name, _, _ in FLEET_FEATURES), *own)


def action_space(config: ScalingConfig, fleet: Fleet) -> spaces.MultiDiscrete:
    """Return the space of actions: a number for each pool."""
    sizes = [2 * config.step + 1 if config.action == "change" else pool.most + 1 for pool in fleet.pools]
    return spaces.MultiDiscrete(sizes)


def observation_space(config: ScalingConfig, fleet: Fleet) -> spaces.Space[Any]:
    """Return the space of observations, float32 in [0, 1]."""
    places = parts(len(fleet.pools))
    flat = spaces.Box(0.0, 1.0, (places["pools"][1],), np.float32)
    return space_of(config.observation, flat, int(action_space(config, fleet).nvec.sum()), places)


class Ledger:
    """What a fleet has cost so far, followed from question to question.

    A miss counts when it is certain: the first token or the end is late, a gap between tokens was too long, or the
    request has finished outside of its targets.
    """

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation, fleet = simulation, simulation.system.fleet
        assert fleet is not None
        self._rates = np.array([fleet.pools[g].gpus * fleet.pools[g].price for g in fleet.pool_of])
        w = simulation.workload
        self._targets = [
            w[name] if np.isfinite(w[name]).any() else None for name in ("ttft_slo", "tbt_slo", "e2e_slo")
        ]
        self._open = np.zeros(0, np.int64)  # requests that may still meet their targets
        self._seen = self._known = self._missed = 0
        self._rate = self._since = self._billed = 0.0
        self._on = np.zeros(fleet.num_places, np.bool_)
        self._penalty = fleet.penalty

    def costs(self, view: FleetView) -> tuple[float, float]:
        """Return the billed GPU-seconds by price, and the penalties, until now."""
        self._bill(view.time)
        if any(target is not None for target in self._targets):
            self._judge(view)
        return self._billed, self._penalty * self._missed

    def _bill(self, time: float) -> None:
        changing = self._simulation.changing_fleet
        assert changing is not None
        changes = changing.members.changes
        for at, k, state in changes[self._known :]:
            self._billed += self._rate * (at - self._since)
            self._since, on = at, state in (STARTING, UP, DRAINS)
            if on != self._on[k]:
                self._on[k] = on
                self._rate = float(self._rates[self._on].sum())
        self._known = len(changes)
        self._billed += self._rate * (time - self._since)
        self._since = time

    def _judge(self, view: FleetView) -> None:
        simulation, now = self._simulation, view.time
        arrived = view.counts.arrivals
        ids = np.concatenate([self._open, np.arange(self._seen, arrived)])
        self._seen = arrived
        rows = simulation.requests
        arrival = simulation.workload["arrival_time"][ids]
        finished = rows["status"][ids] == FINISHED
        late = np.zeros(len(ids), np.bool_)
        ttft, tbt, e2e = self._targets
        if ttft is not None:
            first = rows["first_token_time"][ids]
            late |= np.where(np.isnan(first), now, first) - arrival > ttft[ids]
        if e2e is not None:
            late |= np.where(finished, rows["finish_time"][ids], now) - arrival > e2e[ids]
        if tbt is not None:
            late |= finished & (rows["max_token_gap"][ids] > tbt[ids])
        self._missed += int(late.sum())
        self._open = ids[~(late | finished)]


class ScalingObserver:
    """Observes a fleet whenever it waits for targets.

    Attributes:
        flat: float32 (D,), the latest observation.
        mask: uint8 (K,), the valid numbers of each pool; all ones at the end of a run.
        parts: slice of each key of the Dict observation in the flat one.
        episode: dtype EPISODE, shape (1,).
        interval: seconds between questions.
    """

    def __init__(self, config: ScalingConfig, fleet: Fleet, workload: Workload) -> None:
        """Allocate memory for a fleet, with the scales of a load."""
        self.config, self.fleet = config, fleet
        rate = workload.mean_rate if 0 < workload.mean_rate < np.inf else 1.0
        self._day = config.day_of(workload)
        self._scales = scales_of(FLEET_FEATURES, rate), scales_of(POOL_FEATURES, rate)
        self.parts = parts(len(fleet.pools))
        self.flat = np.zeros(self.parts["pools"][1], np.float32)
        self._sizes = action_space(config, fleet).nvec.tolist()
        self.mask = np.ones(sum(self._sizes), np.uint8)
        self.episode = np.zeros(1, EPISODE)
        self.interval, self._begin = float(fleet.control or INTERVAL), 0.0
        self._targets = [pool.count for pool in fleet.pools]

    def attach(self, simulation: ClusterSimulation, begin: float = 0.0) -> None:
        """Start observing another run, from its beginning.

        Args:
            simulation: the run.
            begin: when in the load it begins, seconds.
        """
        self._begin = begin
        self._ledger, self._costs = Ledger(simulation), (0.0, 0.0)
        self.episode[:] = np.zeros(1, EPISODE)

    def update(self, view: FleetView, final: Any = None) -> None:
        """Update observation, mask and rewards.

        Args:
            view: the fleet now.
            final: the outcome of the run if it has ended, a :class:`~kvgym.policies.runner.SimulationResult`.
        """
        self.observe(view)
        workers, missed = self._ledger.costs(view)
        if final is not None:  # what is left over counts now, so that the return is the metric
            missed = compute_metrics(final, ("fleet_cost",))["fleet_cost"] * HOUR - workers
        found, before = np.array([workers, missed]), self._costs
        self._costs = workers, missed
        episode = self.episode[0]
        episode["terms"] = (np.array(before) - found) / HOUR / self.config.reward_scale
        episode["reward"] = episode["terms"].sum()
        episode["since"] = view.time
        self.mark(view)
        if final is not None:
            self.mask[:] = 1

    def observe(self, view: FleetView) -> None:
        """Write the observation alone."""
        angle = 2 * np.pi * (self._begin + view.time) / self._day
        numbers = fleet_numbers(view, self.fleet, self.interval, angle)
        own = [normalised(pool_numbers(pool, self.interval), self._scales[1]) for pool in view.pools]
        self.flat[:] = np.concatenate([normalised(numbers, self._scales[0]), *own])

    def targets(self, action: NDArray[np.float64]) -> tuple[tuple[int, ...], bool]:
        """Return the targets of an action, clipped to the valid ones, and whether they were.

        Args:
            action: a number for each pool, (pools,).
        """
        found, clipped, at = [], False, 0
        for number, size, base in zip(action.tolist(), self._sizes, self._bases(), strict=True):
            valid = np.flatnonzero(self.mask[at : at + size])
            chosen = int(valid[np.argmin(np.abs(valid - int(number)))]) if len(valid) else int(number)
            clipped |= chosen != int(number)
            found.append(base + chosen)
            at += size
        return tuple(found), clipped

    def action_of(self, targets: Any) -> NDArray[np.int64]:
        """Return the action that comes closest to targets, (pools,)."""
        numbers, at = [], 0
        for target, size, base in zip(targets, self._sizes, self._bases(), strict=True):
            valid = np.flatnonzero(self.mask[at : at + size])
            numbers.append(int(valid[np.argmin(np.abs(base + valid - int(target)))]))
            at += size
        return np.array(numbers, np.int64)

    def _bases(self) -> list[int]:
        """Return the target that the number 0 of each pool stands for."""
        if self.config.action == "target":
            return [0] * len(self._targets)
        return [target - self.config.step for target in self._targets]

    def mark(self, view: FleetView) -> None:
        """Write the mask: targets within least and most, and starts within the budget; the present target always.

        For a pool the budget has what is free, and what the other pools would free at their least sizes.
        """
        self._targets = [pool.target for pool in view.pools]
        present = [pool.ready + pool.starting + pool.draining for pool in view.pools]
        free = self.fleet.limit - sum(
            n * pool.gpus for n, pool in zip(present, self.fleet.pools, strict=True)
        )
        spare = [
            max(0, n - pool.least) * pool.gpus for n, pool in zip(present, self.fleet.pools, strict=True)
        ]
        at = 0
        for g, (pool, n, size, base) in enumerate(
            zip(view.pools, present, self._sizes, self._bases(), strict=True)
        ):
            target, s = base + np.arange(size), pool.settings
            affordable = np.maximum(0, target - n) * s.gpus <= max(0, free) + sum(spare) - spare[g]
            valid = (target >= s.least) & (target <= s.most) & affordable | (target == pool.target)
            self.mask[at : at + size] = valid
            at += size

    def present(self) -> Any:
        """Return the observation in the form of its space, in memory of its own."""
        return present(self.config.observation, self.parts, self.flat, self.mask)
