"""Run a call in a thread so that Ctrl-C and a timeout still work."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_POLL = 0.1
"""Longest time without a check for Ctrl-C and the timeout, seconds."""


def call_in_thread(function: Callable[[], Result], seconds: float | None = None) -> Result:
    """Call a function in a thread; return its result or raise its exception.

    Libraries that release the GIL but do not return to Python for a long time would block Ctrl-C in the main thread.
    After a timeout the thread keeps running in the background; its result is dropped.

    Args:
        function: called once.
        seconds: timeout; None = no limit.

    Raises:
        TimeoutError: it has not returned in time.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    end = math.inf if seconds is None else time.monotonic() + seconds
    while (
        thread.is_alive() and (left := end - time.monotonic()) > 0
    ):  # Ctrl-C does not interrupt a join without a timeout
        thread.join(min(_POLL, left))
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
