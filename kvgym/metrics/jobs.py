"""Sessions as jobs: how long they take, and how many finish."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.simulator.tables import FINISHED
from kvgym.workloads.table import RequestTable


@dataclass(frozen=True)
class Jobs:
    """The sessions of a run.

    Attributes:
        completion: last completion - first arrival of each finished session that counts, seconds.
        service: sum of the latencies of its turns, seconds.
        finished: number of finished sessions, NaN without sessions.
        unfinished: number of those that have begun and not finished, NaN without sessions.
    """

    completion: NDArray[np.float64]
    service: NDArray[np.float64]
    finished: float
    unfinished: float


def jobs_of(
    table: RequestTable, records: NDArray[Any], to_come: NDArray[np.int64], counted: Any, end: float
) -> Jobs:
    """Return the sessions of a run.

    Args:
        table: the requests of the run.
        records: their records, dtype REQUEST, (n,).
        to_come: sessions of turns that have not arrived.
        counted: bool (n,), requests with latencies that count, or True; a session counts if its first turn does.
        end: end of the run, seconds.
    """
    if table.session_id is None or len(table) == 0:
        return Jobs(np.zeros(0), np.zeros(0), math.nan, math.nan)
    ids, first, job = np.unique(table.session_id, return_index=True, return_inverse=True)
    over = ~np.isin(ids, to_come)
    over[job[records["status"] != FINISHED]] = False
    last, service = np.zeros((2, len(ids)))
    with np.errstate(invalid="ignore"):  # NaN of turns that have not finished
        np.maximum.at(last, job, records["finish_time"])
    np.add.at(service, job, records["finish_time"] - table.arrival_time)
    begin, count = table.arrival_time[first], float(over.sum())
    chosen = over & np.broadcast_to(counted, (len(table),))[first]
    return Jobs((last - begin)[chosen], service[chosen], count, float((begin <= end).sum()) - count)
