"""Compiled: schedules by order of insertion, and simulated annealing over orders."""

from __future__ import annotations

import math
from typing import Any

from kvgym.simulator.compiled import jit, kernel

TOTAL, END, LONGEST = 0, 1, 2  # what is to be small: total latency, the last completion, the longest latency
TIE = 1e-7  # of the total latency, where something else is to be small: gives the search a slope


@jit
def first_fit(i: Any, begin: Any, prompt: Any, output: Any, memory: Any, used: Any) -> Any:
    """Return the first moment from ``begin`` on at which request i fits beside what memory is used for.

    Where slot u has too little room at its j-th token, it must come j' < j tokens far by then, or start after.
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
    prompt: Any,
    output: Any,
    memory: Any,
    goal: Any,
    used: Any,
    starts: Any,
) -> Any:
    """Put requests one after the other where each fits first; return what is to be small."""
    for u in range(len(used)):
        used[u] = 0
    total, end, longest = 0, 0, 0
    for i in order:
        k = first_fit(i, arrival[i], prompt, output, memory, used)
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


@kernel("float64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def place(
    order: Any, arrival: Any, prompt: Any, output: Any, memory: Any, goal: Any, used: Any, starts: Any
) -> Any:
    """Fill ``starts`` with the schedule of an order and return its value.

    Args:
        order: int64 (n,), ids.
        arrival: int64 (n,).
        prompt: int64 (n,).
        output: int64 (n,).
        memory: M.
        goal: :data:`TOTAL`, :data:`END` or :data:`LONGEST`.
        used: scratch, int64 (longest schedule + 1,).
        starts: filled, int64 (n,).
    """
    return insert_all(order, arrival, prompt, output, memory, goal, used, starts)


@kernel(
    "float64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], "
    "int64[::1], int64[::1], float64[:, ::1], float64, float64)"
)
def anneal(
    order: Any,
    arrival: Any,
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
    """Change the order by swaps and moves of one request, keeping worse ones ever more rarely.

    Args:
        order: where it begins, and ends, int64 (n,).
        arrival: int64 (n,).
        prompt: int64 (n,).
        output: int64 (n,).
        memory: M.
        goal: what is to be small.
        used: scratch, as for :func:`place`.
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
    current = insert_all(order, arrival, prompt, output, memory, goal, used, starts)
    best = current
    for i in range(n):
        best_starts[i] = starts[i]
    for t in range(tries):
        p, q = int(uniforms[t, 0] * n), int(uniforms[t, 1] * n)
        if p == q:
            continue
        for r in range(n):
            trial[r] = order[r]
        moved = trial[p]
        if uniforms[t, 2] < 0.5:
            trial[p] = trial[q]
        elif p < q:
            for r in range(p, q):
                trial[r] = trial[r + 1]
        else:
            for r in range(p, q, -1):
                trial[r] = trial[r - 1]
        trial[q] = moved
        value = insert_all(trial, arrival, prompt, output, memory, goal, used, starts)
        temperature = hot * (cold / hot) ** (t / tries)
        if value <= current or uniforms[t, 3] < math.exp((current - value) / temperature):
            current = value
            for r in range(n):
                order[r] = trial[r]
            if value < best:
                best = value
                for i in range(n):
                    best_starts[i] = starts[i]
    return best
