"""Ends of commands that go on until a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the context at Ctrl-C (SIGINT) or SIGTERM, in place of the process.

    Shells start background jobs with SIGINT ignored; a command that would go on for ever answers it all the same.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
