"""Compiled runs in slices: between slices, Ctrl-C is handled and progress is reported.

A slice is a number of decisions that takes about :data:`SECONDS`; a run in slices has the same bits as a run in one
piece.
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
"""Target duration of a slice, and so the longest delay of Ctrl-C."""

FIRST = 16_384
"""Decisions of the first slice of a call, about 10 ms; a call itself costs 0.1 ms.

With more requests than :data:`MANY` it shrinks in proportion, as a decision may examine all of them.
"""

MANY = 10_000

GROWTH = 16.0
"""Largest ratio of the sizes of consecutive slices."""

Listener = Callable[[float], None]


class _Subscription:
    """A listener, and when it was last called."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.last = listener, -math.inf


_subscription: ContextVar[_Subscription | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report the progress of simulations in this process to a listener, within a ``with`` block.

    Args:
        listener: called with the share of a run that is done, 0 to 1, at most once every :data:`SECONDS`.
    """
    token = _subscription.set(_Subscription(listener))
    try:
        yield
    finally:
        _subscription.reset(token)


def report_progress(simulation: Any) -> None:
    """Call the listener, if there is one and it is due, with the progress of a simulation."""
    subscription = _subscription.get()
    if subscription is None or (now := time.perf_counter()) - subscription.last < SECONDS:
        return
    subscription.last = now
    share = float(simulation.workers["total_finished"].sum()) / max(len(simulation.requests), 1)
    clock, horizon = float(simulation.workers["clock"].min()), simulation.system.horizon
    subscription.listener(min(1.0, max(share, clock / horizon if horizon > 0 else 1.0)))


def in_slices(advance: Callable[[int], int], budget: int | None, simulation: Any) -> int:
    """Call the compiled core in slices until it stops, or until the budget is used up.

    Args:
        advance: makes at most a given number of decisions, and returns why it stopped: ``BUDGET`` after that number.
        budget: decisions in total; None = no limit.
        simulation: the simulation, for listeners.

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
        report_progress(simulation)
