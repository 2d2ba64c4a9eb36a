"""Ends of commands that go on until a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the context at Ctrl-C (SIGINT) or SIGTERM, in place of ending the process.

    Shells start background jobs with SIGINT ignored; a command that would go on for ever answers it all the same.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the context at Ctrl-C or SIGTERM, see :func:`interruptible`."""
    with interruptible(), suppress(KeyboardInterrupt):
        yield
