"""Content of the routing environment's pictures and texts: the workers at one moment, and the whole episode.

Only what the agent may observe is shown. Importing this module needs no plotting library; ``routing_frame`` and
``routing_picture`` draw it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.rendering.scene import Floats, Integers, memory_bar
from kvgym.envs.routing.features import INCOMING, LOADS
from kvgym.envs.routing.observer import Observer
from kvgym.simulator.cluster.simulation import ClusterSimulation
from kvgym.simulator.tables import UNKNOWN

ROLES = ("mixed", "prefill", "decode")
TEXT_WORKERS = 32
"""Upper limit of workers listed in a text."""


@dataclass(frozen=True)
class RoutingScene:
    """Everything that is drawn of one moment; arrays have an entry per worker, (r,).

    Attributes:
        clock: seconds.
        request: the request to be routed, -1 at the end.
        handover: whether it comes from a prefill worker.
        prompt_len: its prompt, tokens.
        predicted_len: its predicted output, tokens; -1 if there is none or it is not revealed.
        num_finished: requests finished so far.
        num_evictions: evictions so far.
        candidate: bool, whether the request may go there.
        role: int64, index into :data:`ROLES`.
        kv_tokens: int64, KV memory in use, tokens of whole blocks.
        kv_capacity: int64, tokens.
        waiting: int64, requests.
        active: int64, requests.
        incoming: int64, requests in transfer from a prefill worker.
    """

    clock: float
    request: int
    handover: bool
    prompt_len: int
    predicted_len: int
    num_finished: int
    num_evictions: int
    candidate: NDArray[np.bool_]
    role: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    kv_capacity: NDArray[np.int64]
    waiting: NDArray[np.int64]
    active: NDArray[np.int64]
    incoming: NDArray[np.int64]

    def headline(self) -> str:
        """Return a line about the request to be routed."""
        if self.request == UNKNOWN:
            return "nothing left to route"
        predicted = (
            "" if self.predicted_len == UNKNOWN else f", {self.predicted_len:,} output tokens predicted"
        )
        what = "prefilled request" if self.handover else "request"
        return f"{what} {self.request}: {self.prompt_len:,} prompt tokens{predicted}"

    def text(self) -> str:
        """Return the moment as plain text, at most 80 columns wide."""
        lines = [
            f"t = {self.clock:.3f} s   {self.num_finished:,} finished, {self.num_evictions:,} evictions",
            self.headline(),
            "",
            f"{'worker':>8} {'role':<8}{'memory':<26}{'in use':>9}{'active':>8}{'waiting':>9}{'incoming':>10}",
        ]
        for k in range(min(len(self.role), TEXT_WORKERS)):
            used, capacity = int(self.kv_tokens[k]), int(self.kv_capacity[k])
            lines.append(
                f"{'>' if self.candidate[k] else ' '}{k:>7} {ROLES[self.role[k]]:<8}"
                f"[{memory_bar(0, used, capacity, 22)}]  {used / capacity:>9.0%}{self.active[k]:>8,}"
                f"{self.waiting[k]:>9,}{self.incoming[k]:>10,}"
            )
        if len(self.role) > TEXT_WORKERS:
            lines.append(f"{'...':>8} {len(self.role) - TEXT_WORKERS:,} more workers")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class RoutingCourse:
    """Course of an episode, with s samples of r workers.

    Attributes:
        clock: seconds.
        num_arrived: requests that have arrived.
        num_finished: requests finished.
        mean_latency: their mean end-to-end latency, seconds; NaN without any.
        num_evictions: evictions on all workers.
        num_iterations: batches executed on all workers.
        peak: largest KV memory in use on any worker during a batch / its capacity.
        role: index into :data:`ROLES`, int64 (r,).
        received: requests that joined a worker, from outside or from a prefill worker, int64 (r,).
        time: seconds, float64 (s,); the last is ``clock``.
        kv: KV memory in use / capacity, float64 (r, s).
        waiting: waiting requests, float64 (r, s).
        unfinished: requests sent there that have not finished there, float64 (r, s).
    """

    clock: float
    num_arrived: int
    num_finished: int
    mean_latency: float
    num_evictions: int
    num_iterations: int
    peak: float
    role: Integers
    received: Integers
    time: Floats
    kv: Floats
    waiting: Floats
    unfinished: Floats


def scene_of(
    simulation: ClusterSimulation, observer: Observer, information: Collection[str], *, over: bool
) -> RoutingScene:
    """Return the drawn content of the current moment of an environment.

    Args:
        simulation: the cluster.
        observer: the agent's observer.
        information: information revealed about requests.
        over: whether no request is left to route.
    """
    workers: Any = simulation.workers
    request = UNKNOWN if over or simulation.pending is None else simulation.pending
    revealed = "predicted_length" in information and request != UNKNOWN
    return RoutingScene(
        clock=float(observer.episode["since"][0]),
        request=request,
        handover=request != UNKNOWN and simulation.cluster_view.candidates.start > 0,
        prompt_len=0 if request == UNKNOWN else int(simulation.workload["prompt_len"][request]),
        predicted_len=int(simulation.workload["predicted_len"][request]) if revealed else UNKNOWN,
        num_finished=int(workers["total_finished"].sum()),
        num_evictions=int(workers["total_evicted"].sum()),
        candidate=observer.mask.astype(bool) & (request != UNKNOWN),
        role=workers["role"].copy(),
        kv_tokens=workers["kv_allocated"].copy(),
        kv_capacity=simulation.problem["kv_capacity"].copy(),
        waiting=workers["num_waiting"].copy(),
        active=workers["num_active"].copy(),
        incoming=observer.loads[INCOMING::LOADS].astype(np.int64),
    )
