"""Targets that no number of workers holds, found before anything is run."""

from __future__ import annotations

from collections.abc import Sequence

from kvgym.experiments.capacity.targets import Target
from kvgym.metrics import metric_info
from kvgym.simulator.system import System
from kvgym.theory.hindsight.calibrated.latencies import least_latencies
from kvgym.workloads.table import RequestTable

_ROUNDING = 1e-9


def out_of_reach(targets: Sequence[Target], table: RequestTable, system: System) -> str:
    """Return why some target is missed on any number of workers, whoever schedules; "" where none is known to be.

    Each request alone on an empty worker is the best there is, see
    :mod:`kvgym.theory.hindsight.calibrated.latencies`; a target may still be out of reach where this is silent.

    Args:
        targets: the targets.
        table: the requests.
        system: one of the workers.
    """
    least = least_latencies(table, system)
    for target in targets:
        info = metric_info(target.metric)
        best = least.best(target.metric, table)
        if best is None:
            continue
        allowed = best * (1 - _ROUNDING if info.lower_is_better else 1 + _ROUNDING)
        if not target.met({target.metric: allowed}):
            unit = "" if info.unit == "1" else f" {info.unit}"
            return (
                f"no number of workers holds {target}: with every request alone on an empty worker it is "
                f"{best:.3g}{unit} at {'least' if info.lower_is_better else 'most'}"
            )
    return ""
