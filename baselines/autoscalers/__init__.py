"""Autoscalers of a fleet: how many workers each pool has."""

from kvgym.baselines.autoscalers import bounded, given, reactive

__all__ = ["bounded", "given", "reactive"]
