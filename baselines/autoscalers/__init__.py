"""Autoscalers of a fleet: how many workers each pool has."""

from kvgym.baselines.autoscalers import bounded, by_rate, given, linear, reactive, roles, saturation

__all__ = ["bounded", "by_rate", "given", "linear", "reactive", "roles", "saturation"]
