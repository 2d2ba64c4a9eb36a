"""Observations of the routing environment: their spaces, and an observer that attaches to a run of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from kvgym.compiling.checked_build import check, guarded, watched
from kvgym.compiling.kernel import uncompiled
from kvgym.envs.rendering.scene import Choice
from kvgym.envs.routing.caches import CACHE_FEATURES, observe_caches
from kvgym.envs.routing.config import RoutingConfig
from kvgym.envs.routing.features import (
    INCOMING,
    LOADS,
    REQUEST_FEATURES,
    ROUTING_EPISODE,
    SYSTEM_FEATURES,
    TABLES,
    WORKER_FEATURES,
    observation_size,
    observe,
)
from kvgym.envs.scheduling.spaces import Parts, present, space_of
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.tables import UNKNOWN
from kvgym.simulator.view import ClusterView


def size_of(config: RoutingConfig, num_workers: int) -> int:
    """Return the length of the flat observation."""
    return observation_size(num_workers) + (len(CACHE_FEATURES) * num_workers if config.caches else 0)


def parts(config: RoutingConfig, num_workers: int) -> Parts:
    """Return the slice (start, stop) of each key of the Dict observation in the flat one."""
    a, b = len(SYSTEM_FEATURES), len(SYSTEM_FEATURES) + len(REQUEST_FEATURES)
    c, end = observation_size(num_workers), size_of(config, num_workers)
    return {
        "system": (0, a),
        "request": (a, b),
        "workers": (b, c),
        **({"caches": (c, end)} if end > c else {}),
    }


def feature_names(config: RoutingConfig, num_workers: int) -> tuple[str, ...]:
    """Return the name of each number of the flat observation, e.g. ``"worker.2.kv"``."""
    names = [f"system.{name}" for name, _ in SYSTEM_FEATURES]
    names += [f"request.{name}" for name, _ in REQUEST_FEATURES]
    for features in (WORKER_FEATURES, *([CACHE_FEATURES] if config.caches else [])):
        names += [f"worker.{k}.{name}" for k in range(num_workers) for name, _ in features]
    return tuple(names)


def observation_space(config: RoutingConfig, num_workers: int) -> spaces.Space[Any]:
    """Return the space of observations, float32 in [0, 1]."""
    flat = spaces.Box(0.0, 1.0, (size_of(config, num_workers),), np.float32)
    return space_of(config.observation, flat, num_workers, parts(config, num_workers))


class Observer:
    """Observes a cluster whenever a request is to be routed.

    Attributes:
        flat: float32 (D,), the latest observation.
        mask: uint8 (r,), the candidates of the request; all ones at the end of a run.
        parts: slice of each key of the Dict observation in the flat one.
        episode: dtype ROUTING_EPISODE, shape (1,), with the reward terms since the previous observation.
    """

    def __init__(self, config: RoutingConfig, settings: np.ndarray, num_workers: int) -> None:
        """Allocate memory for a cluster of ``num_workers``."""
        self.config, self.num_workers = config, num_workers
        self.settings = settings
        self.flat: NDArray[np.float32] = guarded(np.zeros(size_of(config, num_workers), np.float32))
        self.mask: NDArray[np.uint8] = guarded(np.ones(num_workers, np.uint8))
        self.loads = guarded(np.zeros(num_workers * LOADS))
        self.episode = guarded(np.zeros(1, ROUTING_EPISODE))
        self.parts = parts(config, num_workers)

    def attach(self, simulation: ClusterSimulation) -> None:
        """Start observing another run, from its beginning."""
        n = len(simulation.table)
        self._simulation = simulation
        self._present = guarded(np.zeros(max(n, 1), np.int32))
        self.episode[:] = np.zeros(1, ROUTING_EPISODE)
        own = {"settings": self.settings, **self._changing()}
        tables = [own[name] if name in own else getattr(simulation, name) for name in TABLES]
        self._addresses = np.array([table.ctypes.data for table in tables], np.int64)
        self._size = n
        self._scales = np.array([self.settings["time_scale"][0], self.settings["duration_scale"][0]])
        self._entry, self._caches = (
            watched(kernel.compiled, lambda: "observation of a cluster", self.check_memory)
            if simulation.compiled
            else uncompiled(kernel)
            for kernel in (observe, observe_caches)
        )

    def changing(self) -> list[NDArray[Any]]:
        """Return all arrays that observations change."""
        return list(self._changing().values())

    def _changing(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that observations change, by their names in TABLES."""
        return {
            "flat": self.flat,
            "mask": self.mask,
            "loads": self.loads,
            "episode": self.episode,
            "present": self._present,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Omit the observed run and its addresses, which are valid in this process only."""
        omitted = ("_simulation", "_addresses", "_entry", "_caches")
        return {name: value for name, value in vars(self).items() if name not in omitted}

    def check_memory(self, culprit: str) -> None:
        """Check, in the checked build, that compiled code has not written outside the observer's memory.

        Args:
            culprit: the code to blame, for the message.

        Raises:
            OutOfBoundsError: it has.
        """
        check(culprit, self._changing())

    def update(self, ended: bool = False) -> int:
        """Update observation, mask and rewards; return the request to be routed, -1 at the end."""
        request = int(self._entry(self._addresses, self._size, self.num_workers, 1 if ended else 0))
        if self.config.caches:
            at = observation_size(self.num_workers)
            self._caches(*self._simulation.addresses(), request, self._scales, self.flat, at)
        return request

    def present(self) -> Any:
        """Return the observation in the form of its space, in memory of its own."""
        return present(self.config.observation, self.parts, self.flat, self.mask)

    def choice(self, request: int) -> Choice:
        """Return what pictures show of the request to be routed; ``request`` is UNKNOWN at the end."""
        simulation, there = self._simulation, request != UNKNOWN
        revealed = there and "predicted_length" in self.config.information
        return Choice(
            clock=float(self.episode["since"][0]),
            request=request,
            handover=there and simulation.cluster_view.span[0] > 0,
            prompt_len=int(simulation.workload["prompt_len"][request]) if there else 0,
            predicted_len=int(simulation.workload["predicted_len"][request]) if revealed else UNKNOWN,
            candidate=self.mask.astype(bool) & there,
            incoming=self.loads[INCOMING::LOADS].astype(np.int64),
        )


def shortest_queue(view: ClusterView) -> int:
    """Return the candidate with the fewest unfinished requests, the first of several."""
    first, last = view.span
    return first + int(np.argmin(view.column("outstanding_requests")[first:last]))
