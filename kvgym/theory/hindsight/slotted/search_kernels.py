"""Compiled: schedules by order of insertion, and simulated annealing over orders."""

from __future__ import annotations

import math
from typing import Any

from kvgym.compiling.kernel import jit, kernel

TOTAL, END, LONGEST = 0, 1, 2  # what to minimise: total latency, the last completion, the longest latency
TIE = 1e-7  # weight of the total latency where something else is minimised: gives the search a slope


@jit
def first_fit(i: Any, begin: Any, prompt: Any, output: Any, memory: Any, used: Any) -> Any:
    """Return the first moment from ``begin`` on at which request i fits into the unused memory.

    Where slot u has too little room for its j-th token, it must have j' < j tokens by then, or start later.
    """
    k, j = begin, output[i]
    while j > 0:
        room = memory - used[k + j] - prompt[i]
        if room < j:
            k, j = k + j - max(room, 0), output[i]
        else:
            j -= 1
    return k


@jit
def insert_all(
    order: Any,
    arrival: Any,
    delay: Any,
    prompt: Any,
    output: Any,
    memory: Any,
    goal: Any,
    used: Any,
    starts: Any,
) -> Any:
    """Place requests one by one where each fits first after its delay; return the value to minimise."""
    for u in range(len(used)):
        used[u] = 0
    total, end, longest = 0, 0, 0
    for i in order:
        k = first_fit(i, arrival[i] + delay[i], prompt, output, memory, used)
        starts[i] = k
        for j in range(1, output[i] + 1):
            used[k + j] += prompt[i] + j
        done = k + output[i]
        total += done - arrival[i]
        end = max(end, done)
        longest = max(longest, done - arrival[i])
    if goal == TOTAL:
        return float(total)
    return (end if goal == END else longest) + TIE * total


@kernel(
    "float64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])",
    "bounds",
    nogil=True,
)
def place(
    order: Any,
    arrival: Any,
    delay: Any,
    prompt: Any,
    output: Any,
    memory: Any,
    goal: Any,
    used: Any,
    starts: Any,
) -> Any:
    """Fill ``starts`` with the schedule of an order and return its value.

    Args:
        order: int64 (n,), ids.
        arrival: int64 (n,).
        delay: int64 (n,), slots after its arrival before which a request does not start.
        prompt: int64 (n,).
        output: int64 (n,).
        memory: M.
        goal: :data:`TOTAL`, :data:`END` or :data:`LONGEST`.
        used: scratch, int64 (longest schedule + 1,).
        starts: filled, int64 (n,).
    """
    return insert_all(order, arrival, delay, prompt, output, memory, goal, used, starts)


@kernel(
    "float64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], "
    "int64[::1], int64[::1], float64[:, ::1], float64, float64)",
    "bounds",
    nogil=True,
)
def anneal(
    order: Any,
    arrival: Any,
    delay: Any,
    prompt: Any,
    output: Any,
    memory: Any,
    goal: Any,
    used: Any,
    starts: Any,
    trial: Any,
    best_starts: Any,
    uniforms: Any,
    hot: Any,
    cold: Any,
) -> Any:
    """Swap and move requests in the order and change delays, accepting worse results ever more rarely.

    Args:
        order: the initial order; overwritten by the last one, int64 (n,).
        arrival: int64 (n,).
        delay: the initial delays; overwritten by the last ones, int64 (n,).
        prompt: int64 (n,).
        output: int64 (n,).
        memory: M.
        goal: what to minimise.
        used: scratch, as for :func:`place`, with room for delays of twice the longest output.
        starts: scratch, int64 (n,).
        trial: scratch, int64 (n,).
        best_starts: filled with the best schedule, int64 (n,).
        uniforms: float64 (tries, 4), in [0, 1).
        hot: first temperature, in units of the value.
        cold: last temperature.

    Returns:
        The best value.
    """
    n, tries = len(order), len(uniforms)
    current = insert_all(order, arrival, delay, prompt, output, memory, goal, used, starts)
    best = current
    for i in range(n):
        best_starts[i] = starts[i]
    for t in range(tries):
        p, q, kind = int(uniforms[t, 0] * n), int(uniforms[t, 1] * n), uniforms[t, 2]
        one, kept = order[p], delay[order[p]]
        for r in range(n):
            trial[r] = order[r]
        if kind >= 0.8:  # the rest of this random number sets its delay
            delay[one] = 0 if kept > 0 else 1 + int((kind - 0.8) * 10 * output[order[q]])
        elif p == q:
            continue
        elif kind < 0.4:
            trial[p], trial[q] = trial[q], one
        else:
            step = 1 if p < q else -1
            for r in range(p, q, step):
                trial[r] = trial[r + step]
            trial[q] = one
        value = insert_all(trial, arrival, delay, prompt, output, memory, goal, used, starts)
        temperature = hot * (cold / hot) ** (t / tries)
        if value <= current or uniforms[t, 3] < math.exp((current - value) / temperature):
            current = value
            for r in range(n):
                order[r] = trial[r]
            if value < best:
                best = value
                for i in range(n):
                    best_starts[i] = starts[i]
        else:
            delay[one] = kept
    return best
