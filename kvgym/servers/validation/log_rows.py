"""A request of a server's log, as readers of all formats return it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
    """One request of a log.

    Attributes:
        arrival_time: seconds of any clock.
        prompt_len: tokens.
        output_len: tokens.
        ttft: seconds from arrival to first token.
        e2e_latency: seconds from arrival to last token.
        reason: why the request cannot be compared; "" if it can.
        warm_up: whether it was only sent to warm the server up.
    """

    arrival_time: float = math.nan
    prompt_len: float = math.nan
    output_len: float = math.nan
    ttft: float = math.nan
    e2e_latency: float = math.nan
    reason: str = ""
    warm_up: bool = False

    def problem(self) -> str:
        """Return why the request cannot be compared, "" if it can."""
        if self.reason:
            return self.reason
        if not (self.prompt_len >= 1 and self.output_len >= 1):
            return "no output tokens" if self.output_len == 0 else "no lengths"
        return "" if np.isfinite([getattr(self, name) for name in NUMBERS]).all() else "no times"


NUMBERS = ("arrival_time", "prompt_len", "output_len", "ttft", "e2e_latency")
"""The numbers of a :class:`Row`."""


def number(value: Any) -> float:
    """Return a number of a JSON file, NaN for null."""
    return math.nan if value is None else float(value)
