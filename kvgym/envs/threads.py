"""Threads that step the environments of a vector."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

Entry = Callable[[NDArray[Any]], int]
"""A stepping function, or its uncompiled twin."""


class Threads:
    """The threads that carry out orders, see :class:`~kvgym.envs.scheduling.memory.Arrays`.

    Args:
        orders: int64 (1 or 1 + T, w), the orders.
        taken: int64 (1 or 1 + T, 8), what threads have taken.
        compiled: False runs the parts in turn.
    """

    def __init__(self, orders: NDArray[Any], taken: NDArray[Any], *, compiled: bool) -> None:
        self._first, *self._parts = orders
        self._taken, self._compiled = taken, compiled
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def run(self, entry: Entry, meanwhile: Callable[[], None] | None) -> int:
        """Carry out all orders.

        Args:
            entry: the stepping function.
            meanwhile: is called once, unless an action is refused; by another thread while environments are stepped, if
                there is one.

        Returns:
            What the stepping function returns.
        """
        failed = entry(self._first)
        if failed == 0 and self._parts:
            return self._run_parts(entry, meanwhile)
        if failed == 0 and meanwhile is not None:
            meanwhile()
        return failed

    def _run_parts(self, entry: Entry, meanwhile: Callable[[], None] | None) -> int:
        """Run the parts, the first in this thread and each other one in its own; the last one begins ``meanwhile``."""
        first, *others, last = self._parts

        def run_last() -> int:
            if meanwhile is not None:
                meanwhile()  # other threads do not need the GIL now, and help with this part
            return entry(last)

        self._taken[:] = 0
        if not self._compiled:
            return max(*map(entry, (first, *others)), run_last())
        waiting = [*(self._submit(entry, order) for order in others), self._submit(run_last)]
        return max(entry(first), *(found.result() for found in waiting))

    def _submit(self, function: Callable[..., int], *arguments: Any) -> Any:
        """Let a thread call a function."""
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not outlive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(len(self._parts) - 1, "kvgym")
        return self._pool[1].submit(function, *arguments)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool[1].shutdown()
            self._pool = None
