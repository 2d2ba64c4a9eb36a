"""Schedulers that never mix phases in a batch: it is one prefill alone, or only decodes."""

from kvgym.baselines.phases import disaggregated, rad

__all__ = ["disaggregated", "rad"]
