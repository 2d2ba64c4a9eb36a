"""Run a schedule of slotted time through the engine, as a check on the value claimed for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kvgym.batch_time.models.unit import UnitBatchTime
from kvgym.policies.policy import Decision, Policy, PolicyInfo
from kvgym.policies.runner import SimulationResult, simulate
from kvgym.simulator.system import System
from kvgym.simulator.view import SystemView
from kvgym.theory.hindsight.slotted.instance import slotted_requests
from kvgym.workloads.table import RequestTable


class ScheduledStarts(Policy):
    """Policy that admits each request at a given moment and otherwise waits.

    It is not registered, because it knows the starts of requests that have not arrived.

    Args:
        starts: the moments, whole numbers (n,), by request id.
    """

    info = PolicyInfo(name="scheduled_starts", summary="requests start at given moments")

    def __init__(self, *, starts: tuple[int, ...]) -> None:
        self.starts = np.asarray(starts)

    def schedule(self, view: SystemView) -> Decision:
        """Admit requests that are due; with nothing to do, wait for the next start or arrival."""
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
        starts: the start of each request, whole numbers (n,).

    Returns:
        The run; every request starts at its given moment and completes o slots later.

    Raises:
        ConfigError: the schedule breaks a rule of the model, see :class:`SlottedRequests`.
        WorkloadError: a request needs more than the memory.
    """
    schedule = slotted_requests(table, memory).check(starts)
    idle = int(schedule.max(initial=0)) + 1  # slots that may pass in a row without a batch
    system = System(
        kv_capacity=memory, batch_time=UnitBatchTime(), stall_limit=idle + int(table.output_len.max())
    )
    return simulate(system, table, ScheduledStarts(starts=tuple(schedule.tolist())))
