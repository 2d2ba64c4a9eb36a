"""The tables of a run, as uncompiled functions of the engine take them."""

from __future__ import annotations

from kvgym.simulator.boundary import RUN_TABLES, Run
from kvgym.simulator.simulation import Simulation


def first_worker(simulation: Simulation) -> Run:
    """Return the tables of the first worker, as views that hold the arrays of the simulation."""
    arrays = simulation.python_tables().values()
    return Run(
        *(
            array if table.shared and table.length else array[0]
            for array, table in zip(arrays, RUN_TABLES.values(), strict=True)
        )
    )
