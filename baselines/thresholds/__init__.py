"""WAIT and Nested WAIT, which wait until enough requests are there."""

from kvgym.baselines.thresholds import nested_wait, wait

__all__ = ["nested_wait", "wait"]
