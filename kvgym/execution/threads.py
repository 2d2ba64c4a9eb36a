"""A call beside the main thread, which meanwhile hears Ctrl-C and knows what time it is."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_LISTEN = 0.1
"""Seconds after which the main thread looks up."""


def call_in_thread(function: Callable[[], Result], seconds: float | None = None) -> Result:
    """Return what a function returns, or raise what it raises.

    It is called in a thread, so that libraries at work in it, which do not return to Python for long but let other
    threads run, cannot keep Ctrl-C from being heard. What is given up ends with the process, without effects.

    Args:
        function: it is not called again.
        seconds: how long to wait; None = as long as it takes.

    Raises:
        TimeoutError: it has not returned by then.
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
    ):  # a join without a limit does not hear Ctrl-C
        thread.join(min(_LISTEN, left))
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
