"""WAIT and Nested WAIT, which let requests accumulate to thresholds before they run."""

from kvgym.baselines.thresholds import nested_wait, wait

__all__ = ["nested_wait", "wait"]
