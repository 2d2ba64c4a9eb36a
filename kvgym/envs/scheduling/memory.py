"""The tables of one environment in one block of memory, opened inside compiled code by address.

A compiled call from Python pays for every array it is given, a structured one most of all: a step would
spend more time on its seventeen tables than on the simulation. Environments therefore hand over one array of
addresses. The block keeps an environment's tables together, which is kind to the cache when many
environments are stepped in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvgym.envs.scheduling.tables import EPISODE
from kvgym.simulator.rule import MEMORY_DTYPES, RuleMemory
from kvgym.simulator.tables import (
    DECISION,
    ITERATION,
    LOAD,
    PROBLEM,
    REQUEST,
    SLOT,
    TRACKER,
    WORKER,
    WORKLOAD,
)

RULE_TABLES = tuple(f"rule_{name}" for name in RuleMemory._fields)
"""Names of the tables that hold the memory of a kind's rule, in the order of :class:`RuleMemory`."""


class Sizes(NamedTuple):
    """Lengths that decide the layout of a block.

    Attributes:
        num_requests: n, requests an episode can hold.
        slots: A, active requests at most.
        window: Q, length of the queue window.
        heap: room of the heap of waiting requests outside the window, 0 if the window follows the queue.
        gap_bins: bins of the histogram of token gaps, 0 for none.
        rule: lengths of the memory of a kind's rule: parameters, whole numbers, real numbers, profile.
        terms: numbers that registered reward terms remember.
    """

    num_requests: int
    slots: int
    window: int
    heap: int
    gap_bins: int
    rule: tuple[int, ...] = (0, 0, 0, 0)
    terms: int = 0

    def layout(self) -> tuple[tuple[str, Any, int], ...]:
        """Return (name, dtype, length) of every table, in the order of the address array."""
        n, slots = self.num_requests, self.slots
        return (
            ("problem", PROBLEM, 1),
            ("tracker", TRACKER, 1),
            ("workers", WORKER, 1),
            ("decision", DECISION, 1),
            ("load", LOAD, 1),
            ("episode", EPISODE, 1),
            ("window", np.int32, self.window),
            ("heap", np.int64, self.heap),
            ("workload", WORKLOAD, n),
            ("requests", REQUEST, n),
            ("active", SLOT, slots),
            ("targets", np.int32, slots),
            ("queued", np.int32, 2 * n),
            ("finished", np.int32, slots),
            ("admit", np.int32, slots),
            ("admit_tokens", np.int32, slots),
            ("evict", np.int32, slots),
            ("gap_counts", np.int64, self.gap_bins),
            ("gap_sums", np.float64, self.gap_bins),
            ("log", ITERATION, 0),
            *zip(RULE_TABLES, MEMORY_DTYPES, self.rule, strict=True),
            ("terms", np.float64, self.terms),
        )


NUM_TABLES = len(Sizes(1, 1, 1, 1, 1).layout())


def rule_tables(memory: RuleMemory | None) -> dict[str, NDArray[Any]]:
    """Return the memory of a rule by the names of its tables; tables of length 0 where there is no rule."""
    arrays = memory if memory is not None else [np.zeros(0, dtype) for dtype in MEMORY_DTYPES]
    return dict(zip(RULE_TABLES, arrays, strict=True))


def control_row(tables: Sequence[NDArray[Any]], settings: NDArray[Any]) -> NDArray[np.int64]:
    """Return what a call of the stepping functions is given of an environment, int64 (2 NUM_TABLES + 1,).

    Addresses of the tables in the order of :meth:`Sizes.layout`, their lengths, and the address of the settings.
    The caller keeps all of them alive.
    """
    places = [table.ctypes.data for table in tables]
    return np.array([*places, *(table.size for table in tables), settings.ctypes.data], np.int64)


class Block:
    """The memory of one environment: tables by name, and where they are.

    Attributes:
        tables: name -> array, all views of one buffer.
        memory: uint8, all of it.
        sizes: its sizes.
        control: int64 (2 NUM_TABLES + 1,), see :func:`control_row`.
    """

    def __init__(self, sizes: Sizes, settings: NDArray[Any]) -> None:
        """Allocate a zeroed block for an environment with the given SETTINGS record, shape (1,)."""
        self.sizes = sizes
        layout = sizes.layout()
        offsets, total = [], 0
        for _, dtype, length in layout:
            offsets.append(total)
            total += -(-np.dtype(dtype).itemsize * length // 64) * 64  # start tables on cache lines
        self._buffer: NDArray[np.uint8] = np.zeros(total + 64, np.uint8)
        start = -self._buffer.ctypes.data % 64
        self.memory = self._buffer[start : start + total]
        self.tables: dict[str, Any] = {}
        for k, (name, dtype, length) in enumerate(layout):
            begin = start + offsets[k]
            self.tables[name] = self._buffer[begin : begin + np.dtype(dtype).itemsize * length].view(dtype)
        self.control = control_row(list(self.tables.values()), settings)

    def clear(self) -> None:
        """Set every byte to zero."""
        self._buffer.fill(0)

    def __getitem__(self, name: str) -> Any:
        """Return a table."""
        return self.tables[name]
