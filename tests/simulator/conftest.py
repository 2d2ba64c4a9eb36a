"""Fixtures of tests of the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.runs.runs_by_hand import Make
from kvgym.batch_time import BatchTimeModel, UnitBatchTime
from kvgym.simulator.simulation import Simulation
from kvgym.simulator.system import System
from kvgym.workloads.table import RequestTable


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a function that starts a simulation of (arrival, prompt, output) rows."""

    def build(
        rows: list[tuple[float, int, int]],
        M: int = 20,  # noqa: N803
        time: BatchTimeModel | None = None,
        needs: frozenset[str] = frozenset(),
        columns: dict[str, Any] | None = None,
        **rules: Any,
    ) -> Simulation:
        arrival, prompt, output = zip(*rows, strict=True)
        table = RequestTable(arrival, prompt, output, **columns or {})
        system = System(kv_capacity=M, batch_time=time or UnitBatchTime(), **rules)
        simulation = Simulation(
            system, table, needs=needs, policy_name="by_hand", log=True, compiled=request.param
        )
        assert simulation.start()
        return simulation

    return build
