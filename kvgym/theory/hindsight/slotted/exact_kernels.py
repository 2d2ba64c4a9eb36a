"""Compiled: all schedules of a few requests in order of their starts, as far as a bound does not rule them out."""

from __future__ import annotations

from typing import Any

from kvgym.compiling.kernel import jit, kernel


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
def search(
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
    """Look for a schedule of smaller total latency than ``above``, depth first.

    Level d decides which request starts as the d-th and when, in ascending order of (moment, id).

    Args:
        arrival: int64 (n,).
        prompt: int64 (n,).
        output: int64 (n,).
        volume: int64 (n,), s·o + o(o + 1)/2.
        memory: M.
        above: schedules of this total latency are of no interest.
        patience: most places to look at.
        used: scratch of zeros, int64; longer than any schedule.
        taken: scratch of zeros, int64 (n,).
        chosen: scratch, int64 (n,).
        begin: scratch, int64 (n,).
        partial: scratch, int64 (n + 1,).
        key: scratch, int64 (2, n).
        best_starts: filled with the best schedule, if one is found.

    Returns:
        The least total latency, ``above`` if there is no smaller one; -1 if patience was at an end.
    """
    n, best, depth, looked = len(arrival), above, 0, 0
    partial[0] = 0
    chosen[0], begin[0] = -1, arrival[0]
    while depth >= 0:
        # The next place after (begin, chosen) at this depth: the next id at the moment, else the next moment.
        i, moment = chosen[depth] + 1, begin[depth]
        if (
            depth < n
            and i == 0
            and partial[depth] + _rest_at_least(moment, taken, arrival, output, volume, memory, used, key)
            >= best
        ):
            i = -1  # whatever starts from this moment on, it is too late
        found = False
        while i >= 0 and not found:
            while i < n and not found:
                looked += 1
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
        if looked > patience:
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
