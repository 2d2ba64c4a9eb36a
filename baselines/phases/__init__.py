"""Schedulers whose batches never mix phases: one prefill alone, or only decodes."""

from kvgym.baselines.phases import disaggregated, rad

__all__ = ["disaggregated", "rad"]
