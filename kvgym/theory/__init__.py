"""Theory of the papers: fluid models, stability, thresholds and bounds, computed without a simulation.

One module per subject; arguments are numbers, batch-time models, statistics of classes and tables of requests. What
only reproductions of papers compute is in scripts/reproduce/formulas.
May import :mod:`kvgym.metrics` and what is below it; may be imported from :mod:`kvgym.baselines` and above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.theory import (
        buffers,
        flow,
        fluid,
        groups,
        hindsight,
        nested,
        stability,
        time_varying,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {},
        "buffers flow fluid groups hindsight nested stability time_varying",
    )

__all__ = [
    "buffers",
    "flow",
    "fluid",
    "groups",
    "hindsight",
    "nested",
    "stability",
    "time_varying",
]
