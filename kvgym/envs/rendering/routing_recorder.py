"""Recording of a routing episode for pictures: a bounded history of every worker, and the current moment.

Only :meth:`RoutingRecorder.write_summary` needs a plotting library, and imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.rendering.history import History
from kvgym.envs.rendering.routing import RoutingCourse, RoutingScene
from kvgym.envs.rendering.routing_frame import draw_moment
from kvgym.envs.rendering.scene import require_libraries
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.tables import FINISHED


class RoutingRecorder:
    """Records an episode of the routing environment and draws it.

    Attributes:
        history: KV tokens at iteration boundaries, waiting and unfinished requests of every worker over time.
    """

    def __init__(self, simulation: ClusterSimulation, observe: Callable[[], RoutingScene]) -> None:
        """Create an empty recording of one episode.

        Args:
            simulation: the cluster.
            observe: returns the current moment.
        """
        self.history = History()
        self._simulation, self._observe = simulation, observe
        self._time = -np.inf
        self._figures: NDArray[np.int64] = np.zeros((3, len(simulation.workers)), np.int64)

    def take(self) -> None:
        """Record the current state; called after ``reset``, after every step, and by the environment in between."""
        workers: Any = self._simulation.workers
        now = self._clock()
        figures = np.stack(
            [workers[name] for name in ("kv_allocated", "num_waiting", "outstanding_requests")]
        )
        ended = workers["last_batch_end"]
        # A worker without work is idle from the end of its last batch on.
        idle = np.flatnonzero((workers["num_active"] == 0) & (self._time < ended) & (ended < now))
        for k in idle[np.argsort(ended[idle])]:
            self._figures[:, k] = figures[:, k]
            self.history.add(float(ended[k]), *self._figures.ravel().tolist())
        self.history.add(now, *figures.ravel().tolist())
        self._time, self._figures = now, figures

    def _clock(self) -> float:
        """Return the current time, seconds; workers may be ahead of the last event of the cluster."""
        simulation: Any = self._simulation
        latest = float(simulation.workers["last_batch_end"].max()) if simulation.pending is None else 0.0
        return max(float(simulation.tracker[0]["clock"]), latest, self._time)

    def scene(self) -> RoutingScene:
        """Return the drawn content of the current moment."""
        return self._observe()

    def course(self) -> RoutingCourse:
        """Return the course of the episode so far; needs a call of :meth:`take` before."""
        simulation: Any = self._simulation
        workers, count = simulation.workers, len(simulation.workers)
        arrived = int(simulation.tracker[0]["next_arrival"])
        requests = simulation.requests[:arrived]
        done = requests[requests["status"] == FINISHED]
        latencies = done["finish_time"] - done["arrival_time"]
        time, *figures = np.column_stack((self.history.columns(), [self._time, *self._figures.ravel()]))
        kv, waiting, unfinished = np.array(figures).reshape(3, count, -1)
        capacity = simulation.problem["kv_capacity"]
        return RoutingCourse(
            clock=self._time,
            num_arrived=arrived,
            num_finished=len(done),
            mean_latency=float(latencies.mean()) if len(done) else float("nan"),
            num_evictions=int(workers["total_evicted"].sum()),
            num_iterations=int(workers["iteration"].sum()),
            peak=float((workers["peak_kv_tokens"] / capacity).max()),
            role=workers["role"].copy(),
            received=workers["total_routed"].copy(),
            time=time,
            kv=kv / capacity[:, None],
            waiting=waiting,
            unfinished=unfinished,
        )

    def draw(self, moment: RoutingScene) -> NDArray[np.uint8]:
        """Return a moment as an image, uint8 (600, 800, 3)."""
        return draw_moment(moment)

    def write_summary(self, title: str, path: Path | IO[bytes]) -> None:
        """Write a picture of the episode so far as a PNG file.

        Args:
            title: first line.
            path: the file, open for writing, or its path in an existing folder.

        Raises:
            MissingLibraryError: matplotlib is missing.
        """
        require_libraries("matplotlib")
        from kvgym.envs.rendering.routing_picture import write_course

        write_course(self.course(), title, path)
