"""Optima in hindsight: bounds on what any scheduler could have reached on given requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvgym.utils.lazy import lazy_names

if TYPE_CHECKING:
    from kvgym.theory.hindsight.bounds import bound, is_slotted, unbeatable
    from kvgym.theory.hindsight.interval import Interval
    from kvgym.theory.hindsight.slotted import SLOTTED_METRICS, bound_slotted
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "bounds": "bound is_slotted unbeatable",
            "interval": "Interval",
            "slotted": "SLOTTED_METRICS bound_slotted",
        },
    )

__all__ = [
    "SLOTTED_METRICS",
    "Interval",
    "bound",
    "bound_slotted",
    "is_slotted",
    "unbeatable",
]
