"""Small random instances of slotted time, and their optimum by brute force."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from kvgym.workloads.table import RequestTable


def table_of(*rows: tuple[int, int, int]) -> RequestTable:
    """Return requests of (arrival, prompt, output), with exact predictions."""
    arrival, prompt, output = zip(*rows, strict=True)
    return RequestTable(arrival, prompt, output, predicted_output_len=output)


@st.composite
def small(draw: st.DrawFn, most: int = 6) -> tuple[RequestTable, int]:
    """Return requests and a memory that fits each of them alone."""
    memory = draw(st.integers(3, 14))
    rows = []
    for _ in range(draw(st.integers(1, most))):
        prompt = draw(st.integers(1, min(4, memory - 1)))
        rows.append((draw(st.integers(0, 6)), prompt, draw(st.integers(1, memory - prompt))))
    return table_of(*sorted(rows)), memory


def brute_force(table: RequestTable, memory: int, slots: int) -> tuple[int, int, int]:
    """Return the least total latency, last completion and longest latency over all starts within ``slots`` slots."""
    arrival, output = table.arrival_time.astype(int), table.output_len
    best = [10**9] * 3
    for starts in itertools.product(*(range(a, a + slots + 1) for a in arrival)):
        used = np.zeros(max(s + o for s, o in zip(starts, output, strict=True)) + 1, int)
        for start, prompt, out in zip(starts, table.prompt_len, output, strict=True):
            used[start + 1 : start + out + 1] += prompt + np.arange(1, out + 1)
        if used.max() <= memory:
            done = np.array(starts) + output
            values = ((done - arrival).sum(), done.max(), (done - arrival).max())
            best = [min(old, int(new)) for old, new in zip(best, values, strict=True)]
    return best[0], best[1], best[2]
