"""Optima in hindsight in slotted time, where every batch takes one slot and only memory is scarce.

:func:`bound_slotted` is the entry point; the parts are the memory × time bounds (:mod:`.volume`), prices and chains
(:mod:`.prices`), local search (:mod:`.search`), the integer program (:mod:`.program`), and
:mod:`.replay`, which runs a schedule through the engine.
"""

from kvgym.theory.hindsight.slotted.bounds import SLOTTED_METRICS, bound_slotted

__all__ = ["SLOTTED_METRICS", "bound_slotted"]
