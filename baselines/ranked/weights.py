"""The weights of ``ranked``: names, defaults set by hand, steps, ranges, meanings, in the order of its parameters."""

from __future__ import annotations

from kvgym.policy import Weight

WEIGHTS: tuple[Weight, ...] = (
    Weight("prompt", 0.1, 0.15, 0.0, 10.0, meaning=
        "weight of a prompt token in the work left, output tokens"),
    Weight("footprint", 1.5, 0.3, -1.0, 5.0, meaning=
        "weight of the mean memory of a request until it ends, beside its work"),
    Weight("attained", 0.5, 0.2, 0.0, 5.0, meaning=
        "how far the output so far brings a request forward"),
    Weight("held", 0.1, 0.2, 0.0, 5.0, meaning=
        "how far the KV held brings an active request forward"),
    Weight("waiting", 5.0, 1.0, -10.0, 100.0, meaning=
        "how far a waiting request is behind an equal active one"),
    Weight("waiting_pressure", 0.0, 0.2, -10.0, 10.0, meaning=
        "the same, times log(1 + waiting / (1 + active))"),
    Weight("slack", 0.5, 0.3, -5.0, 10.0, meaning=
        "how far a deadline brings a request forward, per e-fold that its slack is below e^8 batches"),
    Weight("urgent", 10.0, 3.0, -20.0, 50.0, meaning=
        "how far a deadline that does not outlast another batch brings a request forward"),
    Weight("lost", 10.0, 3.0, -20.0, 50.0, meaning=
        "how far a request that has missed its objectives, or is bound to, is set back"),
    Weight("gate", 2.1, 0.3, -10.0, 100.0, meaning=
        "a request with more than e^gate times the usual output to come does not begin while the worker is "
        "busy"),
    Weight("gate_busy", 0.33, 0.1, 0.0, 1.0, meaning=
        "a worker is busy if its last batch took more than 1 / (1 - gate_busy) times the shortest"),
    Weight("value", 0.0, 0.05, -1.0, 2.0, meaning=
        "a token is worth exp(-value * score)"),
    Weight("prefill_value", 0.5, 0.2, 0.0, 10.0, meaning=
        "worth of the time of a prompt token, that of a decode being 1"),
    Weight("prefill_pressure", 0.4, 0.3, -5.0, 5.0, meaning=
        "the logarithm of the same, times log(1 + waiting / (1 + active))"),
    Weight("prefill_room", 2.0, 0.5, -5.0, 10.0, meaning=
        "the same, times that logarithm and the fraction of the memory that is not allocated"),
    Weight("cost", 1.2, 0.2, 0.0, 5.0, meaning=
        "power of a batch's duration that its worth is divided by"),
    Weight("cost_pressure", 0.0, 0.1, -2.0, 2.0, meaning=
        "the same, times log(1 + waiting / (1 + active))"),
    Weight("cost_room", 0.0, 0.3, -4.0, 4.0, meaning=
        "the same, times f / (f + 2,048), f being the tokens for which there is free memory"),
    Weight("cost_waiting", 0.0, 0.3, -4.0, 4.0, meaning=
        "the same, times f / (f + 2,048) and the share of those present that wait, waiting / (1 + active + "
        "waiting)"),
    Weight("cost_active", 0.0, 0.1, -2.0, 2.0, meaning=
        "the same, times log(1 + active)"),
    Weight("cost_least", 0.0, 0.1, 0.0, 5.0, meaning=
        "the power is at least this"),
    Weight("late", 1.0, 0.4, 0.0, 50.0, meaning=
        "how much less a batch is worth for each next token that it makes late, a logarithm"),
    Weight("free", 0.005, 0.01, 0.0, 0.9, meaning=
        "fraction of the memory that admission leaves free"),
    Weight("growth", 2.0, 1.0, 0.0, 50.0, meaning=
        "what admission leaves free besides, in mean outputs still to come of the active requests"),
    Weight("evict_kv", 0.0, 0.3, -5.0, 1.0, meaning=
        "how far the KV held brings a request nearer to eviction, where memory is too tight"),
)  # fmt: skip
"""Hyperparameters of :class:`kvgym.baselines.ranked.scheduler.Ranked`."""

MOST_UNITS = 64
"""Units of the network at most."""
