"""Compiled runs in slices: between two of them Ctrl-C is heard, and whoever listens is told how far the run is.

A slice is a number of decisions, chosen so that it takes about :data:`SECONDS`; a run in slices has the bits of a run
in one piece.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from kvgym.simulator.tables import BUDGET

SECONDS = 0.1
"""What a slice should take: nobody waits longer for Ctrl-C."""

FIRST = 16_384
"""Decisions of the first slice of a call, about 10 ms; a call itself costs 0.1 ms. Where there are more requests than
:data:`MANY` it is less by that, as a decision may look at all of them."""

MANY = 10_000

GROWTH = 16.0
"""How many times as long as the one before a slice may be."""

Listener = Callable[[float], None]


class _Ear:
    """A listener, and when it was last told."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.last = listener, -math.inf


_ear: ContextVar[_Ear | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell a listener, in the block, how far the simulations of this process are.

    Args:
        listener: called with the share of a run that is done, 0 to 1, every :data:`SECONDS` or less often.
    """
    token = _ear.set(_Ear(listener))
    try:
        yield
    finally:
        _ear.reset(token)


def tell(simulation: Any) -> None:
    """Tell the listener, if there is one and it is time, how far a simulation is."""
    ear = _ear.get()
    if ear is None or (now := time.perf_counter()) - ear.last < SECONDS:
        return
    ear.last = now
    share = float(simulation.workers["total_finished"].sum()) / max(len(simulation.requests), 1)
    clock, horizon = float(simulation.workers["clock"].min()), simulation.system.horizon
    ear.listener(min(1.0, max(share, clock / horizon if horizon > 0 else 1.0)))


def in_slices(advance: Callable[[int], int], budget: int | None, simulation: Any) -> int:
    """Call the compiled core until it stops for another reason than the end of a slice, or the budget is used up.

    Args:
        advance: makes at most so many decisions, and returns why it stopped, ``BUDGET`` where they are made.
        budget: decisions in all; None = as many as it takes.
        simulation: what runs, for listeners.

    Returns:
        The last status.
    """
    size = max(64, FIRST * MANY // max(MANY, len(simulation.requests)))
    left = math.inf if budget is None else budget
    while True:
        most = int(min(size, left))
        started = time.perf_counter()
        status = advance(most)
        left -= most
        if status != BUDGET or left <= 0:
            return status
        spent = time.perf_counter() - started
        size = max(1, int(size * min(GROWTH, SECONDS / max(spent, 1e-9))))
        tell(simulation)
