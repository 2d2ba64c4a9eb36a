"""The memory that policies leave free when they admit requests: their hyperparameter ``protection``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgym.policies.hyperparameters import fraction, fraction_of
from kvgym.policies.policy import CompiledPolicy, SystemInfo

MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
"""Fractions that a search tries."""

PROTECTION: Any = fraction(
    0.0, search=MARGINS, meaning="fraction of the capacity that admission leaves free, in [0, 1)"
)


class Protected(CompiledPolicy):
    """Base class of policies with a watermark: their kernels read the memory that admission may fill, ``limit``."""

    protection: float = fraction(0.0, search=(*MARGINS, 0.4, 0.5))
    """fraction of the capacity that admission leaves free, in [0, 1); an empty worker admits its first request
    regardless."""

    def computed(self, system: SystemInfo) -> Mapping[str, float]:
        """Return the admission threshold, tokens."""
        return {"limit": fraction_of(system.kv_capacity, self.protection)}
