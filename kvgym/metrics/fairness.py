"""Service that clients receive, and how far apart it is.

Service is defined by Sheng et al., Fairness in Serving Large Language Models, with the weights of their experiments: 1
for a prompt token and 2 for an output token.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.workloads.table import RequestTable

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""Service of a token."""

MOST_CLIENTS = 32
"""Most clients that are compared: those with the most requests."""


def service_difference(table: RequestTable, records: NDArray[Any], end: float) -> float:
    """Return the largest difference between the services that two clients receive while both wait.

    A client waits while one of its requests has arrived and was not admitted yet. Over any interval in which two
    clients wait, it is the difference of the services that they receive within it; the largest over all intervals and
    pairs counts, NaN if no two clients ever wait at once. A finished request's prompt counts when its first token
    appears, its output evenly from then until it finishes. Requests that have not finished do not count.

    Args:
        table: the requests, with clients.
        records: their records, dtype REQUEST, (n,).
        end: end of the run, seconds.
    """
    assert table.client_id is not None
    start = np.where(np.isnan(records["start_time"]), end, records["start_time"])
    first, last = records["first_token_time"], records["finish_time"]
    clients, count = np.unique(table.client_id, return_counts=True)
    compared = clients[np.argsort(-count, kind="stable")[:MOST_CLIENTS]]
    done = ~np.isnan(last)
    times = np.unique(np.concatenate([table.arrival_time, start, first[done], last[done]]))
    services, waits = [], []
    for client in compared.tolist():
        mine = table.client_id == client
        services.append(_service(times, table, first, last, mine & done))
        waits.append(_steps(times, table.arrival_time[mine], start[mine])[:-1] > 0)
    largest = np.nan
    for a, b in itertools.combinations(range(len(compared)), 2):
        largest = np.fmax(largest, _widest(services[a] - services[b], waits[a] & waits[b]))
    return float(largest)


def client_means(table: RequestTable, values: NDArray[np.float64], counted: Any) -> NDArray[np.float64]:
    """Return the sum of values of each client's counted requests divided by their number, in order of client.

    Args:
        table: the requests, with clients.
        values: a number of each request, (n,).
        counted: bool (n,), requests that count; clients without any are left out.
    """
    assert table.client_id is not None
    _, place = np.unique(table.client_id[counted], return_inverse=True)
    return np.asarray(np.bincount(place, values[counted]) / np.bincount(place))


def jain_index(rates: NDArray[np.float64]) -> float:
    """Return Jain's index of rates, NaN if there are none: (Σx)² / (n Σx²), 1 = equal."""
    if not len(rates):
        return float("nan")
    squares = len(rates) * float((rates**2).sum())
    return float(rates.sum()) ** 2 / squares if squares > 0 else float("nan")


def _steps(
    times: NDArray[np.float64], up: NDArray[np.float64], down: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return how many of some intervals contain each time, ends excluded, int64 (m,)."""
    change = np.zeros(len(times), np.int64)
    np.add.at(change, np.searchsorted(times, up), 1)
    np.add.at(change, np.searchsorted(times, down), -1)
    return np.cumsum(change)


def _service(
    times: NDArray[np.float64], table: RequestTable, first: Any, last: Any, mine: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the service that some finished requests have received by each time, (m,)."""
    f, c = first[mine], last[mine]
    prompt, output = PROMPT_WEIGHT * table.prompt_len[mine], OUTPUT_WEIGHT * table.output_len[mine]
    at_once = c <= f
    jumps, slope = np.zeros(len(times)), np.zeros(len(times))
    np.add.at(jumps, np.searchsorted(times, f), prompt + np.where(at_once, output, 0.0))
    rate = np.where(at_once, 0.0, output / np.where(at_once, 1.0, c - f))
    np.add.at(slope, np.searchsorted(times, f), rate)
    np.add.at(slope, np.searchsorted(times, c), -rate)
    spread = np.cumsum(np.cumsum(slope)[:-1] * np.diff(times))
    return np.asarray(np.cumsum(jumps) + np.concatenate([[0.0], spread]), np.float64)


def _widest(difference: NDArray[np.float64], both: NDArray[np.bool_]) -> float:
    """Return the largest range of a difference, (m,), within runs of True of the m - 1 intervals, NaN without any."""
    edges = np.diff(np.concatenate([[False], both, [False]]).astype(np.int8))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return float("nan")
    extended = np.append(difference, difference[-1])
    bounds = np.column_stack([begins, ends + 1]).ravel()
    high, low = np.maximum.reduceat(extended, bounds)[::2], np.minimum.reduceat(extended, bounds)[::2]
    return float((high - low).max())
