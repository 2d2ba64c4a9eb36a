"""A schedule of slotted time run through the engine: what it reaches there is what it is said to reach."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.policy import Decision, Policy, PolicyInfo
from kvgym.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView
from kvgym.theory.hindsight.slotted.instance import slotted_requests
from kvgym.workloads.table import RequestTable


class StartsAsTold(Policy):
    """Admits each request at a given moment, and waits where nothing is to be done.

    It knows when requests that have not arrived will start, so it is not a scheduler that could be used: it is not
    registered.

    Args:
        starts: the moments, whole numbers (n,), by request id.
    """

    info = PolicyInfo(name="starts_as_told", summary="requests start at given moments")

    def __init__(self, *, starts: tuple[int, ...]) -> None:
        self.starts = np.asarray(starts)

    def schedule(self, view: SystemView) -> Decision:
        """Admit those whose moment has come; with nothing to do, wait for the next moment or arrival."""
        waiting = view.waiting.request_id
        due = self.starts[waiting] <= view.clock
        if not due.any() and not view.num_active:
            return Decision(wait_until=float(self.starts[waiting].min(initial=np.iinfo(np.int64).max)))
        return Decision(admit=waiting[due].tolist())


def replay(table: RequestTable, memory: int, starts: ArrayLike) -> SimulationResult:
    """Run a schedule through the engine in slotted time.

    Args:
        table: the requests.
        memory: M, tokens.
        starts: when each request starts, whole numbers (n,).

    Returns:
        The run; every request starts at its moment and completes o slots later.

    Raises:
        ConfigError: the schedule breaks a rule of the model, see :class:`SlottedRequests`.
        WorkloadError: a request needs more than the memory.
    """
    schedule = slotted_requests(table, memory).check(starts)
    idle = int(schedule.max(initial=0)) + 1  # as many slots may pass in a row without a batch
    system = System(
        kv_capacity=memory, batch_time=UnitBatchTime(), stall_limit=idle + int(table.output_len.max())
    )
    return simulate(system, table, StartsAsTold(starts=tuple(schedule.tolist())))
