"""The least total latency of a few requests, from every schedule: a check on the integer program.

It shares nothing with the program, its relaxations or the local search but the requests. Schedules are built in the
order of their starts; a branch is cut where its cost so far plus a lower bound on the rest reaches the best schedule
found.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvgym.compiling.kernel import jit, kernel
from kvgym.errors import ConfigError
from kvgym.theory.hindsight.slotted.instance import Ints, SlottedRequests

MOST_REQUESTS = 14


class Optimum(NamedTuple):
    """The least total latency in slots, and the starts of a schedule that has it, int64 (n,)."""

    total: int
    starts: Ints


def exact_search(requests: SlottedRequests, *, patience: int = 2_000_000_000) -> Optimum | None:
    """Return the optimum, or ``None`` if the search runs out of patience.

    Args:
        requests: at most :data:`MOST_REQUESTS`, at least one.
        patience: the most placements (a request at a moment) to try; about ten million a second.

    Raises:
        ConfigError: too many requests, or none.
    """
    n = len(requests)
    if not 1 <= n <= MOST_REQUESTS:
        raise ConfigError(
            f"the exact search is for 1 to {MOST_REQUESTS} requests, got {n}; use the integer program"
        )
    one_by_one = np.zeros(n, np.int64)  # the first schedule: one after the other, shortest first
    clock = int(requests.arrival.max())
    for i in np.argsort(requests.output, kind="stable"):
        one_by_one[i] = clock
        clock += int(requests.output[i])
    total = int((one_by_one + requests.output - requests.arrival).sum())
    order = np.lexsort((requests.prompt, requests.output, requests.arrival))  # twins side by side
    columns = [np.ascontiguousarray(c[order]) for c in (requests.arrival, requests.prompt, requests.output)]
    starts = one_by_one[order]
    longest = int(requests.arrival.max()) + total + int(requests.volume.sum()) + 2
    scratch = [np.zeros(size, np.int64) for size in (longest, n, n, n, n + 1)]
    found = _search(
        *columns,
        requests.volume[order],
        requests.memory,
        total,
        patience,
        *scratch,
        np.zeros((2, n), np.int64),
        starts,
    )
    if found < 0:
        return None
    in_place = np.zeros(n, np.int64)
    in_place[order] = starts
    return Optimum(int(found), requests.check(in_place))


@jit
def _fits(i: Any, begin: Any, prompt: Any, output: Any, memory: Any, used: Any) -> Any:
    j = output[i]
    while j > 0 and used[begin + j] + prompt[i] + j <= memory:
        j -= 1
    return j == 0


@jit
def _rest_at_least(
    moment: Any,
    taken: Any,
    arrival: Any,
    output: Any,
    volume: Any,
    memory: Any,
    used: Any,
    key: Any,
) -> Any:
    """Return the least total latency of the requests not taken if none of them starts before ``moment``.

    Their m-th completion is no earlier than the m-th smallest of max(moment, a) + o, and than the free memory from
    ``moment`` on sums up to the m smallest volumes.
    """
    n, left, latency = len(arrival), 0, 0
    for i in range(n):
        if not taken[i]:
            latency -= arrival[i]
            at, alone, size = left, max(moment, arrival[i]) + output[i], volume[i]
            while at > 0 and key[0, at - 1] > alone:
                key[0, at] = key[0, at - 1]
                at -= 1
            key[0, at] = alone
            at = left
            while at > 0 and key[1, at - 1] > size:
                key[1, at] = key[1, at - 1]
                at -= 1
            key[1, at] = size
            left += 1
    slot, free, needed = moment, 0, 0
    for m in range(left):
        needed += key[1, m]
        while free < needed:
            slot += 1
            free += memory - used[slot]
        latency += max(slot, key[0, m])
    return latency


@jit
def _put(i: Any, begin: Any, prompt: Any, output: Any, used: Any, sign: Any) -> None:
    for j in range(1, output[i] + 1):
        used[begin + j] += sign * (prompt[i] + j)


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1], int64[:, ::1], int64[::1])",
    "bounds",
    nogil=True,
)
def _search(
    arrival: Any,
    prompt: Any,
    output: Any,
    volume: Any,
    memory: Any,
    above: Any,
    patience: Any,
    used: Any,
    taken: Any,
    chosen: Any,
    begin: Any,
    partial: Any,
    key: Any,
    best_starts: Any,
) -> Any:
    """Search for a schedule of smaller total latency than ``above``, depth first.

    Level d decides which request starts as the d-th and when, in ascending order of (moment, id).

    Args:
        arrival: int64 (n,).
        prompt: int64 (n,).
        output: int64 (n,).
        volume: int64 (n,), s·o + o(o + 1)/2.
        memory: M.
        above: the total latency to beat.
        patience: the most placements to try.
        used: scratch of zeros, int64; longer than any schedule.
        taken: scratch of zeros, int64 (n,).
        chosen: scratch, int64 (n,).
        begin: scratch, int64 (n,).
        partial: scratch, int64 (n + 1,).
        key: scratch, int64 (2, n).
        best_starts: filled with the best schedule, if one is found.

    Returns:
        The least total latency, ``above`` if there is no smaller one; -1 if patience ran out.
    """
    n, best, depth, tried = len(arrival), above, 0, 0
    partial[0] = 0
    chosen[0], begin[0] = -1, arrival[0]
    while depth >= 0:
        # The next placement after (begin, chosen) at this depth: the next id at this moment, else the next moment.
        i, moment = chosen[depth] + 1, begin[depth]
        if (
            depth < n
            and i == 0
            and partial[depth] + _rest_at_least(moment, taken, arrival, output, volume, memory, used, key)
            >= best
        ):
            i = -1  # any start from this moment on is too late
        found = False
        while i >= 0 and not found:
            while i < n and not found:
                tried += 1
                twin = i > 0 and not taken[i - 1] and arrival[i - 1] == arrival[i]
                twin = twin and prompt[i - 1] == prompt[i] and output[i - 1] == output[i]
                if (
                    not taken[i]
                    and not twin
                    and arrival[i] <= moment
                    and _fits(i, moment, prompt, output, memory, used)
                ):
                    found = True
                else:
                    i += 1
            if not found:
                moment += 1
                i = 0
                if (
                    partial[depth] + _rest_at_least(moment, taken, arrival, output, volume, memory, used, key)
                    >= best
                ):
                    i = -1
        if tried > patience:
            return -1
        if not found:
            depth -= 1
            if depth >= 0:
                i = chosen[depth]
                taken[i] = 0
                _put(i, begin[depth], prompt, output, used, -1)
            continue
        chosen[depth], begin[depth] = i, moment
        total = partial[depth] + moment + output[i] - arrival[i]
        if depth == n - 1:
            if total < best:
                best = total
                for d in range(n):
                    best_starts[chosen[d]] = begin[d]
            continue
        taken[i] = 1
        _put(i, moment, prompt, output, used, 1)
        depth += 1
        partial[depth] = total
        chosen[depth], begin[depth] = i, moment  # ids up to i have been decided on at this moment
    return best
