"""The weights of ``ranked`` in parameter order: name, default (set by hand), step, range and meaning."""

from __future__ import annotations

from kvgym.policies.policy import Weight

WEIGHTS: tuple[Weight, ...] = (
    Weight("prompt", 0.1, 0.15, 0.0, 10.0, meaning=
        "weight of a prompt token in the remaining work, in output tokens"),
    Weight("footprint", 1.5, 0.3, -1.0, 5.0, meaning=
        "weight of the mean memory of a request until it finishes, relative to its work"),
    Weight("attained", 0.5, 0.2, 0.0, 5.0, meaning=
        "bonus for the output that a request already has"),
    Weight("held", 0.1, 0.2, 0.0, 5.0, meaning=
        "bonus for the KV that an active request holds"),
    Weight("waiting", 5.0, 1.0, -10.0, 100.0, meaning=
        "penalty of a waiting request against an equal active one"),
    Weight("waiting_pressure", 0.0, 0.2, -10.0, 10.0, meaning=
        "added to the weight waiting, times log(1 + waiting / (1 + active))"),
    Weight("slack", 0.5, 0.3, -5.0, 10.0, meaning=
        "bonus for a deadline, per e-fold that its slack is below e^8 batches"),
    Weight("urgent", 10.0, 3.0, -20.0, 50.0, meaning=
        "bonus for a deadline that would be missed by waiting for another batch"),
    Weight("lost", 10.0, 3.0, -20.0, 50.0, meaning=
        "penalty of a request that has missed an objective, or is bound to"),
    Weight("gate", 2.1, 0.3, -10.0, 100.0, meaning=
        "while the worker is busy, no request begins that expects more than e^gate times the usual output"),
    Weight("gate_busy", 0.33, 0.1, 0.0, 1.0, meaning=
        "a worker is busy if its last batch took more than 1 / (1 - gate_busy) times the shortest"),
    Weight("value", 0.0, 0.05, -1.0, 2.0, meaning=
        "a token has the worth exp(-value * score)"),
    Weight("prefill_value", 0.5, 0.2, 0.0, 10.0, meaning=
        "worth of a prompt token per unit of time, relative to a decode"),
    Weight("prefill_pressure", 0.4, 0.3, -5.0, 5.0, meaning=
        "added to the logarithm of prefill_value, times log(1 + waiting / (1 + active))"),
    Weight("prefill_room", 2.0, 0.5, -5.0, 10.0, meaning=
        "added to prefill_pressure, times the free fraction of memory"),
    Weight("cost", 1.2, 0.2, 0.0, 5.0, meaning=
        "power of a batch's duration that divides its value"),
    Weight("cost_pressure", 0.0, 0.1, -2.0, 2.0, meaning=
        "added to the power cost, times log(1 + waiting / (1 + active))"),
    Weight("cost_room", 0.0, 0.3, -4.0, 4.0, meaning=
        "added to the power cost, times f / (f + 2,048), with f the free memory in tokens"),
    Weight("cost_waiting", 0.0, 0.3, -4.0, 4.0, meaning=
        "added to the power cost, times f / (f + 2,048) and the waiting share, waiting / (1 + active + waiting)"),
    Weight("cost_active", 0.0, 0.1, -2.0, 2.0, meaning=
        "added to the power cost, times log(1 + active)"),
    Weight("cost_least", 0.0, 0.1, 0.0, 5.0, meaning=
        "minimum of the power, after all additions"),
    Weight("late", 1.0, 0.4, 0.0, 50.0, meaning=
        "reduction of the logarithm of a batch's worth for each next token that it makes late"),
    Weight("free", 0.005, 0.01, 0.0, 0.9, meaning=
        "fraction of the memory that admission leaves free"),
    Weight("growth", 2.0, 1.0, 0.0, 50.0, meaning=
        "further memory that admission leaves free, in mean remaining outputs of the active requests"),
    Weight("evict_kv", 0.0, 0.3, -5.0, 1.0, meaning=
        "weight of the KV that a request holds in the choice of evictions"),
)  # fmt: skip
"""Hyperparameters of :class:`kvgym.baselines.ranked.scheduler.Ranked`."""

MOST_UNITS = 64
"""Maximum number of units of the network."""
