"""The weights of ``ranked``: names, defaults set by hand, ranges, in the order of the rule's parameters."""

from __future__ import annotations

from kvgym.policy import Weight

WEIGHTS: tuple[Weight, ...] = (
    Weight("prompt", 0.1, 0.15, 0.0, 10.0),
    Weight("footprint", 1.5, 0.3, -1.0, 5.0),
    Weight("attained", 0.5, 0.2, 0.0, 5.0),
    Weight("held", 0.1, 0.2, 0.0, 5.0),
    Weight("waiting", 5.0, 1.0, -10.0, 100.0),
    Weight("waiting_pressure", 0.0, 0.2, -10.0, 10.0),
    Weight("slack", 0.5, 0.3, -5.0, 10.0),
    Weight("urgent", 10.0, 3.0, -20.0, 50.0),
    Weight("lost", 10.0, 3.0, -20.0, 50.0),
    Weight("gate", 2.1, 0.3, -10.0, 100.0),
    Weight("gate_busy", 0.33, 0.1, 0.0, 1.0),
    Weight("value", 0.0, 0.05, -1.0, 2.0),
    Weight("prefill_value", 0.5, 0.2, 0.0, 10.0),
    Weight("prefill_pressure", 0.4, 0.3, -5.0, 5.0),
    Weight("prefill_room", 2.0, 0.5, -5.0, 10.0),
    Weight("cost", 1.2, 0.2, 0.0, 5.0),
    Weight("cost_pressure", 0.0, 0.1, -2.0, 2.0),
    Weight("cost_room", 0.0, 0.3, -4.0, 4.0),
    Weight("cost_waiting", 0.0, 0.3, -4.0, 4.0),
    Weight("cost_active", 0.0, 0.1, -2.0, 2.0),
    Weight("cost_least", 0.0, 0.1, 0.0, 5.0),
    Weight("late", 1.0, 0.4, 0.0, 50.0),
    Weight("free", 0.005, 0.01, 0.0, 0.9),
    Weight("growth", 2.0, 1.0, 0.0, 50.0),
    Weight("evict_kv", 0.0, 0.3, -5.0, 1.0),
)
"""What each is stands in :class:`kvgym.baselines.ranked.scheduler.Ranked`."""

MOST_UNITS = 64
"""Units of the network at most."""
