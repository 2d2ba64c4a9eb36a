"""Whether requests meet their SLOs: targets for first token, gaps between tokens, and completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.errors import ConfigError
from kvgym.policies.runner import SimulationResult
from kvgym.simulator.tables import FINISHED
from kvgym.utils.arguments import explained
from kvgym.workloads.table import RequestTable

WITHIN_SLO = ("goodput", "slo_attainment")
"""Metrics that count requests within their own SLOs."""


def has_targets(table: RequestTable) -> bool:
    """Return whether any of the requests has an SLO."""
    return any(
        slo is not None and bool(np.isfinite(slo).any())
        for slo in (table.ttft_slo, table.tbt_slo, table.e2e_slo)
    )


def check_targets(names: Iterable[str], table: RequestTable) -> None:
    """Check that requests have SLOs if a metric counts requests that met theirs.

    Raises:
        ConfigError: they have none.
    """
    for name in WITHIN_SLO:
        if name in names and not has_targets(table):
            raise ConfigError(
                f"{name} counts requests within their own SLOs, and these have none; set them, e.g. with --ttft-slo 1 "
                "--tbt-slo 0.2 (in files: ttft_slo and tbt_slo of the workload), or choose classes with SLOs"
            )


@explained
def slo_met(result: SimulationResult) -> NDArray[np.bool_]:
    """Return for each request whether it finished within all of its SLOs, shape (n,)."""
    met = result.requests["status"] == FINISHED
    for kind in _SLOS:
        within, having = met_slo(result, kind)
        met &= within | ~having
    return np.asarray(met)


_SLOS: dict[str, Callable[[RequestTable, NDArray[Any]], NDArray[np.float64]]] = {
    "ttft": lambda table, r: r["first_token_time"] - table.arrival_time,
    "tbt": lambda table, r: r["max_token_gap"],
    "e2e": lambda table, r: r["finish_time"] - table.arrival_time,
}
"""The seconds that the SLO of a kind bounds."""


def met_slo(result: SimulationResult, kind: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which requests finished within their SLO of a kind, and which have one, (n,) each."""
    r, slo = result.requests, getattr(result.table, f"{kind}_slo")
    having = np.zeros(len(r), np.bool_) if slo is None else np.isfinite(slo)
    if slo is None:
        return having, having
    return having & (r["status"] == FINISHED) & (_SLOS[kind](result.table, r) <= slo), having
