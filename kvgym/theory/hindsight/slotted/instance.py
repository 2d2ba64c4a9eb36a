"""Requests in slotted time as whole numbers, and the memory that a schedule of them needs.

The model is the integer program of Jaillet et al., "Online Scheduling for LLM Inference with KV Cache
Constraints", Section 3: a request that starts at moment k holds s + 1, …, s + o tokens in the slots k + 1, …,
k + o (slot u is the time from u - 1 to u) and completes at k + o. The engine does the same with ``batch_time`` ``unit``
and whole prompts, ``first_token="counted"``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvgym.errors import ConfigError, WorkloadError
from kvgym.utils.checks import whole_number
from kvgym.workloads.table import RequestTable

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SlottedRequests:
    """Requests of a run in slotted time; built by :func:`slotted_requests`.

    Attributes:
        arrival: int64 (n,), the first slot boundary at which each may start, ascending.
        prompt: int64 (n,), s, tokens.
        output: int64 (n,), o, tokens and slots.
        memory: M, tokens.
    """

    arrival: Ints
    prompt: Ints
    output: Ints
    memory: int

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival)

    @property
    def peak(self) -> Ints:
        """Tokens that each holds in its last slot, s + o, int64 (n,)."""
        return self.prompt + self.output

    @property
    def volume(self) -> Ints:
        """Memory of each summed over its slots, s·o + o(o + 1)/2, tokens × slots, int64 (n,)."""
        return self.prompt * self.output + self.output * (self.output + 1) // 2

    @property
    def end_of_any(self) -> int:
        """A moment by which every schedule has ended that never idles without need."""
        return int(self.arrival.max(initial=0) + self.output.sum())

    def usage(self, starts: ArrayLike) -> Ints:
        """Return the memory that a schedule takes in each slot, tokens, int64; entry u is slot u, entry 0 is 0.

        Args:
            starts: whole numbers (n,), the moments at which the requests start.
        """
        begin = np.asarray(starts, np.int64)
        used = np.zeros(int((begin + self.output).max(initial=0)) + 1, np.int64)
        for start, prompt, output in zip(begin, self.prompt, self.output, strict=True):
            used[start + 1 : start + output + 1] += prompt + np.arange(1, output + 1)
        return used

    def check(self, starts: ArrayLike) -> Ints:
        """Return a schedule as int64 (n,) after checking it against (2) to (4) of the integer program.

        Args:
            starts: the moments at which the requests start, (n,).

        Raises:
            ConfigError: it has another shape, starts a request before its arrival or between slots, or exceeds the
                memory.
        """
        given = np.asarray(starts, np.float64)
        if given.shape != self.arrival.shape:
            raise ConfigError(f"a schedule of {len(self)} requests has {len(self)} starts, got {given.shape}")
        if not np.array_equal(given, np.round(given)):
            raise ConfigError("a schedule in slotted time starts requests at whole numbers")
        begin = given.astype(np.int64)
        if (early := np.flatnonzero(begin < self.arrival)).size:
            i = int(early[0])
            raise ConfigError(f"request {i} starts at {begin[i]}, but arrives at {self.arrival[i]}")
        used = self.usage(begin)
        if used.max(initial=0) > self.memory:
            slot = int(np.argmax(used > self.memory))
            raise ConfigError(f"slot {slot} needs {used[slot]} tokens of memory, there are {self.memory}")
        return begin


MOST_MEMORY = 100_000_000
"""Most tokens of memory in slotted time: bounds store a number for each."""


def slotted_requests(table: RequestTable, memory: int) -> SlottedRequests:
    """Return the requests of a table in slotted time, one slot a second.

    Args:
        table: the requests; they arrive at whole seconds.
        memory: M, tokens.

    Raises:
        ConfigError: requests arrive between slots, or the memory is not a whole number up to :data:`MOST_MEMORY`.
        WorkloadError: a request needs more than the whole memory.
    """
    memory = whole_number(
        memory, "memory", f"a whole number of tokens, 1 … {MOST_MEMORY:,}", most=MOST_MEMORY
    )
    arrival = np.round(table.arrival_time).astype(np.int64)
    if not np.array_equal(arrival, table.arrival_time):
        row = int(np.argmax(arrival != table.arrival_time))
        raise ConfigError(
            f"slotted time needs arrivals at whole numbers; request {row} arrives at {table.arrival_time[row]:g}"
        )
    requests = SlottedRequests(arrival, table.prompt_len.copy(), table.output_len.copy(), int(memory))
    if (too_long := np.flatnonzero(requests.peak > memory)).size:
        row = int(too_long[0])
        raise WorkloadError(
            f"request {row} needs {requests.peak[row]} tokens of memory, there are {memory}; drop or clip it"
        )
    return requests
