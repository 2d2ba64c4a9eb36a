"""What is known in advance about a class of requests: how often they come and how long they are on average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvgym.errors import WorkloadError


@dataclass(frozen=True)
class ClassStatistics:
    """A class of requests in the long run.

    Attributes:
        name: name of the class.
        rate: arrivals per second.
        prompt_len: mean prompt length, tokens.
        output_len: mean output length, tokens.
    """

    name: str
    rate: float
    prompt_len: float
    output_len: float

    def __post_init__(self) -> None:
        """Check the figures.

        Raises:
            WorkloadError: one is not a positive number.
        """
        for label in ("rate", "prompt_len", "output_len"):
            value = getattr(self, label)
            if not (np.isfinite(value) and value > 0):
                raise WorkloadError(f"class {self.name!r}: {label} = {value!r}; expected a positive number")
