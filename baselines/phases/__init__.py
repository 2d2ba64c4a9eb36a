"""Schedulers that never mix phases in a batch: one prefill alone, or decodes."""

from kvgym.baselines.phases import disaggregated, rad

__all__ = ["disaggregated", "rad"]
