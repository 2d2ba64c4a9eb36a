"""Sessions, and jobs of several sessions: how long they take, how many finish, and how long they take alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.batch_time import BatchTimeModel
from kvgym.simulator.system import System
from kvgym.simulator.tables import FINISHED
from kvgym.workloads.graphs import turns_before
from kvgym.workloads.table import RequestTable


@dataclass(frozen=True)
class Jobs:
    """The sessions or the jobs of a run.

    Attributes:
        completion: last completion - first arrival of each finished one that counts, seconds.
        service: sum of the latencies of its requests, seconds.
        finished: number of finished ones, NaN without any.
        unfinished: number of those that have begun and not finished, NaN without any.
        chosen: the numbers of those in ``completion``.
    """

    completion: NDArray[np.float64]
    service: NDArray[np.float64]
    finished: float
    unfinished: float
    chosen: NDArray[np.int64]


_NO_JOBS = Jobs(np.zeros(0), np.zeros(0), math.nan, math.nan, np.zeros(0, np.int64))


def jobs_of(
    table: RequestTable,
    numbers: NDArray[np.int64] | None,
    records: NDArray[Any],
    to_come: NDArray[np.int64],
    counted: Any,
    end: float,
) -> Jobs:
    """Return the sessions or the jobs of a run.

    Args:
        table: the requests of the run.
        numbers: the session or the job of each, int64 (n,), or None.
        records: their records, dtype REQUEST, (n,).
        to_come: sessions or jobs of requests that have not arrived.
        counted: bool (n,), requests with latencies that count, or True; a session counts if its first turn does.
        end: end of the run, seconds.
    """
    if numbers is None or len(table) == 0:
        return _NO_JOBS
    ids, first, job = np.unique(numbers, return_index=True, return_inverse=True)
    over = ~np.isin(ids, to_come)
    over[job[records["status"] != FINISHED]] = False
    last, service = np.zeros((2, len(ids)))
    with np.errstate(invalid="ignore"):  # NaN of turns that have not finished
        np.maximum.at(last, job, records["finish_time"])
    np.add.at(service, job, records["finish_time"] - table.arrival_time)
    begin, count = table.arrival_time[first], float(over.sum())
    chosen = over & np.broadcast_to(counted, (len(table),))[first]
    unfinished = float((begin <= end).sum()) - count
    return Jobs((last - begin)[chosen], service[chosen], count, unfinished, ids[chosen])


def spans_alone(table: RequestTable, system: System, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how long jobs take alone on empty workers, seconds, shape of ``chosen``: their longest paths.

    Every request takes the time of batches of its own, and finds in the prefix cache, if there is one, what earlier
    requests had in common with it. In the closed loop it begins when the last of its parents has ended and its think
    time has passed, in the open loop when it arrives.

    Args:
        table: the requests of a run, with jobs.
        system: the system.
        chosen: numbers of the jobs.
    """
    assert table.job_id is not None
    ids, first, job = np.unique(table.job_id, return_index=True, return_inverse=True)
    own = alone_times(table, system)
    end = table.arrival_time - table.arrival_time[first][job]
    if system.sessions == "open":
        end += own
    else:
        assert table.session_id is not None
        assert table.think_time is not None
        child, parent = turns_before(table.session_id)
        if table.parents is not None:
            parent, child = table.parents.edges
        waits = np.bincount(child, minlength=len(table)) > 0
        end[waits] = 0.0
        after = (own + np.where(waits, table.think_time, 0.0)).tolist()
        order = np.argsort(child, kind="stable")
        edges = iter(zip(child[order].tolist(), parent[order].tolist(), strict=True))
        ends, edge = end.tolist(), next(edges, None)
        for row in range(len(ends)):  # parents come before
            while edge is not None and edge[0] == row:
                ends[row], edge = max(ends[row], ends[edge[1]]), next(edges, None)
            ends[row] += after[row]
        end = np.array(ends)
    spans = np.zeros(len(ids))
    np.maximum.at(spans, job, end)
    return spans[np.searchsorted(ids, chosen)]


def alone_times(table: RequestTable, system: System) -> NDArray[np.float64]:
    """Return the seconds of each request alone on the fastest worker, (n,), as by :func:`spans_alone`."""
    emits = system.first_token == "counted"
    decodes = table.output_len - int(emits)
    begin = table.prompt_len + int(emits and not system.unwritten_tokens)
    unit = system.prefix_unit
    found = np.minimum(found_tokens(table, unit), (table.prompt_len - 1) // max(unit, 1) * unit)
    models: dict[int, BatchTimeModel] = {id(w.batch_time): w.batch_time for w in system.all_workers}
    times = []
    for model in models.values():
        own = table.prompt_len - found
        prefill = model(
            num_prefills=1, prefill_tokens=own, prefill_context=found, prefill_squares=own * own,
            prefill_products=own * found,
        )  # fmt: skip
        step = model(num_decodes=1, decode_context=np.arange(int((begin + decodes).max(initial=0)) + 1))
        until = np.concatenate([[0.0], np.cumsum(step)])
        times.append(prefill + until[begin + decodes] - until[begin] + model.api_time)
    return np.asarray(reduce(np.minimum, times), np.float64)


def found_tokens(table: RequestTable, unit: int) -> NDArray[np.int64]:
    """Return how many first tokens of each request earlier ones have in common with it, in whole units, (n,)."""
    chains = table.chains(unit) if unit else None
    if chains is None:
        return np.zeros(len(table), np.int64)
    known = np.zeros(chains.num_contents, np.bool_)
    found = np.zeros(len(table), np.int64)
    for i, (start, count) in enumerate(zip(chains.chain_start, chains.chain_len, strict=True)):
        units = chains.chain[start : start + count]
        seen = known[units]
        found[i] = len(units) if seen.all() else int(np.argmin(seen))
        known[units] = True
    return found * unit
